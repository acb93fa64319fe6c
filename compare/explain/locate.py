"""Where does an artifact first leave the noise floor: at which step, in which layer, at which sub-operation?

The replay runs the artifact's graph and hands out every intermediate value. Before anything is said about its inside,
the replay's outputs are held against those that the artifact gave on its own backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from blockexport.compare.audits.sites_by_flow import SiteMap
from blockexport.compare.audits.sites_by_name import map_sites
from blockexport.compare.core.evidence import Evidence, fed
from blockexport.compare.core.tolerances import REPLAYED, SITE_FACTOR
from blockexport.compare.explain.graph_values import Inside, Observed, SiteError
from blockexport.compare.explain.screen import Specimen
from blockexport.compare.explain.sites import LABELS, MADE_FROM
from blockexport.compare.explain.used_weights import Uses
from blockexport.models.progress import counted
from blockexport.models.wording import listed, number, told_apart
from blockexport.runtime.replay.replay_decoder import ReplayDecoder
from blockexport.runtime.replay.replay_graph import ReplayGraph

CALLS_NAMED = 5  # in a sentence
FIRST_CALLS = 2  # looked into whatever the outputs say: a defect may show inside before it shows outside


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
        place = _place(self.layer, self.site) + (", which the graph lacks" if self.absent else "")
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


@dataclass(frozen=True)
class WatchedSites:
    """A decoder that tells the values inside it.

    Attributes:
        decoder: of the artifact's graph, or graphs.
        sites: which of the values are at which site.
        uses: which weights make them, in the graph of the call that begins at a position; None of our own graph, whose
            weights have the checkpoint's names and are all compared.
    """

    decoder: Observed
    sites: SiteMap
    uses: Callable[[int], Uses] | None = None


def locate(
    graph: ReplayGraph | WatchedSites,
    evidence: Evidence,
    *,
    looked: Sequence[range] | None = None,
    wrong_slot: int | None = None,
) -> Search:
    """Find the first difference.

    Args:
        graph: the artifact's graph, or a decoder of it that tells what it computes.
        evidence: what the artifact said, run by its backend.
        looked: calls to look into, all of them; by default the first calls and those from the first wrong output or
            slot on, up to the first that differs inside; and all calls where none of those does, since there is
            something to find.
        wrong_slot: the first slot of the cache known to be wrong after these calls.
    """
    watched = graph if isinstance(graph, WatchedSites) else _replayed(graph, evidence)
    inputs = fed(evidence.checkpoint, evidence.interface, evidence.ids_S[None])
    floor, inside = evidence.floor, Inside(watched.decoder, watched.sites, evidence)
    suspects = _suspects(evidence, wrong_slot) if looked is None else list(looked)
    walk = _walk(inside, evidence, inputs, suspects, to_the_end=looked is not None)
    distance = _distance(walk.replayed_PV, evidence)
    # Replay and artifact have each a noise of its own, so two sound ones are the root of two times as far apart.
    reproduced = distance <= max(math.sqrt(2) * floor.rms_limit * floor.rms, REPLAYED.value * evidence.errors.rms)
    if walk.location is None and looked is None and reproduced and len(suspects) < len(evidence.calls):
        walk = _walk(inside, evidence, inputs, evidence.calls)
    mapping = tuple(inside.uses.get(i, i) for i in range(inside.config.num_hidden_layers))
    seen = {row.call for row in walk.rows}
    return Search(
        location=walk.location,
        reproduced=reproduced,
        ratio=distance / floor.rms,
        rows=tuple(walk.rows),
        mapping=mapping,
        looked=tuple(call for call in evidence.calls if call in seen),
        calls=len(evidence.calls),
        specimen=_specimen_at(walk.location, inside) if reproduced else None,
    )


def _replayed(graph: ReplayGraph, evidence: Evidence) -> WatchedSites:
    decoder = ReplayDecoder(graph, evidence.interface)
    return WatchedSites(decoder, map_sites(graph.model.graph, decoder.config.num_hidden_layers))


@dataclass
class _Walk:
    """What came of running the calls, and of looking into some of them."""

    replayed_PV: torch.Tensor
    location: Location | None = None
    rows: list[SiteError] = field(default_factory=list)


def _walk(
    inside: Inside,
    evidence: Evidence,
    inputs: torch.Tensor,
    suspects: Sequence[range],
    *,
    to_the_end: bool = False,
) -> _Walk:
    """Run the calls and look into the suspects, all or up to the first that differs."""
    where = {p: i for i, p in enumerate(evidence.positions)}
    walk = _Walk(torch.full_like(evidence.outputs_PV, torch.nan))
    inside.decoder.reset(1)
    for call in counted(evidence.calls, "explain: replaying, call", evidence.progress):
        if call in suspects and (walk.location is None or to_the_end):
            outputs_SV, found = inside.look(call, inputs)
            walk.rows += found
            walk.location = walk.location or _named(_first(found), inside.sites)
        else:
            outputs_SV = inside.decoder.prefill(inputs[:, call.start : call.stop])[0]
        for row, position in enumerate(list(call)[-len(outputs_SV) :]):
            if position in where:
                walk.replayed_PV[where[position]] = outputs_SV[row]
    return walk


def _distance(replayed_PV: torch.Tensor, evidence: Evidence) -> float:
    """Root mean square distance of the replay's outputs from the artifact's."""
    lost = ~replayed_PV.isfinite() & ~evidence.outputs_PV.isfinite()
    difference = (replayed_PV.double() - evidence.outputs_PV.double()).masked_fill(lost, 0.0)
    return float(difference.square().mean().sqrt())


def _specimen_at(location: Location | None, inside: Inside) -> Specimen | None:
    """The layer that differs first, where it is known what went in and what came out."""
    found = inside.specimen
    if location is None or found is None or not found.finite:
        return None
    return found if (found.layer, found.call.start) == (location.layer, location.call) else None


def _suspects(evidence: Evidence, wrong_slot: int | None) -> list[range]:
    """Calls worth a look: the first ones, and those from the first wrong output or slot on."""
    wrong = evidence.wrong[:1] + ([] if wrong_slot is None else [wrong_slot])
    calls = list(evidence.calls)
    first = next((i for i, call in enumerate(calls) if wrong and min(wrong) in call), 0)
    return [*calls[:FIRST_CALLS], *calls[first:]]


def _first(rows: Sequence[SiteError]) -> Location | None:
    index = next((i for i, row in enumerate(rows) if row.outside), None)
    if index is None:
        return None
    outside, index = rows[index], _begun(rows, index)
    row = blamed = rows[index]
    # A value that the graph lacks, between one that is right and the first that differs, is what differs. Where more
    # than one is missing in a row, nothing can be said about which.
    before = [r for r in rows[:index] if r.layer == row.layer and r.site == MADE_FROM.get(row.site)]
    earlier = [r for r in rows[:index] if before and r.layer == row.layer and r.site == MADE_FROM.get(before[0].site)]
    if before and before[0].absent and not any(r.absent for r in earlier):
        blamed = before[0]
    lost = next((r for r in rows if not r.finite), row)
    return Location(
        position=row.call.start if outside.position is None else outside.position,
        call=row.call.start,
        layer=row.layer,
        site=blamed.site,
        error=row.error,
        floor=row.floor,
        absent=blamed.absent,
        layers=frozenset(r.layer for r in rows if r.outside and r.layer is not None),
        times=None if blamed.absent else row.times,
        finite=outside.finite,
        not_finite="" if lost is row else _place(lost.layer, lost.site),
        instead="" if blamed.absent else row.instead,
    )


def _begun(rows: Sequence[SiteError], index: int) -> int:
    """Where the error of a value outside began: values right before it in its layer that are all but outside have it
    too, and which of them is over the limit first is luck."""
    if rows[index].finite:
        while index and rows[index - 1].layer == rows[index].layer and rows[index - 1].nearly_outside:
            index -= 1
    return index


def _named(found: Location | None, sites: SiteMap) -> Location | None:
    """A location with the file's own name for it."""
    if found is None or sites.nodes is None:
        return found
    return replace(found, node=sites.nodes(found.call, found.layer, found.site))


def _place(layer: int | None, site: str) -> str:
    return LABELS[site] if layer is None else f"layer {layer}, {LABELS[site]}"


def _span(call: range) -> str:
    return str(call.start) if len(call) == 1 else f"{call.start} to {call.stop - 1}"


def _count(calls: int) -> str:
    return "one call" if calls == 1 else f"{calls} calls"
