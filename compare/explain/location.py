"""Where an artifact was found to leave the noise floor, in figures and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blockexport.compare.core.tolerances import SITE_FACTOR
from blockexport.compare.explain.graph_values import SiteError
from blockexport.compare.explain.screen import Specimen
from blockexport.compare.explain.sites import LABELS
from blockexport.models.wording import listed, number, told_apart

CALLS_NAMED = 5  # in a sentence


@dataclass(frozen=True)
class Location:
    """The first difference.

    Attributes:
        position: of the first token that differs.
        call: the first position of the call it was found in.
        layer: None for embedding, final norm and head.
        site: a key of `sites.LABELS`.
        error: relative L2 error there.
        floor: eager's own.
        absent: the graph lacks the value `site`, and the next one differs.
        layers: all layers that differ by themselves in that call.
        times: the value is eager's times this factor; None where it is no multiple of it.
        finite: False where the value is NaN or infinite.
        not_finite: the first value that is, where that is another one behind it; empty elsewhere.
        node: operator and name of the node in another tool's file; empty for our own.
        instead: the site whose value of eager's is there; empty where it is none's.
    """

    position: int
    call: int
    layer: int | None
    site: str
    error: float
    floor: float
    absent: bool
    layers: frozenset[int]
    times: float | None = None
    finite: bool = True
    not_finite: str = ""
    node: str = ""
    instead: str = ""

    @property
    def sentence(self) -> str:
        """In words."""
        place = place_of(self.layer, self.site) + (", which the graph lacks" if self.absent else "")
        place += f", at {self.node}" if self.node else ""
        if not self.finite:
            return f"first difference at position {self.position}: {place}, which is NaN or infinite"
        said = f"relative error {number(self.error)}, eager's own {number(self.floor)}"
        said += "" if self.times is None else f"; it is {told_apart(self.times, 1.0)[0]} times eager's"
        said += f"; it is eager's {LABELS[self.instead]}" if self.instead else ""
        later = f"; the first NaN or infinity is in {self.not_finite}" if self.not_finite else ""
        return f"first difference at position {self.position}: {place} ({said}){later}"


@dataclass(frozen=True)
class Search:
    """What Locate found out.

    Attributes:
        location: None when every value in the calls looked into stays within the floor.
        reproduced: the replay gives the artifact's outputs, so what is seen inside is the artifact.
        ratio: the replay's distance from the artifact's outputs, in units of the floor.
        rows: every value that was compared, in order, for a table or a plot of error over layers.
        mapping: whose weights each layer computes with.
        looked: the calls looked into.
        calls: how many there were.
        specimen: what went into the first layer that differs and what came out of it; None where that is not known, or
            the replay is not the artifact.
        failed: the outputs of these calls leave the floor, whatever is found inside.
        weights: a clause for each weight behind what differs that is not the checkpoint's, and what the file calls it.
    """

    location: Location | None
    reproduced: bool
    ratio: float
    rows: tuple[SiteError, ...]
    mapping: tuple[int, ...]
    looked: tuple[range, ...]
    calls: int
    specimen: Specimen | None = None
    failed: bool = False
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def within(self) -> str:
        """That nothing was found, and where that holds."""
        starts = listed([_span(call) for call in self.looked], CALLS_NAMED)
        if len(self.looked) == self.calls:
            last = self.looked[-1].stop - 1
            which = f"in {'all ' if self.calls > 1 else ''}{_count(self.calls)}, up to position {last}"
        else:
            which = f"in the calls looked into, {len(self.looked)} of {self.calls} (positions {starts})"
        if self.failed:
            return (
                f"no single operation is at fault: each value inside the graph is within {SITE_FACTOR.value:g} times "
                f"eager's error on the same input, {which}; what leaves the floor is what they add up to"
            )
        return f"every value inside the graph stays within the floor {which}"

    @property
    def confined(self) -> frozenset[int] | None:
        """The layers that differ by themselves, where others do not."""
        layers = {row.layer for row in self.rows if row.layer is not None}
        if self.location is None or not 0 < len(self.location.layers) < len(layers):
            return None
        return self.location.layers

    @property
    def sentence(self) -> str:
        """In words."""
        found = self.location.sentence if self.location else self.within
        if self.reproduced:
            return found
        return (
            f"the replay does not reproduce the artifact's outputs ({self.ratio:.3g} times the noise floor away), so "
            f"what it sees inside need not be what the backend did; in the replay: {found}"
        )


def place_of(layer: int | None, site: str) -> str:
    return LABELS[site] if layer is None else f"layer {layer}, {LABELS[site]}"


def _span(call: range) -> str:
    return str(call.start) if len(call) == 1 else f"{call.start} to {call.stop - 1}"


def _count(calls: int) -> str:
    return "one call" if calls == 1 else f"{calls} calls"
