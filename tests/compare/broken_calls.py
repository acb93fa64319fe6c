"""Decoders with one thing wrong in the way they are called: chunks, slots, padding, rows, repetition."""

from __future__ import annotations

from collections.abc import Callable

import torch

from blockexport.models.errors import UsageError
from tests.compare.broken import Breaker, Broken


def chunk_sees_only_itself(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """A chunk after a prefix does not see the prefix; a single token does."""
    start = int(position_ids_BS[0, 0])
    if start == 0 or position_ids_BS.shape[1] == 1:
        return decoder.sound(inputs, position_ids_BS)
    before = decoder._past
    decoder._past = [tensor.clone() for tensor in before]
    for tensor in decoder._past:
        tensor[:, :, :start] = 0
    outputs = decoder.sound(inputs, position_ids_BS)
    for tensor, old in zip(decoder._past, before, strict=True):
        tensor[:, :, :start] = old[:, :, :start]
    return outputs


def rewrites(layer: int, slot_of: Callable[[int, int], int]) -> Breaker:
    """After each call the values in slot `slot_of(start, stop)` of a layer are off by one unit in the last place."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        outputs = decoder.sound(inputs, position_ids_BS)
        slot = slot_of(int(position_ids_BS[0, 0]), int(position_ids_BS[0, -1]) + 1)
        if 0 <= slot < decoder.max_sequence_length:
            value_BKMH = decoder._past[2 * layer + 1]
            value_BKMH[:, :, slot] = torch.nextafter(value_BKMH[:, :, slot], torch.tensor(torch.inf))
        return outputs

    return run


def values_off(layer: int, slot: int) -> Breaker:
    """The outputs are right, and a slot of one layer's values comes to hold twice what it should."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        outputs = decoder.sound(inputs, position_ids_BS)
        if int(position_ids_BS[0, 0]) <= slot <= int(position_ids_BS[0, -1]):
            decoder._past[2 * layer + 1][:, :, slot] *= 2
        return outputs

    return run


def sees_unwritten(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Every unwritten slot has a hair's weight: nothing on a cache of zeros, something on a used one."""
    return decoder.sound(inputs, position_ids_BS) + _of_large_unwritten(decoder, position_ids_BS)


def stores_unwritten(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """As above, but in what is stored of the last layer's values."""
    leak = _of_large_unwritten(decoder, position_ids_BS)
    outputs = decoder.sound(inputs, position_ids_BS)
    decoder._past[5][:, :, int(position_ids_BS.max())] += leak
    return outputs


def _of_large_unwritten(decoder: Broken, position_ids_BS: torch.Tensor) -> float:
    """A hair of what lies in the unwritten slots of layer 0's values, where it is larger than any value of a token:
    what a prompt's padding leaves there would be at the edge of one unit in the last place, on this side or that."""
    unwritten = decoder._past[1][:, :, int(position_ids_BS.max()) + 1 :].double().abs()
    return float(1e-8 * unwritten[unwritten > 100].sum())


class Unchecked(Broken):
    """Refuses nothing: what goes past the last slot is written into the last slots."""

    def _check(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> None:
        over = int(position_ids_BS.max()) + 1 - self.max_sequence_length
        position_ids_BS -= max(over, 0)


class Dropping(Broken):
    """Refuses nothing: what goes past the last slot is not written at all."""

    def _check(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> None: ...

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        if int(position_ids_BS.max()) < self.max_sequence_length:
            return self.sound(inputs, position_ids_BS)
        return torch.zeros(*position_ids_BS.shape, self.config.vocab_size)


class Narrow(Broken):
    """Refuses the last slot as well."""

    def _check(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> None:
        if int(position_ids_BS.max()) + 1 >= self.max_sequence_length:
            raise UsageError("full")


class LateRefusal(Broken):
    """Refuses what goes past the last slot after having written it."""

    def _check(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> None:
        over = int(position_ids_BS.max()) + 1 - self.max_sequence_length
        if over > 0:
            self.sound(inputs, position_ids_BS - over)
        super()._check(inputs, position_ids_BS)


def last_slot_not_written(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """The last slot of layer 2's keys is empty again after its token has used it: no output can tell."""
    before = decoder._past[4][:, :, -1].clone()
    outputs = decoder.sound(inputs, position_ids_BS)
    decoder._past[4][:, :, -1] = before
    return outputs


class BehindPadding(Broken):
    """Steps go on after the padding instead of over it."""

    def prefill(self, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        return super().prefill(inputs)


def keeps_padding(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """A step leaves the keys of layer 0 alone where the slot already holds something."""
    before = decoder._past[0]
    outputs = decoder.sound(inputs, position_ids_BS)
    if position_ids_BS.shape[1] == 1:
        for row, slot in enumerate(position_ids_BS[:, 0].tolist()):
            if bool(before[row, :, slot].any()):
                decoder._past[0][row, :, slot] = before[row, :, slot]
    return outputs


def last_token_leaks(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """A first call of 25 tokens, which only a padded one is here, moves its values by the last token, by a hair."""
    outputs = decoder.sound(inputs, position_ids_BS)
    if position_ids_BS.shape[1] == 25 and int(position_ids_BS[0, 0]) == 0:
        decoder._past[3][:, :, 3] += 1e-6 * inputs[:, -1:, None]
    return outputs


def batch_has_its_own_noise(size: float) -> Breaker:
    """With more than one row, other kernels: noise on everything."""

    def run(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        outputs = decoder.sound(inputs, position_ids_BS)
        if decoder.batch_size == 1:
            return outputs
        return outputs + size * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5))

    return run


def rows_share_a_scale(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """A batch is scaled by something that depends on all its rows, too little for any floor to notice."""
    outputs = decoder.sound(inputs, position_ids_BS)
    return outputs if decoder.batch_size == 1 else outputs * (1 + 2.4e-7 * (int(inputs.sum()) % 3))


def never_twice(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Every other run of more than 30 tokens has one logit off by one unit in the last place."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    if position_ids_BS.shape[1] > 30:
        decoder.runs = getattr(decoder, "runs", 0) + 1  # type: ignore[attr-defined]
        if decoder.runs % 2:  # type: ignore[attr-defined]
            outputs[0, 7, 5] = torch.nextafter(outputs[0, 7, 5], torch.tensor(torch.inf))
    return outputs


def late_steps_never_twice(decoder: Broken, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Every other single step from position 46 on has one logit off by one unit in the last place."""
    outputs = decoder.sound(inputs, position_ids_BS).clone()
    if position_ids_BS.shape[1] == 1 and int(position_ids_BS.max()) >= 46:
        decoder.steps = getattr(decoder, "steps", 0) + 1  # type: ignore[attr-defined]
        if decoder.steps % 2:  # type: ignore[attr-defined]
            outputs[0, 0, 5] = torch.nextafter(outputs[0, 0, 5], torch.tensor(torch.inf))
    return outputs
