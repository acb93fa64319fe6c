"""After a failure, or when asked: where is the first difference, and which mistake would make it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockexport.compare.context import CheckContext
from blockexport.compare.diagnose import Diagnosis, Hints, diagnose
from blockexport.compare.evidence import Evidence, gather
from blockexport.compare.locate import Search, locate
from blockexport.compare.noise import judge_errors
from blockexport.compare.tolerances import MAX_FACTOR
from blockexport.models.errors import ArtifactError, NotJudgedError
from blockexport.runtime.replay_graph import ReplayGraph

CALLS_AFTER = 4  # calls behind the first wrong one that are looked at as well
PROMPT = 64  # tokens of the prompt when it is wrong itself: each of some seventy defects is run on it


@dataclass(frozen=True)
class Explanation:
    """What Locate and Diagnose say.

    Attributes:
        search: None where there is no graph to look into; `note` then says why.
        diagnosis: None where the outputs stay within the floor, so that there is nothing to diagnose.
        note: see `search`.
    """

    search: Search | None
    diagnosis: Diagnosis | None
    note: str = ""

    @property
    def sentences(self) -> list[str]:
        """For people: the place, then the causes, best first."""
        said = [self.search.sentence] if self.search is not None else [self.note]
        return said + (self.diagnosis.sentences if self.diagnosis is not None else [])


def explain(
    context: CheckContext,
    graph: Callable[[], ReplayGraph] | None,
    note: str = "there is no ONNX graph to look into",
    *,
    always: bool = False,
) -> Explanation | None:
    """Look for place and cause of a difference along the judged sequence.

    Args:
        context: of the judgement.
        graph: gives the artifact's graph; None where it has none that can be replayed.
        note: why it has none.
        always: look inside even where the outputs stay within the floor.

    Returns:
        None where they do and `always` is not set: what failed then is another way of calling the artifact, or
        something about its file, and there is nothing to find along the judged sequence.
    """
    try:
        differs = _differs(context)
    except ArtifactError as error:
        return Explanation(None, None, f"not located: {error}")
    if not differs and not always:
        return None
    evidence = _evidence(context) if differs else _sound_evidence(context)
    search = None
    if graph is not None:
        try:
            looked = None if differs else _samples(evidence.calls)
            search = locate(graph(), context.checkpoint, evidence, looked=looked, progress=context.progress)
        except NotJudgedError as error:
            note = str(error)
    if not differs:
        return Explanation(search, None, note)
    hints = Hints() if search is None or search.location is None else Hints(search.confined, search.mapping)
    return Explanation(search, diagnose(context.checkpoint, evidence, hints, context.progress), note)


def _differs(context: CheckContext) -> bool:
    """Whether one row's outputs leave the floor in a stretch of the judged sequence."""
    plan = context.plan
    last = plan.last_positions if context.to_last_slot else range(0)
    for stretch in (plan.prefill_positions, plan.decode_positions, last):
        seen = context.observed(stretch)
        floor = context.floor(seen) if seen else None
        if floor is not None and floor.finite:
            found = judge_errors(context.artifact_errors.select(seen), floor, has_top1=context.has_top1)
            if not found.passed:
                return True
    return False


def _sound_evidence(context: CheckContext) -> Evidence:
    """All of the artifact's calls."""
    calls = context.plan.calls(to_last_slot=context.to_last_slot)
    return gather(context.decoder, context.checkpoint, context.ids_S, calls, context.judged_positions)


def _samples(calls: Sequence[range]) -> list[range]:
    """Calls that stand for all: the prompt, the step behind it, one half way, the last."""
    return [calls[i] for i in sorted({0, min(1, len(calls) - 1), len(calls) // 2, len(calls) - 1})]


def _evidence(context: CheckContext) -> Evidence:
    """The artifact's calls up to a few behind the first one that goes wrong, with all their outputs.

    Where that is the prompt, a shorter one that reaches the first wrong position, and steps behind it.
    """
    calls = context.plan.calls(to_last_slot=context.to_last_slot)
    first = _first_wrong(context)
    index = next((i for i, call in enumerate(calls) if first in call), 0)
    kept = calls[: index + 1 + CALLS_AFTER]
    length = max(PROMPT, first + 1)
    if index == 0 and length + CALLS_AFTER < len(calls[0]):
        kept = [range(length), *(range(p, p + 1) for p in range(length, length + CALLS_AFTER))]
    positions = [p for p in context.judged_positions if p < kept[-1].stop]
    return gather(context.decoder, context.checkpoint, context.ids_S, kept, positions, twice=True)


def _first_wrong(context: CheckContext) -> int:
    """The first position outside the floor; the first of all when only the aggregate is."""
    errors = context.artifact_errors
    positions: Sequence[int] = errors.positions_P.tolist()
    outside_P = ~(errors.max_P <= MAX_FACTOR.value * context.floor(positions).max_P)
    outside = errors.positions_P[outside_P].tolist()
    return int(outside[0]) if outside else int(positions[0])
