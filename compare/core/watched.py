"""A decoder that is listened to: no check passes while an output it was given holds NaN or infinity."""

from __future__ import annotations

import torch

from blockexport.compare.core.logit_distance import finite_rows
from blockexport.runtime.decoder import Decoder


class Watched(Decoder):
    """Another decoder, and where its outputs were not finite since `listen` was last called.

    Attributes:
        lost: position of the first token of each call with NaN or infinity in an output. Padding does not count.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.interface = decoder.interface
        self.foreign = decoder.foreign
        self.lost: list[int] = []

    @property
    def lengths_B(self) -> torch.Tensor:
        """Filled slots of each row."""
        return self.decoder.lengths_B

    @lengths_B.setter
    def lengths_B(self, lengths_B: torch.Tensor) -> None:
        self.decoder.lengths_B = lengths_B

    def listen(self) -> None:
        """Forget what was heard."""
        self.lost = []

    def reset(self, batch_size: int = 1) -> None:
        """See `Decoder`."""
        self.decoder.reset(batch_size)

    def prefill(self, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        """See `Decoder`."""
        start = int(self.lengths_B.min())
        outputs = self.decoder.prefill(inputs, lengths_B)
        self._hear(outputs, inputs.shape[1], start, lengths_B)
        return outputs

    def prefill_rows(self, rows: range, inputs: torch.Tensor, lengths_B: torch.Tensor | None = None) -> torch.Tensor:
        """See `Decoder`."""
        start = int(self.lengths_B[rows.start : rows.stop].min())
        outputs = self.decoder.prefill_rows(rows, inputs, lengths_B)
        self._hear(outputs, inputs.shape[1], start, lengths_B)
        return outputs

    def make_room(self, slots: int) -> None:
        """See `Decoder`."""
        self.decoder.make_room(slots)

    def forward(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """See `Decoder`."""
        outputs = self.decoder.forward(inputs, position_ids_BS)
        self._hear(outputs, inputs.shape[1], int(position_ids_BS.min()), None)
        return outputs

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Decoder`."""
        return self.decoder.cache(layer)

    def _hear(self, outputs: torch.Tensor, length: int, start: int, lengths_B: torch.Tensor | None) -> None:
        finite_BS = finite_rows(outputs)
        if lengths_B is not None:
            position_S = torch.arange(length)[-finite_BS.shape[1] :]
            finite_BS = finite_BS | (position_S >= lengths_B[:, None]).to(finite_BS.device)
        if not bool(finite_BS.all()):
            self.lost.append(start)

    def _allocate(self, batch_size: int) -> None:
        self.decoder._allocate(batch_size)

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        return self.decoder._run(inputs, position_ids_BS)
