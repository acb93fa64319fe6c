"""Choosing the next token from logits, defined so that another program repeats it bit for bit on any C library.

Arithmetic is IEEE 754 double precision, round to nearest even, each operation rounded by itself (in C++:
`-ffp-contract=off`; no fused multiply-add, no reassociation). V logits in float32 go in, one token id comes out.

1. A NaN or +infinity is refused, as is a row that is -infinity throughout.
2. **Greedy.** Temperature 0 picks the greatest logit, the lowest id among equals, and draws no random number.
3. **Order.** Candidates are sorted by descending logit, equals by ascending id (-0 equals +0).
4. **Top-k.** With `top_k` > 0 only the first `top_k` stay.
5. **Weights.** `x[i] = (double(logit[i]) - double(logit[0])) / temperature`, `w[i] = exp(x[i])` as below, and the
   running sums `c[0] = w[0]`, `c[i] = c[i-1] + w[i]`, in that order.
6. **Top-p.** The shortest prefix with `c[n-1] >= top_p * c[last]` stays; n is at least 1.
7. **Draw.** `u` is the next uniform number, and the first i < n with `c[i] > u * c[n-1]` is chosen, else n-1.

`exp(x)` for x <= 0: 0 when x < -700. Otherwise `k = floor(x * LOG2_E + 0.5)`, `r = (x - k * LN2_HIGH) - k * LN2_LOW`,
Horner's rule in `r` over the coefficients `1/13!, 1/12!, ... 1/1!, 1` (each the double quotient `1.0 / n!`):
`p = 1/13!; p = p * r + 1/12!; ...; p = p * r + 1`, and the result is `p * 2^k`, which is exact. It is within 1.2 units
in the last place of the true value (tests/runtime/text/test_sampling.py measures it).

Uniform numbers come from SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), with
the seed as its first state; the upper 53 bits of an output times 2^-53 are the uniform number, in [0, 1).

tests/data/sampling_vectors.json holds vectors for other implementations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockexport.models.errors import UsageError

LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # its last 21 bits are zero: k * LN2_HIGH is exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
EXP_COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
EXP_UNDERFLOW = -700.0

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class SamplingOptions:
    """How a token is chosen: greedily at temperature 0 (the default), drawn otherwise.

    `top_k` 0 and `top_p` 1 leave the candidates alone. Raises UsageError when a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0.0 <= self.temperature < math.inf):
            raise UsageError(
                f"temperature is {self.temperature} and must be 0 (greedy) or a positive number, such as 0.8"
            )
        if self.top_k < 0:
            raise UsageError(
                f"top-k is {self.top_k} and must be 0 (all tokens) or the number of candidates, such as 40"
            )
        if not (0.0 < self.top_p <= 1.0):
            raise UsageError(f"top-p is {self.top_p} and must be in (0, 1], such as 0.95; 1 keeps every candidate")
        if not (0 <= self.seed <= _MASK):
            raise UsageError(f"the seed is {self.seed} and must be in 0 .. {_MASK}")


class SplitMix64:
    """The generator: 64 bits of state, one addition and one mix per number."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next_bits(self) -> int:
        """The next 64-bit output."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        bits = self._state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return bits ^ (bits >> 31)

    def next_uniform(self) -> float:
        """The next number in [0, 1), a multiple of 2^-53."""
        return (self.next_bits() >> 11) * 2.0**-53


def exp_nonpositive(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^x for x <= 0 by the operations of the module's docstring, float64 [n] to float64 [n]."""
    x = np.maximum(x, EXP_UNDERFLOW - 1.0)  # -infinity would make NaN below
    k = np.floor(x * LOG2_E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = np.full_like(r, EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        p *= r
        p += coefficient
    weights: NDArray[np.float64] = np.ldexp(p, k.astype(np.int32))
    weights[x < EXP_UNDERFLOW] = 0.0
    return weights


class Sampler:
    """Chooses tokens one after the other; the generator's state is all it keeps."""

    def __init__(self, options: SamplingOptions) -> None:
        self.options = options
        self._random = SplitMix64(options.seed)

    def sample(self, logits: NDArray[Any]) -> int:
        """The next token id from the logits [V] of one position; a type other than float32 is converted to it first.

        Raises:
            UsageError: a logit is NaN or +infinity, or all are -infinity.
        """
        logits_V = self._checked(logits)
        return int(logits_V.argmax()) if self.options.temperature == 0.0 else self._draw(*self._kept(logits_V))

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """With what probability `sample` chooses each token [V] at a temperature above 0. Raises as `sample`."""
        logits_V = self._checked(logits)
        ids, sums = self._kept(logits_V)
        probabilities_V = np.zeros(len(logits_V))
        probabilities_V[ids] = np.diff(sums, prepend=0.0) / sums[-1]
        return probabilities_V

    def draw(self, weights_V: NDArray[np.float64]) -> int:
        """A token id drawn by weights [V] that are not negative and not all 0."""
        ids = np.flatnonzero(weights_V)
        return self._draw(ids, np.add.accumulate(weights_V[ids]))

    def uniform(self) -> float:
        """The next random number in [0, 1)."""
        return self._random.next_uniform()

    @staticmethod
    def _checked(logits: NDArray[Any]) -> NDArray[np.float32]:
        logits_V = np.asarray(logits, dtype=np.float32).reshape(-1)
        greatest = float(logits_V.max())
        if not math.isfinite(greatest):  # a NaN anywhere makes the maximum NaN
            raise UsageError(
                f"the greatest of the {logits_V.size} logits is {greatest}, and no token can be chosen from that: "
                "blockexport compare shows where the model goes wrong"
            )
        return logits_V

    def _kept(self, logits_V: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The candidates that may be drawn, and the running sums of their weights."""
        ids = ordered_candidates(logits_V, self.options.top_k)
        sums = np.add.accumulate(self._weights(logits_V[ids]))
        count = 1 + int(np.searchsorted(sums, self.options.top_p * sums[-1], side="left"))
        return ids[:count], sums[:count]

    def _draw(self, ids: NDArray[np.int64], sums: NDArray[np.float64]) -> int:
        chosen = int(np.searchsorted(sums, self._random.next_uniform() * sums[-1], side="right"))
        return int(ids[min(chosen, len(sums) - 1)])

    def _weights(self, ordered: NDArray[np.float32]) -> NDArray[np.float64]:
        wide = ordered.astype(np.float64)
        return exp_nonpositive((wide - wide[0]) / self.options.temperature)


def ordered_candidates(logits_V: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    """Token ids by descending logit, equals by ascending id; the first `top_k` of them, all when it is 0.

    Logit and id are packed into one integer that sorts the same way, so ties need no care and nothing is sorted but
    plain integers.
    """
    bits = (logits_V + np.float32(0.0)).view(np.uint32)  # -0 becomes +0
    negative = (bits >> np.uint32(31)).astype(bool)
    descending = np.where(negative, bits, ~bits & np.uint32(0x7FFFFFFF))
    keys = (descending.astype(np.uint64) << np.uint64(32)) | np.arange(len(bits), dtype=np.uint64)
    if 0 < top_k < len(keys):
        keys = np.partition(keys, top_k - 1)[:top_k]
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
