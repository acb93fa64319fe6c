"""Looking at the slots of a decoder's cache, and marking them so that every write into them shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from blockexport.runtime.decoder import Decoder


@dataclass(frozen=True)
class Mark:
    """How large the numbers are that mark the slots of keys and of values."""

    keys: float
    values: float

    def pattern(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """[1, K, 1, H] for the cache tensor of that index: every slot gets the same. Signs alternate, so that no score
        with a marked key is a sum of equal signs."""
        _, heads, _, head_dim = tensor.shape
        odd_KH = (torch.arange(heads)[:, None] + torch.arange(head_dim)[None, :]) % 2
        size = self.values if index % 2 else self.keys
        return ((1 - 2 * odd_KH) * size).to(tensor)[None, :, None, :]


def cache_tensors(decoder: Decoder, *, held: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Every cache tensor [B, K, M, H] with its name for people, in the order of `io_names.past_names`; `held` gives
    those of a cache that grows with the slots that there are now."""
    for layer in range(decoder.config.num_hidden_layers):
        key_BKMH, value_BKMH = decoder.held(layer) if held else decoder.cache(layer)
        yield f"keys of layer {layer}", key_BKMH
        yield f"values of layer {layer}", value_BKMH


def first_slots(cache_BKMH: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` slots of row 0, [count, K * H], as they are now."""
    return cache_BKMH[0, :, :count].transpose(0, 1).flatten(1).cpu().clone()


def slots_of_row(decoder: Decoder, count: int) -> list[torch.Tensor]:
    """Copies of the first `count` slots of row 0, a tensor [count, K * H] for each cache tensor."""
    return [first_slots(tensor, count) for _, tensor in cache_tensors(decoder)]


@torch.inference_mode()  # some decoders hold inference tensors, which nothing else may write to
def mark_slots(decoder: Decoder, mark: Mark) -> None:
    """Put the mark into every slot of every row."""
    for i, (_, tensor) in enumerate(cache_tensors(decoder)):
        tensor.copy_(mark.pattern(i, tensor))


@torch.inference_mode()  # as above
def copy_to_rows(decoder: Decoder, lengths_B: torch.Tensor) -> None:
    """Give the decoder as many rows as there are lengths, each with the cache of its one row, filled up to its length.

    Behind it a row keeps what the one row holds there, which it must not see.
    """
    one_row = [tensor[:1].clone() for _, tensor in cache_tensors(decoder)]
    decoder.reset(len(lengths_B))
    for (_, tensor), held in zip(cache_tensors(decoder), one_row, strict=True):
        tensor.copy_(held)  # to every row
    decoder.lengths_B = lengths_B.clone()


def unmarked(decoder: Decoder, mark: Mark, slots: range) -> list[str]:
    """Names of the tensors in which one of the `slots` no longer holds the mark."""
    names = []
    for i, (name, tensor) in enumerate(cache_tensors(decoder)):
        kept = tensor[:, :, slots.start : slots.stop]
        if not torch.equal(kept, mark.pattern(i, tensor).expand_as(kept)):
            names.append(name)
    return names
