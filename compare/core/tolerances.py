"""The one table of how far an artifact may be from the reference, each factor with the evidence that set it.

No factor is an error in itself: each multiplies the noise floor, eager PyTorch's own error in the artifact's precision
against the same float64 reference on the same tokens. What is rounding in a deep fp16 model would be a defect in a
shallow fp32 one, and only the floor knows which.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A factor and why it has its value."""

    value: float
    evidence: str


RMS_FACTOR = Tolerance(
    1.5,
    "Root mean square over the positions and logits of a stretch, over eager's. 200 good random models of every family "
    "and option, half of them in fp32 (ONNX Runtime), half in fp16 (ONNX Runtime and the replay): 390 stretches of 64 "
    "positions and more lay between 0.45 and 1.36, in fp32 between 0.78 and 1.21; the average is 1 in fp32, 0.9 and "
    "1.1 in fp16, with a spread of 0.1. The walk of single steps over the whole cache, on 60 of them: 0.57 to 1.28. "
    "SmolLM2-135M in fp32: 0.82 to 0.86.",
)
RMS_FACTOR_FEW = Tolerance(
    3.0,
    "The same where the stretch has fewer than 64 positions, which share their luck: the error of an early position "
    "stays in the cache for all that follow, and one position with 44 % of the squared error was seen. 1,710 such "
    "stretches of the same models (and their caches, and batches, whose rows are short each): all but two below 2, "
    "the largest 2.34, over the last 8 slots.",
)
RMS_FACTOR_FEWEST = Tolerance(
    5.0,
    "The same below 8 positions, which share a handful of numbers and so the luck of one sum. 288 runs of the trained "
    "stories260K on caches of 1 to 12 slots, each from another first token: the largest 2.92 (outputs) and 3.15 (a "
    "tensor of the cache), both in fp32 on two slots; of 80 random models in all precisions 2.31. A gain of 1.05 "
    "instead of 1 moves the keys by more than 11 times the floor in fp16, and by more than 20,000 times in fp32.",
)
SOME_POSITIONS = 8  # from here on RMS_FACTOR_FEW holds
MANY_POSITIONS = 64  # from here on RMS_FACTOR
MAX_FACTOR = Tolerance(
    8.0,
    "Largest difference at a single position, over eager's there. Single positions are a matter of luck: the worst of "
    "some 79,000 positions of the same models was 5.9 times eager's. A defect confined to one position (a stale slot) "
    "moves logits by a thousand times the floor.",
)
TIE_FACTOR = Tolerance(
    2.0,
    "Another top-1 token than the reference's is a tie while the reference prefers its own by less than this many "
    "times the floor's largest difference: two logits may each move by one such difference, towards each other.",
)
LUCK = Tolerance(
    1.0,
    "Eager's error at one position counts as at least this many times its median over the stretch: a position where "
    "eager happens to hit the reference must not set an impossible limit.",
)
ROUNDING_RMS = Tolerance(
    12**-0.5,
    "No floor is smaller than what writing the reference's logits in the artifact's type costs: rounding to nearest "
    "is off by up to half a unit in the last place, evenly, which is 1/sqrt(12) units rms; a unit is at most epsilon "
    "times the logit. On a tiny model eager's own error can come out below that, and even at 0.",
)
ROUNDING_MAX = Tolerance(0.5, "The same for the largest difference at a position: half a unit of its largest logit.")
SIGNAL = Tolerance(
    0.5,
    "A check says nothing where an error of this share of the reference's own spread (the standard deviation of its "
    "outputs at a position, or from position to position) would pass: an artifact that gives half of the signal would. "
    "Eager's own error was 3.5 % of the spread on SmolLM2-135M in bf16, at most 9 % on 12-layer random models in bf16 "
    "and 13 % on 2-layer ones with softmax ten times as sharp, each to be multiplied by the limit of 1.5 to 5; on "
    "12-layer ones as sharp as that it was 66 %, and all of their likeliest tokens differed from the reference's.",
)
CHANCE = Tolerance(
    0.05,
    "Greedy tokens say nothing where ones drawn by lot would pass with a higher probability: the usual level of "
    "significance. A token is drawn from the whole vocabulary, and passes where it is the reference's or tied with it.",
)
UNCHANGED = Tolerance(
    1.0,
    "Where an output must not depend on an input at all, the same call is repeated with the same shapes and only that "
    "input changed: CPU kernels then give the same bits. One unit in the last place of the largest logit is allowed "
    "for kernels that split their sums by data; a leak through the mask is thousands of times larger.",
)
SITE_FACTOR = Tolerance(
    6.0,
    "Locate: an intermediate value leaves the floor when its relative error is more than this many times eager's in "
    "the same layer on the same input. A value at one step holds a few dozen numbers, whose noise is a matter of luck "
    "up to 3; the mildest defect of the catalogue (a wrong epsilon) moved its norm by 70 times the floor in fp32.",
)
REPLAYED = Tolerance(
    0.01,
    "Locate: the replay counts as the artifact when its outputs lie within the floor of the artifact's, or leave no "
    "more than this share of the artifact's error: a defect that makes the model's numbers larger makes its noise "
    "larger too (gains of 1 + w instead of w, six times in a model of three layers).",
)
NAMED_FACTOR = Tolerance(
    3.0,
    "Diagnose: a defect is named while the artifact's rms error against the model that has it is at most this many "
    "times that model's own noise. Twice the factor of a verdict, because few positions are compared; of defects that "
    "stay below it the one with the smallest error comes first.",
)
EXPLAINED = Tolerance(
    0.5,
    "Diagnose: a defect must also explain the error, that is, leave no more than this share of it. Without this a "
    "small error would be called reproduced by every defect that is too small to matter.",
)
ROPE_UNITS = Tolerance(
    4.0,
    "Constants: an entry of a file's RoPE table may differ from this machine's by this many units of float32 (1.2e-7) "
    "of its angle, or of 1 where that is smaller. Two machines need not agree on the last bit of a power or a cosine: "
    "353 million entries computed with PyTorch's plain and its AVX-512 kernels differed by up to 1.44. A table in half "
    "precision is off by thousands.",
)

TABLE: dict[str, Tolerance] = {
    "rms_factor": RMS_FACTOR,
    "rms_factor_few": RMS_FACTOR_FEW,
    "rms_factor_fewest": RMS_FACTOR_FEWEST,
    "max_factor": MAX_FACTOR,
    "tie_factor": TIE_FACTOR,
    "luck": LUCK,
    "rounding_rms": ROUNDING_RMS,
    "rounding_max": ROUNDING_MAX,
    "signal": SIGNAL,
    "chance": CHANCE,
    "unchanged": UNCHANGED,
    "site_factor": SITE_FACTOR,
    "replayed": REPLAYED,
    "named_factor": NAMED_FACTOR,
    "explained": EXPLAINED,
    "rope_units": ROPE_UNITS,
}
