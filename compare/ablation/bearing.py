"""What the losses of two models say about which one is better: a mean difference, and how sure it is in two ways.

Over seeds: would other initial weights and another order of the data say the same? Over the text: would other bytes?
Both are paired, Student's t on differences at the same seed, or on the same stretch of bytes; a difference is borne out
only where both intervals leave out zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIDENCE = 0.95
_NORMAL = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # for 1 to 10 degrees of freedom

Verdict = Literal["better", "worse", "not borne out"]


@dataclass(frozen=True)
class Bearing:
    """The changed model against its base, in bits per byte; negative is better.

    Attributes:
        difference: the mean over the seeds.
        over_seeds: half of its 95 % interval over the seeds.
        over_text: half of that over the stretches of the held-out bytes.
    """

    difference: float
    over_seeds: float
    over_text: float

    @property
    def verdict(self) -> Verdict:
        """What the data bear out; nothing where the difference lies within either spread."""
        if not abs(self.difference) > max(self.over_seeds, self.over_text):
            return "not borne out"
        return "better" if self.difference < 0 else "worse"


def bearing(base: Sequence[Sequence[float]], changed: Sequence[Sequence[float]]) -> Bearing:
    """Compare two models by the losses of each seed's stretches, a row for each seed, in the same order.

    At least two seeds, and two stretches.
    """
    differences = [
        [after - before for before, after in zip(*pair, strict=True)] for pair in zip(base, changed, strict=True)
    ]
    by_seed = [statistics.fmean(row) for row in differences]
    by_stretch = [statistics.fmean(column) for column in zip(*differences, strict=True)]
    return Bearing(statistics.fmean(by_seed), half_interval(by_seed), half_interval(by_stretch))


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent values."""
    return student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t.

    Beyond the table the first terms of Fisher's expansion (Abramowitz & Stegun 26.7.5), right to 0.001.
    """
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = _NORMAL
    second, third = 5 * z**5 + 16 * z**3 + 3 * z, 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
    return z + (z**3 + z) / (4 * degrees) + second / (96 * degrees**2) + third / (384 * degrees**3)
