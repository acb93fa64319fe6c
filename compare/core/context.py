"""What the checks share: the artifact, eager in the same precision, the reference, and runs of each made only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from blockexport.compare.core.could_fail import lost_in, spread_over_positions
from blockexport.compare.core.embeddings import starts_of
from blockexport.compare.core.evidence import called, fed
from blockexport.compare.core.expected import Expected, Run
from blockexport.compare.core.logit_distance import Distances, Errors, finite_rows
from blockexport.compare.core.noise import Floor, floor_of
from blockexport.compare.core.nudge import Looks
from blockexport.compare.core.position_plan import Plan
from blockexport.compare.core.reference import Reference
from blockexport.compare.core.watched import Watched
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.kept_tensors import KeptTensors
from blockexport.models.interface import Ends, Pooling
from blockexport.models.progress import Progress, counted, silent
from blockexport.runtime.decoder import Decoder

if TYPE_CHECKING:
    import onnx_ir as ir

    from blockexport.compare.audits.artifact_weights import ArtifactWeights


@dataclass(frozen=True)
class Row:
    """One row of the batched run: its own tokens, and how many of them are its prompt."""

    ids_S: torch.Tensor
    prompt: int


@dataclass(frozen=True)
class Walk:
    """What came of feeding the judged sequence to a decoder: its errors, and where any output was NaN or infinite."""

    errors: Errors
    not_finite: list[int]  # positions, judged or not


class CheckContext:
    """Everything a check may look at. Expensive parts are made on first use and kept.

    Attributes:
        decoder: the artifact being judged.
        eager: gives eager PyTorch on the same weights in the artifact's precision, with the outputs of every token, but
            for embeddings.
        original: the source as it was opened.
        checkpoint: the same, which every pass of the reference and of eager reads: what has to be dequantised is kept.
        plan: the stretches of the judged sequence.
        ids_S: the judged sequence, int64, M tokens when `to_last_slot`, else up to the last decode step.
        rows: rows of unequal length for the batched run.
        weights: gives the weights inside the artifact's file; None when there is no file.
        graph: gives the artifact's ONNX graph; None when it has none.
        growing: opens the artifact with a cache that has so many slots at first; None where none grows.
        in_integers: opens it with activations rounded to 8 bits; None where nothing is known to run it so.
    """

    def __init__(
        self,
        decoder: Decoder,
        eager: Callable[[Checkpoint], Decoder],
        checkpoint: Checkpoint,
        plan: Plan,
        ids_S: torch.Tensor,
        *,
        to_last_slot: bool = True,
        rows: Sequence[Row] = (),
        weights: Callable[[], ArtifactWeights] | None = None,
        graph: Callable[[], ir.Graph] | None = None,
        growing: Callable[[int], Decoder] | None = None,
        in_integers: Callable[[], Decoder] | None = None,
        progress: Progress = silent,
    ) -> None:
        self.decoder = Watched(decoder)
        self._make_eager = eager
        self._eager: Watched | None = None
        self.original = checkpoint
        self.checkpoint = KeptTensors(checkpoint)
        self.config = checkpoint.config
        self.plan = plan
        self.to_last_slot = to_last_slot
        self.ids_S = ids_S
        self.rows = list(rows)
        self.weights = weights
        self.graph = graph
        self.growing = growing
        self.in_integers = in_integers
        self.progress = progress
        self._looks = Looks[Run](lambda nudges: self.expected.runs_in(self.decoder.dtype, nudges))

    def heard_by(self, progress: Progress) -> CheckContext:
        """Itself, with another listener from now on."""
        self.progress = progress
        return self

    @property
    def no_rows(self) -> str | None:
        """Why another tool's artifact takes one row at a time; None where it takes several."""
        return None if self.decoder.foreign is None else self.decoder.foreign.no_rows

    @property
    def no_slots(self) -> str | None:
        """Why another tool's cache has no slots that can be chosen; None where it has."""
        return None if self.decoder.foreign is None else self.decoder.foreign.no_slots

    @property
    def has_top1(self) -> bool:
        """Whether outputs are a distribution over tokens, and no hidden states or embeddings."""
        return self.ends.to_logits

    @property
    def ends(self) -> Ends:
        """The artifact's."""
        return self.decoder.interface.ends

    @property
    def eager(self) -> Watched:
        """Eager PyTorch in the artifact's precision."""
        if self._eager is None:
            self._eager = Watched(self._make_eager(self.checkpoint))
        return self._eager

    def listen(self) -> None:
        """Forget which outputs of the artifact and of eager were not finite."""
        self.decoder.listen()
        if self._eager is not None:
            self._eager.listen()

    @property
    def eager_lost(self) -> list[int]:
        """Where eager's were not, since `listen`; see `Watched.lost`."""
        return [] if self._eager is None else self._eager.lost

    def drop_eager(self) -> None:
        """Free eager's weights; they are loaded again when they are asked for."""
        self._eager = None

    @cached_property
    def reference(self) -> Reference:
        """The float64 reference over the checkpoint."""
        return Reference(self.checkpoint, ends=self.ends)

    @cached_property
    def judged_positions(self) -> list[int]:
        """Positions that are judged along the plan's calls."""
        plan = self.plan
        judged = set(plan.prefill_positions) | set(plan.decode_positions)
        return sorted(judged | set(plan.last_positions)) if self.to_last_slot else sorted(judged)

    @cached_property
    def reference_positions(self) -> list[int]:
        """Positions of the sequence whose reference outputs are kept: those that any walk is judged at.

        They begin with all positions of prefill and decode, which are therefore their own indices here. What is pooled
        can be made of any.
        """
        if self.ends.pooling is not None:
            return list(range(len(self.ids_S)))
        spread = self.plan.spread_positions if self.to_last_slot else []
        return sorted({*self.judged_positions, *spread})

    @cached_property
    def expected(self) -> Expected:
        """What outputs should be, of the judged sequence at `reference_positions`, and of each row."""
        sequences = [self.ids_S, *(row.ids_S for row in self.rows)]
        positions = [self.reference_positions, *(range(len(row.ids_S)) for row in self.rows)]
        return Expected(self.reference, self.ends, sequences, positions, lambda *said: self.progress(*said))

    def starts_in_row(self, positions: Sequence[int], prompt: int) -> list[int]:
        """The first tokens that the outputs of a prompt, and of the steps after it, are made of."""
        mean = self.ends.pooling is Pooling.MEAN
        return [0 if mean and position < prompt else position for position in positions]

    def inputs(self, decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
        """What `decoder` takes for token ids of any shape."""
        return fed(self.checkpoint, decoder.interface, ids)

    @cached_property
    def artifact_walk(self) -> Walk:
        """The artifact along the judged sequence, in the plan's calls."""
        # Unwatched: the walk serves several checks, and each tells of its own positions.
        return self.walk(self.decoder.decoder, self._plan_calls, self.judged_positions, "artifact")

    @cached_property
    def artifact_errors(self) -> Errors:
        """The artifact's errors at `judged_positions`."""
        return self.artifact_walk.errors

    @cached_property
    def eager_errors(self) -> Errors:
        """Eager's own errors along the same calls, at `reference_positions`: one half of the noise floor."""
        return self.walk(self.eager.decoder, self._plan_calls, self.reference_positions, "eager").errors

    def cached_errors(self, calls: Sequence[range], seen: Sequence[int]) -> Errors:
        """Eager's own errors at some positions, in calls of which the artifact gave outputs there; in those of the plan
        where an output does not depend on the calls."""
        if self.ends.pooling is None:
            return self.eager_errors.select(seen)
        return self.walk(self.eager, calls, seen, "eager, the same calls").errors.select(seen)

    def runs(
        self, positions: Sequence[int], row: int | None = None, starts: Sequence[int] | None = None
    ) -> Iterator[list[Distances]]:
        """Eager's own errors on a whole sequence without a cache, in the artifact's precision, in several runs.

        Of the judged sequence, or of a row, at some of its positions: those of a first look and, for an artifact that
        leaves their floor, those of a second (`nudge.py`). Both are made once, and the second only when asked for.
        `starts` are as in `Expected.at`.
        """
        for look in self._looks:
            yield [run(0 if row is None else 1 + row, positions, starts or positions) for run in look]

    def floors(self, cached: Distances) -> Iterator[Floor]:
        """The floor at the positions of `cached`, eager's errors in the calls that are judged; then a firmer one."""
        for runs in self.runs(cached.positions_P.tolist(), None, cached.starts_P.tolist()):
            yield floor_of([cached, *runs], self.decoder.dtype)

    @cached_property
    def doubts(self) -> list[str]:
        """Why no outputs of this sequence say anything: the reference's hardly depend on the position."""
        spread = spread_over_positions(self.expected.at(self.reference_positions))
        if spread is None:
            return []
        return lost_in("from position to position", spread, self.floor(self.eager_errors.positions_P.tolist()))

    def observed(self, positions: Sequence[int]) -> list[int]:
        """Those of `positions` that the artifact gives outputs for: with one for each row, not inside a prefill."""
        seen = set(self.artifact_errors.positions_P.tolist())
        return [p for p in positions if p in seen]

    def floor(self, positions: Sequence[int]) -> Floor:
        """The floor of the stretch `positions` along the plan's calls, from all runs that the checks have asked for."""
        floors = self.floors(self.eager_errors.select(positions))
        first = next(floors)
        return first if len(self._looks.made) == 1 else next(floors)

    @property
    def max_floor(self) -> dict[int, float]:
        """What the verdict holds the largest difference at each position against, stretch by stretch."""
        last = self.plan.last_positions if self.to_last_slot else range(0)
        found = dict[int, float]()
        for stretch in (last, self.plan.prefill_positions, self.plan.decode_positions):
            seen = self.observed(stretch)
            if seen:
                found.update(zip(seen, self.floor(seen).max_P.tolist(), strict=True))
        return found

    @property
    def _plan_calls(self) -> list[range]:
        return self.plan.calls(to_last_slot=self.to_last_slot)

    def walk(self, decoder: Decoder, calls: Sequence[range], positions: Sequence[int], label: str) -> Walk:
        """Feed the judged sequence in `calls`, each output measured as it comes.

        Args:
            decoder: the artifact, or eager.
            calls: the positions of each call in turn, from 0 on.
            positions: some of `reference_positions`; at the others outputs need only be finite.
            label: for the progress.
        """
        wanted = set(positions) & set(self.reference_positions)
        inputs = self.inputs(decoder, self.ids_S[None])
        decoder.reset(1)
        parts: list[Errors] = []
        not_finite: list[int] = []
        done = 0
        for given, outputs_SV in called(decoder, inputs, counted(calls, f"{label}: call", self.progress)):
            finite_S = finite_rows(outputs_SV).tolist()
            not_finite += [p for p, finite in zip(given, finite_S, strict=True) if not finite]
            starts, done = starts_of(decoder.interface.ends, given, done), given[-1] + 1
            kept = [(row, p, start) for row, (p, start) in enumerate(zip(given, starts, strict=True)) if p in wanted]
            if kept:
                rows, seen, begun = zip(*kept, strict=True)
                parts.append(self.expected.measured(outputs_SV[list(rows)], seen, begun))
        return Walk(Errors.join(parts), not_finite)

    def run_rows(
        self, decoder: Decoder, ids_BS: torch.Tensor, prompts: Sequence[int], width: int
    ) -> list[torch.Tensor]:
        """Outputs [P, V] of each row of a batch: of its prompt, as far as `decoder` gives them, and of each step after.

        Args:
            decoder: the artifact, or eager.
            ids_BS: `width` tokens of each row, of which those behind its prompt are padding, and one for each step.
            prompts: valid tokens of each row.
            width: columns of the prefill.
        """
        inputs = self.inputs(decoder, ids_BS)
        decoder.reset(len(prompts))
        outputs_BSV = decoder.prefill(inputs[:, :width], torch.tensor(prompts))
        parts = [[outputs_BSV[row, :prompt].cpu()] for row, prompt in enumerate(prompts)]
        for i in range(width, ids_BS.shape[1]):
            outputs_B1V = decoder.step(inputs[:, i : i + 1]).cpu()
            for row, part in enumerate(parts):
                part.append(outputs_B1V[row].clone())
        return [torch.cat(part) for part in parts]
