"""Where does an artifact first leave the noise floor: at which step, in which layer, at which sub-operation?

The replay runs the artifact's graph and hands out every intermediate value. Before anything is said about its inside,
the replay's outputs are held against those that the artifact gave on its own backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from blockexport.compare.audits.sites_by_flow import SiteMap
from blockexport.compare.audits.sites_by_name import map_sites
from blockexport.compare.core.evidence import Evidence, fed
from blockexport.compare.core.tolerances import REPLAYED
from blockexport.compare.explain.graph_values import Inside, Observed, SiteError
from blockexport.compare.explain.location import Location, Search, place_of
from blockexport.compare.explain.screen import Specimen
from blockexport.compare.explain.sites import MADE_FROM
from blockexport.compare.explain.used_weights import Uses
from blockexport.models.progress import counted
from blockexport.runtime.replay.replay_decoder import ReplayDecoder
from blockexport.runtime.replay.replay_graph import ReplayGraph

FIRST_CALLS = 2  # looked into whatever the outputs say: a defect may show inside before it shows outside


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
        not_finite="" if lost is row else place_of(lost.layer, lost.site),
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
