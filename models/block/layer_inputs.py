"""What the layers of one forward pass share, made once before the first of them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Step(NamedTuple):
    """Positions of the new tokens, where they are written, and which slots they may look at."""

    position_ids_BS: torch.Tensor  # int64; a row's positions count up by one
    write_indices_B: torch.Tensor  # int64, the first slot of each row's new entries
    mask_B1SM: torch.Tensor  # bool, True where a query may look
    cos: torch.Tensor  # float32 [rows, H/2]
    sin: torch.Tensor
