"""Linear layers and embeddings whose weights are left as allocated, since a checkpoint's take their place at once.

Pages that are never touched cost neither time nor memory. The meta device would do as well, but it loads torch's
symbolic shapes to get there, a second of imports.
"""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """`torch.nn.Linear` without random initial weights."""

    def reset_parameters(self) -> None:
        """Nothing: the weights stay as they were allocated."""


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` without random initial weights."""

    def reset_parameters(self) -> None:
        """Nothing: the weights stay as they were allocated."""
