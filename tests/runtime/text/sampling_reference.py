"""The sampling rule once more, one number at a time: the shape a C++ program gives it.

Run as a script it writes tests/data/sampling_vectors.json, which such a program replays.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "data" / "sampling_vectors.json"
MASK = (1 << 64) - 1

CASES: tuple[dict[str, Any], ...] = (
    {"vocab_size": 7, "logits_seed": 1, "step": 2.0**-20, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 0},
    {"vocab_size": 97, "logits_seed": 2, "step": 2.0**-20, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "seed": 42},
    {"vocab_size": 512, "logits_seed": 3, "step": 2.0**-20, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 7},
    {"vocab_size": 512, "logits_seed": 4, "step": 2.0**-20, "temperature": 1.3, "top_k": 5, "top_p": 1.0, "seed": MASK},
    {"vocab_size": 1000, "logits_seed": 5, "step": 2.0, "temperature": 1.0, "top_k": 37, "top_p": 0.5, "seed": 12345},
    {"vocab_size": 1000, "logits_seed": 6, "step": 4.0, "temperature": 5.0, "top_k": 0, "top_p": 0.8, "seed": 99},
    {"vocab_size": 1000, "logits_seed": 7, "step": 2.0, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 5},
    {"vocab_size": 49152, "logits_seed": 8, "step": 2.0**-20, "temperature": 1.5, "top_k": 0, "top_p": 0.99, "seed": 3},
    {"vocab_size": 300, "logits_seed": 9, "step": 2.0**-20, "temperature": 0.01, "top_k": 0, "top_p": 1.0, "seed": 8},
)
EXP_ARGUMENTS = (
    -0.0,
    -1e-300,
    -1e-9,
    -0.25,
    -0.34657359027997264,
    -0.5,
    -1.0,
    -2.5,
    -13.7,
    -100.1,
    -699.9,
    -700.0,
    -701.0,
)


def next_bits(state: int) -> tuple[int, int]:
    """(new state, output) of SplitMix64."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def exp(x: float) -> float:
    """e^x for x <= 0."""
    if x < -700.0:
        return 0.0
    k = math.floor(x * float.fromhex("0x1.71547652b82fep+0") + 0.5)
    r = (x - k * float.fromhex("0x1.62e42fee00000p-1")) - k * float.fromhex("0x1.a39ef35793c76p-33")
    p = 1.0 / math.factorial(13)
    for n in range(12, -1, -1):
        p = p * r + 1.0 / math.factorial(n)
    return math.ldexp(p, k)


def made_logits(vocab_size: int, seed: int, step: float) -> list[float]:
    """Logits in -8 .. 8 that any language can make: the upper 24 bits of SplitMix64 times 2^-20, less 8, rounded down
    to a multiple of `step` (a step of 2 makes many ties). Every value is exact in float32."""
    logits = []
    for _ in range(vocab_size):
        seed, bits = next_bits(seed)
        logits.append(math.floor(((bits >> 40) * 2.0**-20 - 8.0) / step) * step)
    return logits


def draw(logits: list[float], temperature: float, top_k: int, top_p: float, state: int) -> tuple[int, int]:
    """(token id, new state of the generator)."""
    if temperature == 0.0:
        return logits.index(max(logits)), state
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k > 0:
        order = order[:top_k]
    sums: list[float] = []
    total = 0.0
    for i in order:
        total = total + exp((logits[i] - logits[order[0]]) / temperature)
        sums.append(total)
    kept = next(n for n, value in enumerate(sums, 1) if value >= top_p * total)
    state, bits = next_bits(state)
    target = ((bits >> 11) * 2.0**-53) * sums[kept - 1]
    place = next((n for n in range(kept) if sums[n] > target), kept - 1)
    return order[place], state


def draws(case: dict[str, Any], count: int) -> list[int]:
    """`count` tokens from the same logits, one generator."""
    logits = made_logits(case["vocab_size"], case["logits_seed"], case["step"])
    state, tokens = case["seed"], []
    for _ in range(count):
        token, state = draw(logits, case["temperature"], case["top_k"], case["top_p"], state)
        tokens.append(token)
    return tokens


def bits_of(value: float) -> str:
    """The 64 bits of a double as 16 hexadecimal digits."""
    return f"{struct.unpack('<Q', struct.pack('<d', value))[0]:016x}"


def vectors() -> dict[str, Any]:
    """Everything the file holds; integers beyond 2^53 and doubles are hexadecimal text."""
    state, outputs = 1234567, []
    for _ in range(5):
        state, bits = next_bits(state)
        outputs.append(f"{bits:016x}")
    return {
        "rule": "see runtime/text/sampling.py; logits as made_logits in tests/runtime/text/sampling_reference.py",
        "splitmix64": {"seed": 1234567, "outputs": outputs},
        "exp": [{"x": bits_of(x), "y": bits_of(exp(x))} for x in EXP_ARGUMENTS],
        "draws": [{**case, "seed": f"{case['seed']:016x}", "tokens": draws(case, 12)} for case in CASES],
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="utf-8")
