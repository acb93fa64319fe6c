"""The static KV cache: a plain tensor [B, K, M, H] per key and value, passed in and handed back, never hidden.

The slot of a token is its position. A query at position p sees slots 0..p, so whatever later slots hold (zeros, or
the padding of a shorter row) is masked until it is overwritten.
"""

from __future__ import annotations

import torch

from blockexport.models.config.model_config import ModelConfig


def _cache_write(past_BKMH: torch.Tensor, update_BKSH: torch.Tensor, write_indices_B: torch.Tensor) -> torch.Tensor:
    steps_S = torch.arange(update_BKSH.shape[2], device=update_BKSH.device)
    slots_B1S1 = (write_indices_B[:, None] + steps_S[None, :])[:, None, :, None]
    return past_BKMH.scatter(2, slots_B1S1.expand_as(update_BKSH), update_BKSH)


_library = torch.library.Library("blockexport", "FRAGMENT")
_library.define("cache_write(Tensor past, Tensor update, Tensor write_indices) -> Tensor")
_library.impl("cache_write", _cache_write, "CompositeImplicitAutograd")


def cache_write(past_BKMH: torch.Tensor, update_BKSH: torch.Tensor, write_indices_B: torch.Tensor) -> torch.Tensor:
    """A copy of the cache with row b's new entries at slots `write_indices[b]` .. + S - 1 (ONNX: TensorScatter)."""
    out: torch.Tensor = torch.ops.blockexport.cache_write(past_BKMH, update_BKSH, write_indices_B)
    return out


def visible_slots(position_ids_BS: torch.Tensor, slots_M: torch.Tensor, window: int | None) -> torch.Tensor:
    """The boolean mask [B, 1, S, M]: True where a query may look.

    A query at position p sees slots 0..p, or p - window + 1 .. p under a sliding window.
    """
    query_B1S1 = position_ids_BS[:, None, :, None]
    visible = slots_M <= query_B1S1
    return visible if window is None else visible & (slots_M > query_B1S1 - window)


def empty_cache(
    config: ModelConfig,
    batch_size: int,
    max_sequence_length: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> list[torch.Tensor]:
    """2L zeroed tensors [B, K, M, H], in the order of `io_names.past_names`.

    Zeros and not uninitialised memory: a masked slot that holds NaN would still poison the sum (0 x NaN).
    """
    shape = (batch_size, config.num_key_value_heads, max_sequence_length, config.head_dim)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 * config.num_hidden_layers)]
