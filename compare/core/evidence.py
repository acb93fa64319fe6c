"""What an artifact said on some calls: all that Locate and Diagnose know of its behaviour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import torch

from blockexport.compare.core.cached_path import CachedPath
from blockexport.compare.core.figures import StretchFigures
from blockexport.compare.core.logit_distance import Distances, Errors, measure
from blockexport.compare.core.noise import Floor, floor_of, judge_by, outside
from blockexport.compare.core.nudge import Looks, Nudges, run_distances
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING
from blockexport.models.interface import Interface
from blockexport.models.progress import Progress, counted, silent
from blockexport.runtime.decoder import Decoder


@dataclass(frozen=True)
class Ground:
    """What outputs are held against.

    Attributes:
        positions: where.
        exact: gives float64's outputs there, [P, V].
        looks: gives eager's own errors in each of its runs; then those of more runs (`nudge.py`).
    """

    positions: Sequence[int]
    exact: Callable[[], torch.Tensor]
    looks: Callable[[], Iterable[list[Distances]]]


@dataclass(frozen=True)
class Evidence:
    """An artifact's outputs on some calls.

    Attributes:
        checkpoint: the source.
        ids_S: the tokens.
        calls: the positions given in each call.
        positions: those whose outputs are here.
        outputs_PV: logits (hidden states of a headless one, or embeddings) in the artifact's type.
        interface: of the artifact, and the checkpoint's config.
        repeated_PV: the outputs of a second, equal run; None when there was none.
        progress: told of the layers of eager's runs.
        ground: at these positions and more; made of eager's runs in these calls where there is none yet.
    """

    checkpoint: Checkpoint
    ids_S: torch.Tensor
    calls: Sequence[range]
    positions: Sequence[int]
    outputs_PV: torch.Tensor
    interface: Interface
    repeated_PV: torch.Tensor | None = None
    progress: Progress = field(default=silent, repr=False, compare=False)
    ground: Ground | None = field(default=None, repr=False, compare=False)

    @property
    def dtype(self) -> torch.dtype:
        """The artifact's precision."""
        return self.outputs_PV.dtype

    def path(self, dtype: torch.dtype) -> CachedPath:
        """Eager on the same calls."""
        slots, ends = self.interface.max_sequence_length, self.interface.ends
        return CachedPath(self.checkpoint, dtype, self.ids_S, self.calls, slots, ends)

    @cached_property
    def _ground(self) -> Ground:
        if self.ground is not None:
            return self.ground

        @cache
        def exact() -> torch.Tensor:
            return self.path(torch.float64).run_clean(self.positions, self.progress)

        def errors(nudges: Nudges) -> list[Distances]:
            path = self.path(self.dtype)
            runs = ([path.run_clean(self.positions, self.progress, nudge)] for nudge in nudges)
            return [one for (one,) in run_distances(nudges, runs, [exact()], [self.positions])]

        looks = Looks(errors)
        return Ground(self.positions, exact, lambda: looks)

    @cached_property
    def exact_PV(self) -> torch.Tensor:
        """Float64's outputs at `positions`."""
        where = {p: i for i, p in enumerate(self._ground.positions)}
        return self._ground.exact()[[where[p] for p in self.positions]]

    @cached_property
    def errors(self) -> Errors:
        """The artifact's, against float64."""
        return measure(self.outputs_PV, self.exact_PV, self.positions)

    @cached_property
    def _judged(self) -> tuple[StretchFigures, Floor]:
        runs = ([run.select(self.positions) for run in look] for look in self._ground.looks())
        return judge_by(
            self.errors, (floor_of(look, self.dtype) for look in runs), has_top1=self.interface.ends.to_logits
        )

    @property
    def floor(self) -> Floor:
        """The noise floor, from as many of eager's runs as the artifact needs (`noise.judge_by`)."""
        return self._judged[1]

    @property
    def differs(self) -> bool:
        """Whether the outputs leave the floor."""
        return bool(self.positions) and not self._judged[0].passed

    @property
    def wrong(self) -> list[int]:
        """The positions outside the floor."""
        return outside(self.errors, self.floor)

    def thinned(self, count: int) -> Evidence:
        """At most about `count` of the positions, spread over all, the last one among them."""
        step = -(-len(self.positions) // max(count, 1))
        return self.at(list(range(len(self.positions) - 1, -1, -step))[::-1])

    def at(self, kept: Sequence[int]) -> Evidence:
        """The outputs at some of the positions, given by their index."""
        kept = list(kept)
        return replace(
            self,
            positions=[self.positions[i] for i in kept],
            outputs_PV=self.outputs_PV[kept],
            repeated_PV=None if self.repeated_PV is None else self.repeated_PV[kept],
            ground=self._ground,
        )


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
    inputs, wanted = fed(checkpoint, decoder.interface, ids_S[None]), set(positions)

    def run() -> tuple[list[int], torch.Tensor]:
        kept, outputs = [], []
        decoder.reset(1)
        for given, outputs_PV in called(decoder, inputs, counted(calls, "explain: the artifact, call", progress)):
            for position, output_V in zip(given, outputs_PV, strict=True):
                if position in wanted:
                    kept.append(position)
                    outputs.append(output_V.clone())
        return kept, torch.stack(outputs)

    kept, first = run()
    return Evidence(
        checkpoint=checkpoint,
        ids_S=ids_S,
        calls=calls,
        positions=kept,
        outputs_PV=first,
        interface=replace(decoder.interface, config=checkpoint.config),
        repeated_PV=run()[1] if twice else None,
        progress=progress,
    )


def fed(checkpoint: Checkpoint, interface: Interface, ids: torch.Tensor) -> torch.Tensor:
    """What a decoder takes for token ids of any shape: the ids, or a headless stack's embeddings of them."""
    return checkpoint.read(EMBEDDING)[ids].to(interface.dtype) if interface.ends.headless else ids


def called(
    decoder: Decoder, inputs_1S: torch.Tensor, calls: Iterable[range]
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Feed one row call by call: the positions of each that have outputs, and those [P, V] while the call is done.

    The cache is left as it is before the first call.
    """
    for call in calls:
        outputs_PV = decoder.prefill(inputs_1S[:, call.start : call.stop])[0]
        yield list(call)[-len(outputs_PV) :], outputs_PV
