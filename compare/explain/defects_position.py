"""Defects of where a token looks and where it is written: mask, window, cache slots, RoPE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch

from blockexport.compare.core.defect import CachePlace, CacheReads, Defect, LayerBlock, StepBlock, block_with
from blockexport.models.block.attention import Attention
from blockexport.models.block.block import Block
from blockexport.models.block.cache import visible_slots
from blockexport.models.block.layer_inputs import Step
from blockexport.models.block.rope import rope_table, rope_table_rows, rotary_embedding
from blockexport.models.config.model_config import ModelConfig

THETAS = (1e3, 5e3, 1e4, 2e4, 2.5e4, 5e4, 1e5, 2e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 8e6, 1e7)
"""Rotation bases that published models use, and a few that lie between them."""

EXCHANGED, LOST = "caches_exchanged", "caches_lost"

_table = lru_cache(maxsize=4)(rope_table)


def mask_defects(config: ModelConfig) -> list[Defect]:
    """The mask off by one at either end, missing, or of the wrong kind of layer."""
    late = _masked(lambda positions, slots, window: visible_slots(positions + 1, slots, _wider(window, 1)))
    early = _masked(lambda positions, slots, window: visible_slots(positions - 1, slots, _wider(window, -1)))
    missing = _masked(lambda positions, slots, window: visible_slots(positions, slots, None) | True)
    found = [
        Defect("mask_sees_next", "the mask is off by one: a token also sees the slot after its own", late),
        Defect("mask_hides_self", "the mask is off by one: a token does not see its own slot", early),
        Defect("mask_missing", "the mask is missing: every token sees every slot, empty ones included", missing),
    ]
    if config.sliding_window is None or "sliding_attention" not in config.layer_types:
        return found
    window = config.sliding_window
    wide = _masked(lambda positions, slots, own: visible_slots(positions, slots, _wider(own, 1)))
    narrow = _masked(lambda positions, slots, own: visible_slots(positions, slots, _wider(own, -1)))
    none = _masked(lambda positions, slots, own: visible_slots(positions, slots, None))
    everywhere = _masked(lambda positions, slots, own: visible_slots(positions, slots, window))
    found += [
        Defect("window_one_more", f"the sliding window is off by one: {window + 1} slots instead of {window}", wide),
        Defect("window_one_less", f"the sliding window is off by one: {window - 1} slots instead of {window}", narrow),
        Defect("window_dropped", "the sliding window is ignored: its layers see the whole prefix", none),
    ]
    if "full_attention" in config.layer_types:
        exchanged = _masked(lambda positions, slots, own: visible_slots(positions, slots, None if own else window))
        cause = "sliding layers see the whole prefix, and layers with full attention have the window"
        found += [
            Defect("window_everywhere", "layers with full attention have a sliding window too", everywhere),
            Defect("windows_exchanged", cause, exchanged),
        ]
    return found


Mask = Callable[[torch.Tensor, torch.Tensor, "int | None"], torch.Tensor]


def _masked(mask: Mask) -> type[LayerBlock]:
    class WrongMask(StepBlock):
        def change(self, step: Step, slots: int) -> Step:
            return step._replace(mask_B1SM=mask(step.position_ids_BS, torch.arange(slots), self.window))

    return WrongMask


def _wider(window: int | None, by: int) -> int | None:
    return None if window is None else window + by


def cache_defects(config: ModelConfig, position: int | None) -> list[Defect]:
    """Entries written to a neighbouring slot, or not at all. `position` is where the artifact first goes wrong."""
    found = []
    if position is not None:
        cause = f"a stale slot: slot {position} keeps what it held before its token was written"
        found.append(Defect("stale_slot", cause, _stale(position)))
    return [
        *found,
        Defect("slot_late", "the cache slot is off by one: entries are written one slot too late", _shifted_slots(1)),
        Defect(
            "slot_early", "the cache slot is off by one: entries are written one slot too early", _shifted_slots(-1)
        ),
        Defect(
            "slot_zero",
            "every call writes from slot 0 on, as a scatter without write indices does",
            _SlotZero,
        ),
        Defect("cache_not_written", "the cache is not written: new tokens' slots keep what they held", _stale(None)),
    ]


def misread(reads: CacheReads, *, lost: bool) -> Defect:
    """Layers that find another cache's entries in their own or none at all, as it was seen.

    Args:
        reads: what they find.
        lost: each cache has its own entries, but for those that are gone; else some have each other's.
    """
    told = [_reads_of(place, reads[place]) for place in sorted(reads)]
    more = f", and {len(told) - 4} more" if len(told) > 4 else ""
    name, what = (LOST, "lost between calls") if lost else (EXCHANGED, "exchanged")
    return Defect(name, f"caches are {what}: {', '.join(told[:4])}{more}", reads=reads)


def _reads_of(place: CachePlace, source: CachePlace | None) -> str:
    layer, kind = place
    if source is None:
        return f"layer {layer} finds no {kind}"
    other, other_kind = source
    if layer == other:
        return f"layer {layer} reads its {other_kind} as {kind}"
    return f"layer {layer} reads the {other_kind} of layer {other}{'' if kind == other_kind else f' as {kind}'}"


def _shifted_slots(by: int) -> type[LayerBlock]:
    class WrongSlot(StepBlock):
        def change(self, step: Step, slots: int) -> Step:
            last = slots - step.position_ids_BS.shape[1]
            return step._replace(write_indices_B=(step.write_indices_B + by).clamp(0, last))

    return WrongSlot


class _SlotZero(StepBlock):
    def change(self, step: Step, slots: int) -> Step:
        return step._replace(write_indices_B=torch.zeros_like(step.write_indices_B))


def _stale(position: int | None) -> type[LayerBlock]:
    class StaleAttention(Attention):
        def write(self, past_BKMH: torch.Tensor, update_BKSH: torch.Tensor, step: Step) -> torch.Tensor:
            if position is None:
                return past_BKMH
            written = super().write(past_BKMH, update_BKSH, step)
            written[:, :, position] = past_BKMH[:, :, position]
            return written

    return block_with(attention=StaleAttention)


def rope_defects(config: ModelConfig) -> list[Defect]:
    """Wrong pairs, wrong frequencies, wrong positions, or a turn where none belongs."""
    if config.learned_positions:
        return []
    swapped = not config.rope_interleaved
    neighbours, halves = (
        "neighbouring dimensions (2i, 2i + 1)",
        f"halves (i, i + {'H' if config.rotary_dim is None else 'R'}/2)",
    )
    wrong, right = (neighbours, halves) if swapped else (halves, neighbours)
    found = [
        Defect(
            "rope_interleaved" if swapped else "rope_halves",
            f"RoPE pairs {wrong}, and the weights are for {right}",
            _turned(lambda x, positions, cos, sin: rotary_embedding(x, cos, sin, positions, interleaved=swapped)),
        ),
        Defect("rope_missing", "RoPE is missing", _turned(lambda x, positions, cos, sin: x)),
        Defect(
            "rope_backwards", "RoPE turns backwards: the sign of the sine is wrong", block_with(attention=_Backwards)
        ),
        Defect("rope_on_v", "RoPE is applied to v as well", block_with(attention=_RopeOnV)),
        Defect("position_ahead", "in decode the positions given to RoPE are one too high", _decode_positions(1)),
        Defect("position_behind", "in decode the positions given to RoPE are one too low", _decode_positions(-1)),
    ]
    if config.sliding_rope_theta is not None and "full_attention" in config.layer_types:
        cause = f"layers with a window have the RoPE base {config.rope_theta:g} of the others"
        cause += f", and should have {config.sliding_rope_theta:g}"
        found.append(Defect("rope_base_of_others", cause, _tabled(replace(config, sliding_rope_theta=None))))
    if config.layers_without_rope:
        found.append(Defect("rope_everywhere", "layers without RoPE have it too", edit=_with_rope))
    if config.rope_scaling is not None and config.rope_scaling.rope_type != "dynamic":
        kind = config.rope_scaling.rope_type
        cause = f"the RoPE scaling of kind {kind} is dropped"
        found.append(Defect("rope_scaling_dropped", cause, _tabled(replace(config, rope_scaling=None))))
        if config.rope_scaling.attention_factor != 1.0:
            factor = config.rope_scaling.attention_factor
            cause = f"cosines and sines of RoPE are not multiplied by the attention factor {factor:.6g}"
            other = replace(config, rope_scaling=replace(config.rope_scaling, attention_factor=1.0))
            found.append(Defect("attention_factor_dropped", cause, _tabled(other)))
    if config.rotary_dim is not None:
        cause = f"RoPE turns whole heads, and belongs to their first {config.rotary_dim} dimensions alone"
        found.append(Defect("rope_partial_dropped", cause, _tabled(replace(config, rotary_dim=None))))
        for by in (2, -2):
            turned = config.rotary_dim + by
            if 0 < turned < config.head_dim:
                cause = f"RoPE turns {turned} dimensions of each head and should turn {config.rotary_dim}"
                found.append(Defect(f"rope_dims_{turned}", cause, _tabled(replace(config, rotary_dim=turned))))
    for theta in THETAS:
        if theta != config.rope_theta:
            cause = f"wrong theta: RoPE's base is {theta:g} and should be {config.rope_theta:g}"
            found.append(Defect(f"rope_theta_{theta:g}", cause, _tabled(replace(config, rope_theta=theta))))
    return found


def learned_position_defects(config: ModelConfig) -> list[Defect]:
    """Learned vectors of other positions, or none."""
    if not config.learned_positions:
        return []
    said = "in decode tokens get the learned vector of the position"
    found = [
        Defect("position_ahead", f"{said} after theirs", positions=lambda call: _moved(call, len(call) == 1)),
        Defect("position_behind", f"{said} before theirs", positions=lambda call: _moved(call, -(len(call) == 1))),
    ]
    for by in (1, 2):
        cause = f"every token gets the learned vector {by} further on: the first of the table are left out"
        found.append(Defect(f"positions_{by}_on", cause, positions=partial(_moved, by=by)))
    cause = "the learned vectors of the positions are not added"
    dropped = Defect("learned_positions_dropped", cause, ends=partial(replace, learned_positions=False))
    return [*found, dropped]


def _moved(call: range, by: int) -> range:
    return range(call.start + by, call.stop + by)


def _with_rope(block: Block) -> None:
    block.self_attn.has_rope = True


def _tabled(other: ModelConfig) -> type[LayerBlock]:
    class WrongTable(StepBlock):
        def change(self, step: Step, slots: int) -> Step:
            cos, sin = _table(other.rope_of(self.layer), rope_table_rows(other, slots))
            return step._replace(cos=cos, sin=sin)

    return WrongTable


Turn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _turned(turn: Turn) -> type[LayerBlock]:
    class WrongTurn(Attention):
        def rotate(
            self, x_BNSH: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
        ) -> torch.Tensor:
            return turn(x_BNSH, position_ids_BS, cos, sin)

    return block_with(attention=WrongTurn)


class _Backwards(Attention):
    def rotate(
        self, x_BNSH: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        return super().rotate(x_BNSH, position_ids_BS, cos, -sin)


class _RopeOnV(Attention):
    def project(
        self, x_TD: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q_BNSH, k_BKSH, v_BKSH = super().project(x_TD, position_ids_BS, cos, sin)
        return q_BNSH, k_BKSH, self.turn(v_BKSH, position_ids_BS, cos, sin)


def _decode_positions(by: int) -> type[LayerBlock]:
    class WrongPosition(Attention):
        def rotate(
            self, x_BNSH: torch.Tensor, position_ids_BS: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
        ) -> torch.Tensor:
            shift = by if position_ids_BS.shape[1] == 1 else 0
            return super().rotate(x_BNSH, (position_ids_BS + shift).clamp(0, cos.shape[0] - 1), cos, sin)

    return block_with(attention=WrongPosition)
