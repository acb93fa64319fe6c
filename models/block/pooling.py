"""From the states of a text's tokens to its embedding: the last one, or their mean, and that brought to length 1.

As in sentence-transformers' modules Pooling and Normalize, https://sbert.net/docs/package_reference/sentence_transformer/models.html
"""

from __future__ import annotations

import torch

from blockexport.models.interface import Pooling

SHORTEST = 1e-12  # a vector below that length is divided by it, as torch.nn.functional.normalize has it


def last_columns(position_ids_BS: torch.Tensor) -> torch.Tensor:
    """Where each row has its highest position, int64 [B]: its last token; padding after it has lower positions."""
    return position_ids_BS.amax(1) - position_ids_BS[:, 0]


def at_columns(x_BSD: torch.Tensor, columns_B: torch.Tensor) -> torch.Tensor:
    """Each row's vector [B, D] in its column."""
    columns_B1D = columns_B[:, None, None].expand(-1, 1, x_BSD.shape[2])
    return x_BSD.gather(1, columns_B1D)[:, 0]


def pooled(x_BSD: torch.Tensor, last_B: torch.Tensor, pooling: Pooling, *, normalize: bool) -> torch.Tensor:
    """Embeddings [B, D] of rows whose last tokens are in the columns `last_B`, in the type of the states.

    Sums are taken in float32 or in the states' own type, whichever is wider.
    """
    dtype, half = x_BSD.dtype, x_BSD.dtype not in (torch.float32, torch.float64)
    wide_BSD = x_BSD.float() if half else x_BSD
    x_BD = mean_to(wide_BSD, last_B) if pooling is Pooling.MEAN else at_columns(wide_BSD, last_B)
    if normalize:
        x_BD = x_BD / torch.linalg.vector_norm(x_BD, dim=-1, keepdim=True).clamp(min=SHORTEST)
    return x_BD.to(dtype) if half else x_BD


def mean_to(x_BSD: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
    """Each row's mean [B, D] over its columns up to the last one, that included."""
    columns_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
    padding_BS1 = (columns_S[None] > last_B[:, None])[:, :, None]
    return x_BSD.masked_fill(padding_BS1, 0.0).sum(1) / (last_B + 1)[:, None].to(x_BSD.dtype)
