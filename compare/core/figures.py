"""What was measured, as records: the report reads them by attribute, and programs as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figures:
    """The base of them all. A check that measures something declares its own record beside itself."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the names of the fields; a field that is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class StretchFigures(Figures):
    """A stretch of positions against the noise floor.

    Attributes:
        positions: how many were compared, from `first_position` to `last_position`.
        rms: the artifact's error over all of them, `rms_floor` eager's own, `rms_ratio` the one over the other.
        max: the largest difference; `max_ratio` is the largest over the positions, each over its own floor, and
            `worst_position` where that is.
        relative_l2: length of the error over length of the reference.
        kl_mean: Kullback-Leibler divergence in nats.
        not_finite: positions; so are `ties` and `disagreements` of the likeliest token.
    """

    positions: int
    first_position: int
    last_position: int
    rms: float
    rms_floor: float
    rms_ratio: float
    rms_limit: float
    max: float
    max_floor: float
    max_ratio: float
    max_limit: float
    worst_position: int
    relative_l2: float
    kl_mean: float
    not_finite: list[int]
    ties: list[int]
    disagreements: list[int]

    @property
    def passed(self) -> bool:
        """Whether everything stayed within the floor."""
        within = self.rms_ratio <= self.rms_limit and self.max_ratio <= self.max_limit
        return within and not self.not_finite and not self.disagreements

    @property
    def share(self) -> float:
        """How much of its limits it uses, the tighter one; infinite where it is not finite."""
        return float("inf") if self.not_finite else max(self.rms_share, self.max_share)

    @property
    def rms_share(self) -> float:
        """How much of its limit the error uses; infinite where it is NaN."""
        return _share(self.rms_ratio, self.rms_limit)

    @property
    def max_share(self) -> float:
        """The same of the largest difference."""
        return _share(self.max_ratio, self.max_limit)


def _share(ratio: float, limit: float) -> float:
    share = ratio / limit
    return share if share == share else float("inf")
