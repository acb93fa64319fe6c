"""Decoders with one thing wrong each, for the checks to find."""

from __future__ import annotations

from collections.abc import Callable

import torch

from blockexport.models.block.decoder_model import DecoderModel
from blockexport.runtime.eager import EagerDecoder

Breaker = Callable[["Broken", torch.Tensor, torch.Tensor], torch.Tensor]


class Broken(EagerDecoder):
    """An eager decoder whose runs go through `breaker(decoder, inputs, position_ids)`."""

    def __init__(self, model: DecoderModel, max_sequence_length: int, breaker: Breaker) -> None:
        self.breaker = breaker
        super().__init__(model, max_sequence_length)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():  # a breaker may write into the cache
            return self.breaker(self, inputs, position_ids_BS)

    def sound(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """The run with nothing wrong."""
        return super()._run(inputs, position_ids_BS)


class LeakyModel(DecoderModel):
    """Every query also sees the slot after its own."""

    def enter(
        self, inputs: torch.Tensor, position_ids_BS: torch.Tensor, past_key_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        x_TD, write_indices_B, _ = super().enter(inputs, position_ids_BS, past_key_BKMH)
        _, _, masks = super().enter(inputs, position_ids_BS + 1, past_key_BKMH)
        return x_TD, write_indices_B, masks


class ForgetfulModel(DecoderModel):
    """No query sees slot 0, except that of position 0."""

    def enter(
        self, inputs: torch.Tensor, position_ids_BS: torch.Tensor, past_key_BKMH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        x_TD, write_indices_B, masks = super().enter(inputs, position_ids_BS, past_key_BKMH)
        for mask in masks:
            mask[..., 0] &= position_ids_BS[:, None] == 0
        return x_TD, write_indices_B, masks


def noise_at(position: int, size: float) -> Breaker:
    """One logit of one position off by `size`."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        outputs = decoder.sound(inputs, position_ids_BS).clone()
        for row, column in (position_ids_BS == position).nonzero().tolist():
            outputs[row, column, 3] += size
        return outputs

    return run


def noise_everywhere(size: float) -> Breaker:
    """Random noise on every output."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        outputs = decoder.sound(inputs, position_ids_BS)
        return outputs + size * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5))

    return run


def late_slot(first: int) -> Breaker:
    """Steps from position `first` on write to the slot before their own."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        late = position_ids_BS.shape[1] == 1 and int(position_ids_BS[0, 0]) >= first
        return decoder.sound(inputs, position_ids_BS - 1 if late else position_ids_BS)

    return run


def one_index_for_all_rows(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Every row is written where the first one is."""
    return decoder.sound(inputs, position_ids_BS[:1].expand_as(position_ids_BS).contiguous())


def rows_exchange_caches(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """After each run, row b's layer-1 values lie in row b + 1."""
    outputs = decoder.sound(inputs, position_ids_BS)
    decoder._past[3] = decoder._past[3].roll(1, 0)
    return outputs


def stale_step(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """A step leaves the keys of layer 1 as they were."""
    before = decoder._past[2]
    outputs = decoder.sound(inputs, position_ids_BS)
    if position_ids_BS.shape[1] == 1:
        decoder._past[2] = before
    return outputs


def looks_ahead(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """An output also depends on the next token; the caches do not."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    outputs[:, :-1] += 1e-3 * inputs[:, 1:, None]
    return outputs


def always_the_same(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """The outputs do not depend on the tokens."""
    return decoder.sound(torch.full_like(inputs, 7), position_ids_BS)


def second_choice(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """A step's two likeliest tokens change places at position 46."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    if position_ids_BS.shape[1] == 1 and int(position_ids_BS[0, 0]) == 46:
        best = outputs[0, 0].topk(2)
        outputs[0, 0, best.indices] = best.values.flip(0)
    return outputs


def one_step_in_a_gap(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Single steps of one row from position 48 to 54, between the teacher-forced steps and the last slots, are off."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    if position_ids_BS.shape == (1, 1) and 48 <= int(position_ids_BS) <= 54:
        outputs[..., 3] += 2e-3
    return outputs


def many_rows(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Four rows and more are off."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    if decoder.batch_size > 3:
        outputs[3, ..., 3] += 2e-3
    return outputs


def rows_late_in_the_cache(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """One of several rows is off from position 61 on."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    if decoder.batch_size > 1:
        outputs[..., 3] += 2e-3 * (position_ids_BS > 60)
    return outputs


def gain(factor: float) -> Breaker:
    """What a call stores as keys of layer 1 is too large by `factor`."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        outputs = decoder.sound(inputs, position_ids_BS)
        decoder._past[2][:, :, int(position_ids_BS[0, 0]) : int(position_ids_BS[0, -1]) + 1] *= factor
        return outputs

    return run


def slots_exchanged(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """The first two slots of layer 2's values change places once both are written."""
    outputs = decoder.sound(inputs, position_ids_BS)
    if int(position_ids_BS[0, 0]) <= 1 <= int(position_ids_BS[0, -1]):
        decoder._past[5][:, :, [0, 1]] = decoder._past[5][:, :, [1, 0]]
    return outputs
