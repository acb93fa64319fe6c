"""The one table of how far an artifact may be from the reference, each factor with the evidence that set it.

No factor is an error in itself: each multiplies the noise floor, eager PyTorch's own error in the artifact's precision
against the same float64 reference on the same tokens. What is rounding in a deep fp16 model would be a defect in a
shallow fp32 one, and only the floor knows which.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """A factor: what it is called, in a line what it holds, and why it has its value."""

    value: float
    title: str
    line: str
    evidence: str


RMS_FACTOR = Tolerance(
    1.5,
    "rms error",
    "of a check's positions together, over eager's, where many positions bear the error",
    "Root mean square over the positions and logits of a stretch, over the largest of eager's runs. 123 stretches of "
    "sound models with a softmax 10 to 100 times as sharp (every family, fp32, fp16 and bf16, 2 and 12 layers), 64 "
    "positions and more each: up to 1.43, the median 0.8 to 0.9.",
)
RMS_LUCK = Tolerance(
    5.5,
    "rms error of few positions",
    "over the root of how many positions bear eager's error: added to 1",
    "The same where few positions bear eager's error (n of them, by the square of the sum of their squares over the "
    "sum of the fourth powers): the limit is 1 + 5.5 / sqrt(n), the spread of a mean of n. The error of an early "
    "position stays in the cache for all that follow, and after a sharp softmax one position may have all of it: of "
    "14,653 stretches of 400 such models, 2 and 12 layers, the largest were 6.0 (n = 1, limit 6.5), 4.0 (n = 3.3, "
    "limit 4.03) and, the only one outside, 2.74 (n = 11.8, limit 2.60): a flip that no run of the first look had. By "
    "the second look (see the next limit) that one is at 1.6 or less. A gain of 1.05 instead of 1 moves the "
    "keys by more than 11 times the floor in fp16, and by more than 20,000 times in fp32.",
)
MAX_FACTOR = Tolerance(
    8.0,
    "largest error",
    "at any single position, over eager's there",
    "Largest difference at a single position, over the largest of eager's runs there. One run is a matter of luck: the "
    "same 328 stretches lay up to 34 times from the larger of two runs that round alike, and 35 of them over 8. Of "
    "five runs, three of which round anew, the largest was 8.5, at one position of one model where two scores tie in "
    "bf16. A file that leaves the first floor at no more than an eighth of the positions is therefore held to a "
    "second one, with twelve more runs of the first kind and twelve moved by eight units, whose errors count an "
    "eighth. Either kind by itself is too little: a flip costs no more after a large nudge, and its error would count "
    "an eighth (10.1, at one position of one of 400 models), while small ones may miss it. With both none of 532 "
    "judgements of 400 models failed (each family, fp32, fp16 and bf16, softmax 1 to 100 times as sharp, 2 and 12 "
    "layers). A defect confined to one position (a stale slot) moves logits by a thousand times the floor.",
)
TIE_FACTOR = Tolerance(
    2 * MAX_FACTOR.value,
    "tie",
    "another likeliest token, while the reference prefers its own by less than this many floors",
    "Another top-1 token than the reference's is a tie while the reference prefers its own by less than this many "
    "times the floor's largest difference: two logits may each be off by the limit of that difference, towards each "
    "other. So no token fails where no logit does.",
)
LUCK = Tolerance(
    1.0,
    "least floor of a position",
    "of the median over the check's positions",
    "Eager's error at one position counts as at least this many times its median over the stretch: a position where "
    "eager happens to hit the reference must not set an impossible limit.",
)
ROUNDING_RMS = Tolerance(
    12**-0.5,
    "least floor, rms",
    "of a unit in the last place: what writing the outputs rounded costs",
    "No floor is smaller than what writing the reference's logits in the artifact's type costs: rounding to nearest "
    "is off by up to half a unit in the last place, evenly, which is 1/sqrt(12) units rms; a unit is at most epsilon "
    "times the logit. On a tiny model eager's own error can come out below that, and even at 0.",
)
ROUNDING_MAX = Tolerance(
    0.5,
    "least floor, largest error",
    "the same, at a single position",
    "The same for the largest difference at a position: half a unit of its largest logit.",
)
SIGNAL = Tolerance(
    0.5,
    "judgeable",
    "of the spread of the reference's outputs: where such an error would pass, nothing is judged",
    "A check says nothing where an error of this share of the reference's own spread (the standard deviation of its "
    "outputs at a position, or from position to position) would pass: an artifact that gives half of the signal would. "
    "Eager's own error was 3.5 % of the spread on SmolLM2-135M in bf16, at most 9 % on 12-layer random models in bf16 "
    "and 13 % on 2-layer ones with softmax ten times as sharp, each to be multiplied by the limit of 1.5 to 5; on "
    "12-layer ones as sharp as that it was 66 %, and all of their likeliest tokens differed from the reference's. Of "
    "532 judgements of 400 sound models some check of 105 was not judged for that: 58 of 132 in bf16, 45 of 264 in "
    "fp16, 2 of 136 in fp32; with 2 layers and a softmax less than 10 times as sharp 1 of 208.",
)
UNCHANGED = Tolerance(
    1.0,
    "unmoved",
    "units in the last place by which a value that nothing may move can move",
    "Where an output must not depend on an input at all, the same call is repeated with the same shapes and only that "
    "input changed: CPU kernels then give the same bits. One unit in the last place of the largest logit is allowed "
    "for kernels that split their sums by data; a leak through the mask is thousands of times larger.",
)
SITE_FACTOR = Tolerance(
    6.0,
    "value inside the graph",
    "its error over eager's in the same layer on the same input",
    "Locate: an intermediate value leaves the floor when its relative error is more than this many times the largest "
    "of eager's runs in the same layer on the same input. A value at one step holds a few dozen numbers, and one run "
    "is a matter of luck: a sound file lay 7.1 times as far with MKL's COMPATIBLE kernels. Of four runs, three of "
    "which round anew, seven sound files lay up to 2.6 with those, with ATen's plain and with the usual kernels. Of "
    "72 sound models, softmax up to 100 times as sharp, 2 and 12 layers, fp32, fp16 and bf16, the attention of three "
    "went over 6 in one of six calls, up to 8.8; by a second look, of more runs, no value of any was over 5.4. The "
    "mildest defect of the catalogue (a wrong epsilon) moved its norm by 70 times the floor in fp32.",
)
REPLAYED = Tolerance(
    0.01,
    "replay",
    "of the artifact's error: the replay counts as the artifact up to this distance from it",
    "Locate: the replay counts as the artifact when its outputs lie within the floor of the artifact's, or leave no "
    "more than this share of the artifact's error: a defect that makes the model's numbers larger makes its noise "
    "larger too (gains of 1 + w instead of w, six times in a model of three layers).",
)
NAMED_FACTOR = Tolerance(
    3.0,
    "named defect",
    "the artifact's error against the model with the defect, over that model's noise",
    "Diagnose: a defect is named while the artifact's rms error against the model that has it is at most this many "
    "times that model's own noise. Twice the factor of a verdict, because few positions are compared; of defects that "
    "stay below it the one with the smallest error comes first.",
)
EXPLAINED = Tolerance(
    0.5,
    "explained error",
    "of the artifact's error: a defect that leaves more is not named",
    "Diagnose: a defect must also explain the error, that is, leave no more than this share of it. Without this a "
    "small error would be called reproduced by every defect that is too small to matter.",
)
ROPE_UNITS = Tolerance(
    4.0,
    "RoPE table",
    "units of float32 by which an entry may differ from this machine's",
    "Constants: an entry of a file's RoPE table may differ from this machine's by this many units of float32 (1.2e-7) "
    "of its angle, or of 1 where that is smaller. Two machines need not agree on the last bit of a power or a cosine: "
    "353 million entries computed with PyTorch's plain and its AVX-512 kernels differed by up to 1.44. A table in half "
    "precision is off by thousands.",
)

TABLE: dict[str, Tolerance] = {
    "rms_factor": RMS_FACTOR,
    "rms_luck": RMS_LUCK,
    "max_factor": MAX_FACTOR,
    "tie_factor": TIE_FACTOR,
    "luck": LUCK,
    "rounding_rms": ROUNDING_RMS,
    "rounding_max": ROUNDING_MAX,
    "signal": SIGNAL,
    "unchanged": UNCHANGED,
    "site_factor": SITE_FACTOR,
    "replayed": REPLAYED,
    "named_factor": NAMED_FACTOR,
    "explained": EXPLAINED,
    "rope_units": ROPE_UNITS,
}
