"""The values inside a graph against eager, layer by layer, while the graph runs.

Each layer is judged by itself: eager is given the stream and the cache that the artifact had on entering the layer, in
float64 for the truth and in the artifact's precision for the floor, in several runs that round differently, as for
every floor (`nudge.py`). So errors do not add up over the layers, and every layer that is wrong by itself is seen. The
values and weights of one layer are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch.nn import functional as F

from blockexport.compare.audits.sites_by_flow import SiteMap
from blockexport.compare.core.cached_path import Past
from blockexport.compare.core.defect import LayerBlock, output_tensor
from blockexport.compare.core.embeddings import embedding
from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.nudge import Looks, Nudges, weight_of
from blockexport.compare.core.tolerances import ROUNDING_RMS, SITE_FACTOR
from blockexport.compare.core.weights_in_parts import make_block, make_final_norm, with_head_bias
from blockexport.compare.explain.screen import Specimen
from blockexport.compare.explain.sites import LAYER_SITES, eager_sites, layer_sites
from blockexport.compare.explain.value_distance import aligned, first_position, relative_error, times_of
from blockexport.models.block.multipliers import finished
from blockexport.models.checkpoints.load_weights import Entrance

if TYPE_CHECKING:
    from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
    from blockexport.runtime.replay.replay_decoder import ReplayDecoder

LEAVING = ("mlp_residual", "cache_key", "cache_value")
"""The sites of what a layer leaves after."""

DOUBT = 10.0  # times a limit: what is further outside needs no second look

Values = dict[str, torch.Tensor]
"""Eager's, by site."""


@dataclass(frozen=True)
class SiteError:
    """One value of the graph against eager: relative L2 errors. `absent`: the graph has no such value.

    Of a value outside the floor also what can be said about the difference: `position` is that of the first token
    where it is outside, `finite` is False where it holds NaN or infinity that eager's does not, and `times` the factor
    that makes eager's value of it, where there is one, and `instead` the site whose value of eager's it is.
    """

    call: range
    layer: int | None  # None: before the first layer or after the last
    site: str
    error: float
    floor: float
    absent: bool = False
    position: int | None = None
    finite: bool = True
    times: float | None = None
    instead: str = ""

    @property
    def outside(self) -> bool:
        """Whether it leaves the floor (NaN does)."""
        return not self.absent and not self.error <= SITE_FACTOR.value * self.floor

    @property
    def nearly_outside(self) -> bool:
        """Whether it is beyond half of what would leave the floor, which noise alone hardly is."""
        return not self.absent and self.error > SITE_FACTOR.value / 2 * self.floor

    @property
    def doubtful(self) -> bool:
        """Whether it leaves the floor by so little that it may be eager's luck: a firmer one must decide."""
        return self.outside and self.error <= DOUBT * SITE_FACTOR.value * self.floor


Observed: TypeAlias = "ReplayDecoder | ForeignDecoder"
"""A decoder that tells its values by name, during or after each run; the next run leaves what `cache` gave alone."""


class Inside:
    """Compares what a replayed call makes on its way.

    Attributes:
        uses: for a layer whose projections are another layer's, which one.
        specimen: of the first layer that was wrong by itself in the last call where one was; None where what leaves it
            cannot be seen.

    Args:
        decoder: the artifact's graph, telling its values.
        sites: of its graph.
        evidence: source, tokens, calls and precision.
    """

    def __init__(self, decoder: Observed, sites: SiteMap, evidence: Evidence) -> None:
        self.decoder, self.sites, self.evidence = decoder, sites, evidence
        self.checkpoint, self.config = evidence.checkpoint, evidence.checkpoint.config
        self.uses: dict[int, int] = {}
        self.specimen: Specimen | None = None
        self._steps = evidence.path(torch.float64)
        self._wanted: dict[str, list[int]] = {}
        for layer, found in enumerate(sites.layers):
            for name in {*found.values(), sites.streams[layer]} - {None}:
                self._wanted.setdefault(str(name), []).append(layer)

    def look(self, call: range, inputs_1S: torch.Tensor) -> tuple[torch.Tensor, list[SiteError]]:
        """Run a call: its outputs [S, V], and every value's error in the order of the forward pass."""
        pasts = [self.decoder.cache(layer) for layer in range(self.config.num_hidden_layers)]
        gathered: list[dict[str, torch.Tensor]] = [{} for _ in pasts]
        due = [sum(layer in users for users in self._wanted.values()) for layer in range(len(pasts))]
        rows: list[list[SiteError]] = [[] for _ in pasts]
        ends: dict[str, torch.Tensor] = {}

        def observe(name: str, value: torch.Tensor) -> None:
            for part, (start, end) in self.sites.parts.get(name, {}).items():
                width = value.shape[-1]
                observe(part, value[..., int(start * width) : int(end * width)])
            if name in (self.sites.streams[0], self.sites.streams[-1], self.sites.final_norm):
                ends[name] = value
            for layer in self._wanted.get(name, ()):
                gathered[layer][name] = value
                if len(gathered[layer]) == due[layer]:
                    rows[layer] = self._layer(call, layer, gathered[layer], pasts[layer])
                    self.evidence.progress("explain: layer", layer + 1, len(pasts))
                    gathered[layer] = {}

        chunk = inputs_1S[:, call.start : call.stop]
        observe(self.decoder.fed, chunk)
        self.decoder.observer = observe
        try:
            outputs_SV = self.decoder.prefill(chunk)[0]
        finally:
            self.decoder.observer = None
        return outputs_SV, [
            *self._entry(call, ends),
            *(row for found in rows for row in found),
            *self._exit(call, ends, outputs_SV),
        ]

    def _layer(self, call: range, layer: int, values: Mapping[str, torch.Tensor], past: Past) -> list[SiteError]:
        names = self.sites.layers[layer]
        entering_TD = values[str(self.sites.streams[layer])].reshape(-1, self.config.hidden_size)
        seen = [site for site in layer_sites(self.config) if site not in self.sites.hidden[layer]]
        exact, own = (make_block(self.checkpoint, layer, t) for t in (torch.float64, self.evidence.dtype))
        rows, truth = self._rows(
            call,
            layer,
            {site: values[names[site]] if site in names else None for site in seen},
            entering_TD,
            partial(self._eager, exact, call, past),
            partial(self._eager, own, call, past),
        )
        if self.sites.nodes is not None:
            rows = _borne_out(rows)
        at = next((i for i, row in enumerate(rows) if row.outside), None)
        if at is not None:
            rows[at] = replace(rows[at], instead=_taken_for(rows[at], values[names[rows[at].site]], truth))
        first = next((row.site for row in rows if row.outside), None)
        if first is not None:
            self._keep(call, layer, entering_TD, past, values)
        if first in ("input_layernorm", "q_proj") and "q_proj" in names:
            self._whose(layer, entering_TD, values[names["q_proj"]])
        return rows

    def _keep(
        self, call: range, layer: int, entering_TD: torch.Tensor, past: Past, values: Mapping[str, torch.Tensor]
    ) -> None:
        """What went into a wrong layer and came out, unless an earlier layer of the call is wrong as well."""
        kept, names = self.specimen, self.sites.layers[layer]
        if kept is not None and kept.call == call and kept.layer < layer:
            return
        self.specimen = None
        if all(site in names for site in LEAVING):
            stream, key, value = (values[names[site]] for site in LEAVING)
            leaving = (stream.reshape(-1, self.config.hidden_size), key, value)
            if all(cache.shape == before.shape for cache, before in zip(leaving[1:], past, strict=True)):
                self.specimen = Specimen(layer, call, entering_TD, past, leaving)

    def _eager(self, block: LayerBlock, call: range, past: Past, x_TD: torch.Tensor) -> Values:
        step = self._steps.step(call, block.window)
        return eager_sites(block, x_TD, step, past[0].to(x_TD.dtype), past[1].to(x_TD.dtype))

    def _whose(self, layer: int, x_TD: torch.Tensor, q_TE: torch.Tensor) -> None:
        """Find the layer whose norm and q projection give what this one gave."""
        for other in range(self.config.num_hidden_layers):
            block = make_block(self.checkpoint, other, torch.float64)
            found_TE = block.self_attn.q_proj(block.normed("attention_in", x_TD.double()))
            if relative_error(q_TE, found_TE) < 16 * torch.finfo(self.evidence.dtype).eps:
                self.uses[layer] = other

    def _rows(
        self,
        call: range,
        layer: int | None,
        values: Mapping[str, torch.Tensor | None],
        x_TD: torch.Tensor,
        exact: Callable[[torch.Tensor], Values],
        own: Callable[[torch.Tensor], Values],
    ) -> tuple[list[SiteError], Values]:
        """The errors of what was made of a stream, and float64's values; None is a value that the graph lacks.

        They are held against a first floor, and against a second one, of more runs, where that leaves a doubt.
        """
        truth, narrow_TD = exact(x_TD.double()), x_TD.to(self.evidence.dtype)

        def noise(nudges: Nudges) -> list[dict[str, float]]:
            runs = (own(narrow_TD if nudge is None else nudge(narrow_TD)) for nudge in nudges)
            return [
                {site: weight_of(nudge) * relative_error(run[site], want) for site, want in truth.items()}
                for run, nudge in zip(runs, nudges, strict=True)
            ]

        for runs in Looks(noise):
            rows = [
                SiteError(call, layer, site, 0.0, 0.0, absent=True)
                if got is None
                else self._row(call, layer, site, got, truth[site], max(run[site] for run in runs))
                for site, got in values.items()
            ]
            if not any(row.doubtful for row in rows):
                break
        return rows, truth

    def _row(
        self, call: range, layer: int | None, site: str, got: torch.Tensor, want: torch.Tensor, noise: float
    ) -> SiteError:
        rounding = ROUNDING_RMS.value * torch.finfo(self.evidence.dtype).eps
        floor = max(noise, rounding) if want.is_floating_point() else 0.0
        row = SiteError(call, layer, site, relative_error(got, want), floor)
        if not row.outside or got.numel() != want.numel():
            return row
        given = aligned(got, want)
        position = first_position(given, want, SITE_FACTOR.value * floor, call)
        finite = not want.is_floating_point() or bool(given.isfinite().all() or not want.isfinite().all())
        return replace(row, position=position, finite=finite, times=times_of(given, want, SITE_FACTOR.value * floor))

    def _entry(self, call: range, ends: Mapping[str, torch.Tensor]) -> list[SiteError]:
        got = ends.get(str(self.sites.streams[0]))
        if got is None or self.evidence.interface.ends.headless:
            return []
        ids, places = self.evidence.ids_S[call.start : call.stop], torch.arange(call.start, call.stop)
        entrance, types = Entrance(self.checkpoint), (torch.float64, self.evidence.dtype)
        want, own = (entrance.stream(ids, places, partial(torch.Tensor.to, dtype=t)) for t in types)
        return [self._row(call, None, "embedding", got, want, relative_error(own, want))]

    def _exit(self, call: range, ends: Mapping[str, torch.Tensor], outputs_SV: torch.Tensor) -> list[SiteError]:
        """Final norm and head, on the stream as it left the last layer."""
        leaving, normed = ends.get(str(self.sites.streams[-1])), ends.get(str(self.sites.final_norm))
        if leaving is None:
            return []
        pools = self.evidence.interface.ends.pooling is not None
        kept = len(call) if pools else len(outputs_SV)
        x_TD = leaving.reshape(-1, self.config.hidden_size)[-kept:]
        hidden = None if normed is None or normed is leaving else normed.reshape(-1, self.config.hidden_size)[-kept:]
        values = {"final_norm": hidden, "embeddings" if pools else "head": outputs_SV}
        return self._rows(call, None, values, x_TD, self._ending, self._ending)[0]

    def _ending(self, x_TD: torch.Tensor) -> Values:
        normed = make_final_norm(self.checkpoint, x_TD.dtype)(x_TD)
        ends = self.evidence.interface.ends
        if ends.pooling is not None:
            return {"final_norm": normed, "embeddings": embedding(normed, ends)}
        if ends.headless:
            return {"final_norm": normed, "head": normed}
        head = F.linear(normed, self.checkpoint.read(output_tensor(self.config)).to(x_TD.dtype))
        (biased,) = with_head_bias([head], self.checkpoint, self.config)
        return {"final_norm": normed, "head": finished(biased, self.config)}


def _taken_for(row: SiteError, got: torch.Tensor, truth: Mapping[str, torch.Tensor]) -> str:
    """Another site of the layer whose value a wrong one is; empty where there is none."""
    limit = SITE_FACTOR.value * row.floor
    alike = (site for site in LAYER_SITES if site in truth and truth[site].is_floating_point() and site != row.site)
    return next((site for site in alike if relative_error(got, truth[site]) <= limit), "")


def _borne_out(rows: list[SiteError]) -> list[SiteError]:
    """Without values that differ from eager's and leave what they are for as it should be: another tool may compute
    them in another way, or they were taken for what they are not."""
    outside = {row.site for row in rows if row.outside}
    seen = {row.site for row in rows}
    half = LAYER_SITES.index("attention_residual")
    excused: set[str] = set()
    for part, ends in (
        (LAYER_SITES[:half], {"attention_residual", "cache_key", "cache_value"}),
        (LAYER_SITES[half:], {"mlp_residual"}),
    ):
        if ends <= seen and not ends & outside:
            excused |= set(part) & outside
    lost = {row.site for row in rows if row.error == float("inf")} - set(LEAVING)
    return [row for row in rows if row.site not in excused | lost]
