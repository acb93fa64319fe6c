"""After a failure, or when asked: where is the first difference, and which mistake would make it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from blockexport.compare.audits.coded_matrix import CodedCheckpoint
from blockexport.compare.audits.foreign_weights import Held
from blockexport.compare.checks.catalogue import choose_checks
from blockexport.compare.checks.check_parameters import ParameterFigures
from blockexport.compare.core.check import CheckResult, FailingCalls, Kind, Verdict
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.evidence import Evidence, Ground, gather
from blockexport.compare.core.logit_distance import Distances
from blockexport.compare.core.noise import outside
from blockexport.compare.core.position_plan import stepped
from blockexport.compare.explain.diagnose import Hints, diagnose
from blockexport.compare.explain.explanation import Explanation
from blockexport.compare.explain.locate import FIRST_CALLS, WatchedSites, locate
from blockexport.compare.explain.location import Location, Search
from blockexport.compare.explain.misread_caches import misread_caches
from blockexport.compare.explain.wrong_matrices import wrong_matrices
from blockexport.compare.explain.wrong_slot import WrongSlot, first_wrong_slot
from blockexport.compare.explain.wrong_weights import wrong_weights
from blockexport.models.errors import ArtifactError, NotJudgedError
from blockexport.runtime.replay.replay_graph import ReplayGraph

CALLS_AFTER = 4  # calls after the first wrong one that are looked at as well
PROMPT = 64  # tokens of the prompt when it is wrong itself: each defect that may be the cause is run on it
WATCHED_BYTES = 1 << 29  # of float64 outputs on another check's calls
STRAY = 64  # positions outside the judged ones that are looked at where they are NaN or infinite

_LOST = "no known defect is tried: each leaves numbers, and here there is NaN or infinity"

Graph = Callable[[], ReplayGraph | WatchedSites]


def explain(
    context: CheckContext,
    results: Sequence[CheckResult],
    graph: Graph | None,
    note: str = "there is no ONNX graph to look into",
) -> Explanation:
    """Look for place and cause of what made checks fail; inside of an artifact where none did.

    Where the judged sequence failed, it is looked at there; else in the calls of the first failed check that shows
    something when one row is fed with them.

    Args:
        context: of the judgement.
        results: of the checks that ran.
        graph: gives the artifact's graph, or a decoder of it that can be watched; None where there is none.
        note: why it has none.
    """
    failed = [result for result in results if result.verdict is Verdict.FAIL]
    context.drop_eager()  # what explains runs eager layer by layer
    looker = _Looker(
        context, graph, note, tuple(result.message for result in failed if result.check.kind is Kind.CONTENT)
    )
    try:
        if any(result.check.along for result in failed):
            found = looker.explain(_evidence(context))
        else:
            found = looker.elsewhere(failed) if failed else looker.sound()
    except ArtifactError as error:
        found = Explanation(None, None, _not_run(error), file=looker.file)
    else:
        read = (*found.file, *_unread(found, context, results))
        found = replace(found, file=(*read, *_unsaid(found.search, read)))
    return _with_weights(found, context, failed)


def _with_weights(found: Explanation, context: CheckContext, failed: Sequence[CheckResult]) -> Explanation:
    """With the quantised matrices that a check has seen to be wrong, and without what that check says of them where it
    is explained."""
    if not isinstance(context.original, CodedCheckpoint):
        return found
    seen = {r.message: r.figures.differing or [] for r in failed if isinstance(r.figures, ParameterFigures | Held)}
    weights = wrong_matrices(context.original, [name for names in seen.values() for name in names], context.progress)
    if weights is None:
        return found
    explained = {matrix.tensor for matrix in weights.matrices if matrix.cause is not None}
    file = [said for said in found.file if not seen.get(said) or not explained.issuperset(seen[said])]
    return replace(found, weights=weights, file=tuple(file))


def _unread(found: Explanation, context: CheckContext, results: Sequence[CheckResult]) -> list[str]:
    """What the file gives away to its own checks where they were not asked for, and outputs differ by no known
    defect."""
    if found.diagnosis is None or found.diagnosis.findings:
        return []
    ran = {result.name for result in results}
    left = [entry for entry in choose_checks() if entry.kind is Kind.CONTENT and entry.name not in ran]
    answers = [entry.run(context) for entry in left if not entry.inapplicable(context)]
    return [answer.message for answer in answers if answer.verdict is Verdict.FAIL]


def _unsaid(search: Search | None, read: Sequence[str]) -> list[str]:
    """The weights behind what differs, but for those that the checks of the file's content have told of."""
    weights = {} if search is None else search.weights
    left = {clause: name for clause, name in weights.items() if not any(clause in message for message in read)}
    return [clause if name in clause else f"{clause} ({name} in the file)" for clause, name in left.items()]


@dataclass(frozen=True)
class _Looker:
    context: CheckContext
    graph: Graph | None
    note: str
    file: tuple[str, ...]

    def explain(self, evidence: Evidence, where: str = "") -> Explanation:
        """Place and cause of what is wrong in some calls that the artifact has just run."""
        if not evidence.floor.finite:
            note = "not located: eager PyTorch itself gives NaN or infinity here, so nothing can be held against it"
            return Explanation(None, None, note, where, file=self.file)
        slot = self.earlier_slot(evidence)
        search, note = self.search(evidence, None if slot is None else slot.position)
        search = None if search is None else replace(search, failed=True)
        found = None if search is None else search.location
        if slot is not None and found is not None and found.call != slot.start:
            slot = None  # what is in the slot now was written by another call, the one that was found
        hints = Hints() if search is None or found is None else _hints(search, found)
        finite = evidence.at(evidence.outputs_PV.isfinite().all(-1).nonzero()[:, 0].tolist())
        lost = len(finite.positions) < len(evidence.positions)
        diagnosis, remarks = None, (_LOST,) if lost else ()
        # On the judged sequence a check has failed, by positions that need not all be in these calls.
        if not (where or lost) or finite.differs:
            hints, remarks = self._with_caches(hints), ()
            diagnosis = diagnose(finite, hints)
            if search is not None and hints.misread:  # which layer a weight serves was read off its caches
                search = replace(search, weights={})
        return Explanation(search, diagnosis, note, where, slot, self.file, remarks)

    def _with_caches(self, hints: Hints) -> Hints:
        """With whose caches the layers read, which the artifact itself shows."""
        decoder = self.context.decoder
        misread = misread_caches(decoder, self.context.checkpoint, self.context.ids_S)
        return replace(hints, misread=misread, one_token=decoder.foreign is not None and decoder.foreign.one_token)

    def earlier_slot(self, evidence: Evidence) -> WrongSlot | None:
        """The first wrong slot, if there is one that was left before the outputs go wrong.

        It costs several runs of eager, and says nothing new where one of the first calls is wrong: those are looked
        into anyway.
        """
        first = next(iter(evidence.wrong), None)
        if any(first in call for call in evidence.calls[:FIRST_CALLS]) or self.context.no_slots:
            return None
        slot = first_wrong_slot(self.context.decoder, evidence)
        return slot if slot is not None and (first is None or slot.stop <= first) else None

    def search(
        self, evidence: Evidence, wrong_slot: int | None = None, looked: Sequence[range] | None = None
    ) -> tuple[Search | None, str]:
        """What Locate finds, or why it cannot look."""
        if self.graph is None:
            return None, self.note
        try:
            graph = self.graph()
            search = locate(graph, evidence, looked=looked, wrong_slot=wrong_slot)
        except NotJudgedError as error:
            return None, str(error)
        if isinstance(graph, WatchedSites) and graph.uses and search.location and search.reproduced:
            uses = graph.uses(search.location.call)
            search = replace(search, weights=wrong_weights(search, uses, self.context.checkpoint))
        return search, self.note

    def elsewhere(self, failed: Sequence[CheckResult]) -> Explanation:
        """The first failed check in whose calls one row differs; a sentence for each that has none."""
        remarks: list[str] = []
        for result in failed:
            entry = result.check
            walk = entry.calls(self.context, result.figures)
            if walk is None:
                remarks += [] if entry.kind is Kind.CONTENT else [f"{entry.name}: not located; {entry.unlocated}"]
                continue
            try:
                evidence = _gather(self.context, walk.calls, self._positions(result, walk), walk.ids_S)
            except ArtifactError as error:
                remarks.append(f"{result.name}: {_not_run(error)}")
                continue
            if evidence.differs or self.earlier_slot(evidence) is not None:
                return self.explain(evidence, f"in the calls of {result.name} ({walk.what})")
            remarks.append(f"{result.name}: not located; {walk.within}")
        return Explanation(None, None, file=self.file, remarks=tuple(remarks))

    def _positions(self, result: CheckResult, walk: FailingCalls) -> list[int]:
        """All positions, or in a long walk over a large vocabulary as many as memory has room for."""
        width, stop = self.context.decoder.interface.width, walk.calls[-1].stop
        step = -(-8 * width * stop // WATCHED_BYTES)
        found = result.stretch
        said = [] if found is None else [found.worst_position, *found.not_finite]
        return sorted({*range(0, stop, step), stop - 1, *(p for p in said if p < stop)})

    def sound(self) -> Explanation:
        """A look into calls of an artifact that passes: the prompt, the step after it, one half way, the last."""
        context = self.context
        calls, looked = _sound_calls(context.plan.prefill, len(context.ids_S))
        search, note = self.search(_gather(context, calls, context.judged_positions, twice=False), looked=looked)
        return Explanation(search, None, note)


def _sound_calls(prefill: int, length: int) -> tuple[list[range], list[range]]:
    """The prompt, the step after it, one half way and the last, with chunks in between; and the four alone."""
    steps = [step for step in sorted({prefill, (prefill + length) // 2, length - 1}) if prefill <= step < length]
    calls = stepped([range(prefill)], steps)
    return calls, [calls[0], *(range(step, step + 1) for step in steps)]


def _not_run(error: ArtifactError) -> str:
    """Why no place is given of a file that does not run as it should."""
    return f"not located, for without its outputs nothing inside the file can be compared: {error}"


def _hints(search: Search, found: Location) -> Hints:
    """What the place tells of the cause; only where the replay is the artifact is anything excluded by it."""
    hints = Hints(search.confined, search.mapping, found.site, found.times)
    if not search.reproduced:
        return hints
    ends = found.layer is None and not found.layers
    return replace(hints, call=found.call, specimen=search.specimen, ends=ends)


def _evidence(context: CheckContext) -> Evidence:
    """The artifact's calls up to a few after the first one that goes wrong, with all their outputs.

    Where that is the prompt, a shorter one that reaches the first wrong position, and steps after it.
    """
    calls = context.plan.calls(to_last_slot=context.to_last_slot)
    stray = context.artifact_walk.not_finite[:STRAY]
    errors = context.artifact_errors
    positions: Sequence[int] = errors.positions_P.tolist()
    first = min([*outside(errors, context.floor(positions))[:1], *stray], default=int(positions[0]))
    index = next((i for i, call in enumerate(calls) if first in call), 0)
    kept = calls[: index + 1 + CALLS_AFTER]
    length = max(PROMPT, first + 1)
    if index == 0 and length + CALLS_AFTER < len(calls[0]):
        kept = [range(length), *(range(p, p + 1) for p in range(length, length + CALLS_AFTER))]
    wanted = sorted({p for p in (*context.judged_positions, *stray) if p < kept[-1].stop})
    return _gather(context, kept, wanted)


def _gather(
    context: CheckContext,
    calls: Sequence[range],
    positions: Sequence[int],
    ids_S: torch.Tensor | None = None,
    *,
    twice: bool = True,
) -> Evidence:
    """What the artifact says on some calls, of the judged sequence where there are no other tokens.

    Of its positions that were judged float64's outputs and eager's errors are there already.
    """
    ids_S = context.ids_S if ids_S is None else ids_S
    said = gather(context.decoder, context.checkpoint, ids_S, calls, positions, twice=twice, progress=context.progress)
    known = context.reference_positions
    own = ids_S is not context.ids_S or context.ends.pooling is not None  # an embedding is of its calls
    if own or not set(said.positions) <= set(known):
        return said

    def looks() -> Iterator[list[Distances]]:
        return ([context.eager_errors, *runs] for runs in context.runs(known))

    return replace(said, ground=Ground(known, lambda: context.expected.outputs[0], looks))
