"""The slots of the cache: what a call writes, what it leaves alone, and what it must not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.evidence import called
from blockexport.compare.core.figures import Figures, StretchFigures
from blockexport.compare.core.immovable import has_moved, moved_by, same_bits
from blockexport.compare.core.judge_positions import judge_stretch
from blockexport.compare.core.logit_distance import Distances, Errors, measure, measure_distances
from blockexport.compare.core.noise import Floor, doubtful, floor_of
from blockexport.compare.core.nudge import Looks, Nudges, run_distances
from blockexport.compare.core.position_plan import calls_of
from blockexport.compare.core.reference import Reference
from blockexport.compare.core.slots import Mark, cache_tensors, mark_slots, slots_of_row, unmarked
from blockexport.runtime.decoder import Decoder

CALLS = (16, 1, 1, 5, 1)  # tokens per call
SEEN = Mark(1.0, 1.0)  # of the size of keys and values, for slots that are seen
POISON = Mark(1e4, 1e4)  # far above any key or value
# ONNX Runtime on a CPU hides a slot by adding -65504 to its score in a half-precision graph, and torch would meet an
# infinity where scores are stored in half. No real key makes scores like that: keys of 1e4 do, by summing products
# with q. What multiplies a value is a weight of at most 1, and 0 where the slot is hidden.
POISON_FP16 = Mark(32.0, 1e4)


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    within = (
        "outputs and slots of the same calls on an empty cache stay within the floor: what differs is what the file "
        "does with slots that already hold something"
    )
    return FailingCalls(context.ids_S, slot_calls(len(context.ids_S)), "the calls whose slots are compared", within)


@partial(Check, "slots", Kind.BEHAVIOUR, inapplicable=lambda context: context.no_slots, calls=_calls)
def slots(context: CheckContext) -> Outcome:
    """The same calls twice: on an empty cache, and on one whose slots all hold large numbers.

    Empty: keys and values of every layer are within eager's own error of the float64 ones. Poisoned: each call leaves
    the slots before and after its own as they were, to the bit, and its outputs, keys and values are those of the
    empty cache.
    """
    decoder = context.decoder
    calls = slot_calls(len(context.ids_S))
    inputs = context.inputs(decoder, context.ids_S[None, : calls[-1].stop])
    decoder.reset(1)
    outputs = torch.cat([said.cpu() for _, said in called(decoder, inputs, calls)])
    written = slots_of_row(decoder, calls[-1].stop)
    result = _against_eager(context, calls, written)
    poisoned, complaints = _poisoned_run(decoder, inputs, calls)
    seen = moved_by(outputs, poisoned)
    kept = [moved_by(a, b) for a, b in zip(written, slots_of_row(decoder, calls[-1].stop), strict=True)]
    if has_moved(seen):
        complaints.append(f"what unwritten slots hold moves the outputs by {seen:.3g} units in the last place")
    names = [name for name, _ in cache_tensors(decoder)]
    complaints += [
        f"what unwritten slots hold moves the {name} by {units:.3g} units in the last place"
        for name, units in zip(names, kept, strict=True)
        if has_moved(units)
    ][:1]
    if len(calls) > 1 and not _reads(decoder, inputs, calls, outputs):
        result = replace(result, doubts=[*result.doubts, "what visible slots hold has no influence either"])
    return replace(result, complaints=[*complaints, *result.complaints])


def slot_calls(length: int) -> list[range]:
    """The calls of a sequence of `length` tokens: at least two where there is more than one, so that slots are read."""
    return calls_of((min(CALLS[0], max(1, length // 2)) if length <= CALLS[0] else CALLS[0], *CALLS[1:]), length)


def _reads(decoder: Decoder, inputs: torch.Tensor, calls: Sequence[range], outputs: torch.Tensor) -> bool:
    """Whether other keys and values in the slots before the last call move its outputs, as they must."""
    decoder.reset(1)
    for call in calls[:-1]:
        decoder.prefill(inputs[:, call.start : call.stop])
    mark_slots(decoder, SEEN)
    marked = decoder.prefill(inputs[:, calls[-1].start : calls[-1].stop])[0].cpu()
    return has_moved(moved_by(outputs[-len(marked) :], marked))


def poison(decoder: Decoder) -> Mark:
    """The mark of slots that nothing may see."""
    return POISON_FP16 if decoder.dtype == torch.float16 else POISON


def _poisoned_run(decoder: Decoder, inputs: torch.Tensor, calls: Sequence[range]) -> tuple[torch.Tensor, list[str]]:
    """The outputs of the calls, and what they did to slots that are not theirs."""
    decoder.reset(1)
    mark_slots(decoder, poison(decoder))
    before = slots_of_row(decoder, 0)
    outputs: list[torch.Tensor] = []
    complaints: list[str] = []
    for call, (_, said) in zip(calls, called(decoder, inputs, calls), strict=True):
        outputs.append(said.cpu())
        after = slots_of_row(decoder, call.stop)
        names = [name for name, _ in cache_tensors(decoder)]
        changed = [
            name for name, old, new in zip(names, before, after, strict=True) if not same_bits(old, new[: call.start])
        ]
        touched = unmarked(decoder, poison(decoder), range(call.stop, decoder.max_sequence_length))
        if changed or touched:
            where = f"earlier slots of the {changed[0]}" if changed else f"later slots of the {touched[0]}"
            complaints.append(f"writing slots {call.start} to {call.stop - 1} changes {where}")
        before = after
    return torch.cat(outputs), complaints[:1]


def _against_eager(context: CheckContext, calls: Sequence[range], written: list[torch.Tensor]) -> Outcome:
    """The tensor that is furthest from float64, in terms of eager's own distance; one that says something, if any."""
    eager, positions = context.eager, range(calls[-1].stop)
    inputs = context.inputs(eager, context.ids_S[None, : positions.stop])
    eager.reset(1)
    for call in calls:
        eager.prefill(inputs[:, call.start : call.stop])
    cached = slots_of_row(eager, positions.stop)
    exact = context.reference.keys_values(context.ids_S[: positions.stop], progress=context.progress)[0]
    once = [[measure_distances(given, wanted, positions)] for given, wanted in zip(cached, exact, strict=True)]
    usual = _usual_errors(context) if len(positions) < sum(CALLS) else [[] for _ in exact]
    errors = [measure(given, wanted, positions) for given, wanted in zip(written, exact, strict=True)]
    for whole in Looks(lambda nudges: _whole_errors(context, context.ids_S[: positions.stop], exact, nudges)):
        runs = [one + list(more) for one, more in zip(once, zip(*whole, strict=True), strict=True)]
        outcome, doubtful = _furthest(context, errors, runs, usual)
        if not doubtful:
            break
    return outcome


def _furthest(
    context: CheckContext, errors: list[Errors], runs: list[list[Distances]], usual: list[list[Distances]]
) -> tuple[Outcome, bool]:
    """The verdict on the tensor that is furthest from float64, and whether it may be the luck of eager's runs."""
    names = [name for name, _ in cache_tensors(context.eager)]
    found: list[tuple[tuple[bool, bool, float], Outcome, bool]] = []
    for name, given, eager, more in zip(names, errors, runs, usual, strict=True):
        floor = _at_least(floor_of(eager, context.decoder.dtype), given, more)
        what = f"{len(names)} tensors, {len(given.positions_P)} slots each, of which the {name}"
        outcome = judge_stretch(context, what, given, [floor], of_cache=True)
        judged = outcome.figures
        assert isinstance(judged, StretchFigures)
        order = (bool(outcome.complaints), not outcome.doubts, judged.share)
        found.append((order, outcome, doubtful(judged, given, floor)))
    return max(found, key=lambda entry: entry[0])[1:]


def _whole_errors(
    context: CheckContext, ids_S: torch.Tensor, exact: list[torch.Tensor], nudges: Nudges
) -> list[list[Distances]]:
    """Eager's errors in each tensor without a cache, for each of its runs."""
    whole = Reference(context.checkpoint, context.decoder.dtype).keys_values(ids_S, nudges, context.progress)
    return run_distances(nudges, whole, exact, [range(len(ids_S))] * len(exact))


def _usual_errors(context: CheckContext) -> list[list[Distances]]:
    """Eager's errors in each tensor on as many tokens as a larger cache would hold here, in each of its runs.

    The few numbers in one or two slots can come out far closer to the exact ones than eager usually does, and in some
    tensor they do.
    """
    ids_S = (context.ids_S[:1] + torch.arange(sum(CALLS))) % context.config.vocab_size
    exact = context.reference.keys_values(ids_S, progress=context.progress)[0]
    whole = next(iter(Looks(lambda nudges: _whole_errors(context, ids_S, exact, nudges))))
    return [list(runs) for runs in zip(*whole, strict=True)]


def _at_least(floor: Floor, errors: Errors, usual: Sequence[Distances]) -> Floor:
    """The floor, but no lower than eager's usual error relative to the size of the numbers."""
    size = float(errors.reference_rms_P.square().mean().sqrt())
    for run in usual:
        largest = (run.max_P / run.reference_max_P).median() * errors.reference_max_P
        rms, max_P = max(floor.rms, run.relative_l2 * size), torch.maximum(floor.max_P, largest)
        floor = replace(floor, rms=rms, max_P=max_P)
    return floor
