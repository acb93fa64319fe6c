"""What an artifact said on some calls: all that Locate and Diagnose know of its behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from blockexport.compare.core.cached_path import CachedPath
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.progress import Progress, silent
from blockexport.runtime.decoder import Decoder


@dataclass(frozen=True)
class Evidence:
    """An artifact's outputs on some calls.

    Attributes:
        ids_S: the tokens.
        calls: the positions given in each call.
        positions: those whose outputs are here.
        outputs_PV: logits (hidden states when `headless`) in the artifact's type.
        max_sequence_length: M.
        repeated_PV: the outputs of a second, equal run; None when there was none.
        headless: see `Decoder`; so is `last_logits_only`.
        progress: told of the layers of eager's runs.
    """

    ids_S: torch.Tensor
    calls: Sequence[range]
    positions: Sequence[int]
    outputs_PV: torch.Tensor
    max_sequence_length: int
    repeated_PV: torch.Tensor | None = None
    headless: bool = False
    last_logits_only: bool = False
    progress: Progress = field(default=silent, repr=False, compare=False)
    _sound: dict[torch.dtype, torch.Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def dtype(self) -> torch.dtype:
        """The artifact's precision."""
        return self.outputs_PV.dtype

    def path(self, checkpoint: Checkpoint, dtype: torch.dtype) -> CachedPath:
        """Eager on the same calls."""
        return CachedPath(checkpoint, dtype, self.ids_S, self.calls, self.max_sequence_length, headless=self.headless)

    def sound(self, checkpoint: Checkpoint, dtype: torch.dtype) -> torch.Tensor:
        """Outputs of the model with nothing wrong at `positions`, run once for each type."""
        if dtype not in self._sound:
            self._sound[dtype] = self.path(checkpoint, dtype).run_clean(self.positions, self.progress)
        return self._sound[dtype]

    def thinned(self, count: int) -> Evidence:
        """At most about `count` of the positions, spread over all, the last one among them."""
        step = -(-len(self.positions) // max(count, 1))
        return self.at(list(range(len(self.positions) - 1, -1, -step))[::-1])

    def at(self, kept: Sequence[int]) -> Evidence:
        """The outputs at some of the positions, given by their index."""
        kept = list(kept)
        made = replace(
            self,
            positions=[self.positions[i] for i in kept],
            outputs_PV=self.outputs_PV[kept],
            repeated_PV=None if self.repeated_PV is None else self.repeated_PV[kept],
        )
        made._sound.update({dtype: outputs_PV[kept] for dtype, outputs_PV in self._sound.items()})
        return made


def gather(
    decoder: Decoder,
    checkpoint: Checkpoint,
    ids_S: torch.Tensor,
    calls: Sequence[range],
    positions: Sequence[int],
    *,
    twice: bool = False,
    progress: Progress = silent,
) -> Evidence:
    """Run an artifact's calls on one row and keep its outputs at some of the positions.

    Args:
        decoder: the artifact.
        checkpoint: the source, for the embeddings of a headless stack.
        ids_S: int64, the tokens.
        calls: the positions given in each call.
        positions: those to keep; what the artifact gives no outputs for is left out.
        twice: run everything again, to see whether the artifact repeats itself.
        progress: told of the calls done, and later of eager's layers.
    """
    first, kept = _run(decoder, checkpoint, ids_S, calls, positions, progress)
    again = _run(decoder, checkpoint, ids_S, calls, positions, progress)[0] if twice else None
    return Evidence(
        ids_S=ids_S,
        calls=calls,
        positions=kept,
        outputs_PV=first,
        max_sequence_length=decoder.max_sequence_length,
        repeated_PV=again,
        headless=decoder.headless,
        last_logits_only=decoder.last_logits_only,
        progress=progress,
    )


def _run(
    decoder: Decoder,
    checkpoint: Checkpoint,
    ids_S: torch.Tensor,
    calls: Sequence[range],
    positions: Sequence[int],
    progress: Progress,
) -> tuple[torch.Tensor, list[int]]:
    ids_1S = ids_S[None]
    inputs = checkpoint.read(EMBEDDING)[ids_1S].to(decoder.dtype) if decoder.headless else ids_1S
    wanted, kept, outputs = set(positions), [], []
    decoder.reset(1)
    for done, call in enumerate(calls):
        progress("explain: the artifact, call", done, len(calls))
        outputs_SV = decoder.prefill(inputs[:, call.start : call.stop])[0]
        for row, position in enumerate(list(call)[-len(outputs_SV) :]):
            if position in wanted:
                kept.append(position)
                outputs.append(outputs_SV[row].clone())
    progress("explain: the artifact, call", len(calls), len(calls))
    return torch.stack(outputs), kept
