"""Rows of a batch at different positions, each against the reference of that row alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from blockexport.compare.core.check import Check, FailingCalls, Kind, Outcome, prompt_and_steps
from blockexport.compare.core.context import CheckContext, Row
from blockexport.compare.core.figures import Figures, StretchFigures
from blockexport.compare.core.judge_positions import extended, judge_stretch
from blockexport.compare.core.logit_distance import Distances, Errors
from blockexport.compare.core.noise import Floor, floor_of
from blockexport.compare.core.position_plan import CHUNK, calls_of
from blockexport.compare.core.slots import copy_to_rows
from blockexport.runtime.decoder import Decoder

LATE_STEPS = 4


def _no_rows(context: CheckContext) -> str | None:
    return context.no_rows or (None if context.rows else "the cache is too small for rows of unequal length")


@dataclass(frozen=True)
class BatchFigures(StretchFigures):
    """All rows together, and each alone."""

    rows: list[StretchFigures]


def _calls(context: CheckContext, figures: Figures | None) -> FailingCalls:
    """The row that is furthest outside its limits, alone."""
    within = (
        "alone, the row's tokens stay within the floor: what is wrong is how the file treats several rows in one call "
        "(its positions, write indices or mask)"
    )
    shares = (
        [float("inf") if row.disagreements else row.share for row in figures.rows]
        if isinstance(figures, BatchFigures)
        else [0.0]
    )
    guilty = shares.index(max(shares))
    if guilty < len(context.rows):
        row = context.rows[guilty]
        return prompt_and_steps(row.ids_S, row.prompt, f"row {guilty} alone", within, len(row.ids_S))
    assert isinstance(figures, BatchFigures)
    late = figures.rows[guilty]
    start, stop = late.first_position, late.last_position + 1  # it goes on in the middle of the judged sequence
    what = f"the row that goes on at {start} alone"
    return FailingCalls(context.ids_S, calls_of((start, *(1,) * (stop - start)), stop), what, within)


@partial(Check, "batch", Kind.NUMERICAL, inapplicable=_no_rows, to_last_slot=True, in_rows=True, calls=_calls)
def batch(context: CheckContext) -> Outcome:
    """A right-padded prefill of all rows together, then steps that write each row at its own position; and steps of
    rows that stand at other places of the judged sequence, one of them before the last slots.

    The verdict is on all rows together: a row alone holds so few positions that one of them, the first say, whose
    error is often the largest, decides its mean.
    """
    rows = _short_rows(context) + _late_rows(context)
    what = f"rows with prompts of {', '.join(str(row.prompt) for row in context.rows)}"
    starts = [str(row.start) for row in rows if row.start]
    what += f", and rows that go on at {', '.join(starts)}" if starts else ""
    errors = Errors.join([row.errors for row in rows])
    result = judge_stretch(context, what, errors, floors_of_rows(context, rows))
    alone = [judge_stretch(context, row.what, row.errors, floors_of_rows(context, [row])) for row in rows]
    guilty = [row.complaints for row in alone if row.complaints]
    complaints = guilty[0] if result.complaints and guilty else result.complaints
    figures = [row.figures for row in alone if isinstance(row.figures, StretchFigures)]
    return extended(replace(result, complaints=complaints), BatchFigures, rows=figures)


@dataclass(frozen=True)
class JudgedRow:
    """A row and the artifact's errors in it."""

    what: str
    errors: Errors
    cached: Errors  # eager's, in the same calls
    row: int | None  # of the context's rows; None where it is a part of the judged sequence
    start: int = 0  # where it goes on; 0 for a row that begins with its prompt


def floors_of_rows(context: CheckContext, rows: Sequence[JudgedRow]) -> Iterator[Floor]:
    """The floor of some rows together, and a firmer one after it; see `CheckContext.runs`."""
    looks = zip(*(_runs(context, row) for row in rows), strict=True)
    for runs in looks:
        joined = [Distances.join(parts) for parts in zip(*runs, strict=True)]
        yield floor_of([Errors.join([row.cached for row in rows]), *joined], context.decoder.dtype)


def _runs(context: CheckContext, row: JudgedRow) -> Iterator[list[Distances]]:
    return context.runs(row.errors.positions_P.tolist(), row.row, row.errors.starts_P.tolist())


def _short_rows(context: CheckContext) -> list[JudgedRow]:
    artifact, cached = _run(context, context.decoder), _run(context, context.eager)
    judged = []
    for i, (row, errors) in enumerate(zip(context.rows, artifact, strict=True)):
        what = f"row {i} of {len(context.rows)} (prompt of {row.prompt}, {len(row.ids_S) - row.prompt} steps)"
        judged.append(JudgedRow(what, errors, cached[i].select(errors.positions_P.tolist()), i))
    return judged


def _late_rows(context: CheckContext) -> list[JudgedRow]:
    """Steps of one batch whose rows hold the judged sequence up to different places; none of a cache without slots."""
    if context.no_slots:
        return []
    end = context.plan.decode_positions.stop - LATE_STEPS
    starts = [context.plan.max_sequence_length - LATE_STEPS, 3 * end // 4, end // 2, end // 4, 1]
    artifact, cached = (_run_late(context, decoder, starts) for decoder in (context.decoder, context.eager))
    judged = []
    for i, (start, errors) in enumerate(zip(starts, artifact, strict=True)):
        what = f"row {i} of {len(starts)} ({LATE_STEPS} steps from position {start} on)"
        judged.append(JudgedRow(what, errors, cached[i], None, start))
    return judged


def _run_late(context: CheckContext, decoder: Decoder, starts: Sequence[int]) -> list[Errors]:
    """Errors of each row at its steps. The rows begin as copies of one that was filled alone."""
    slots = context.plan.max_sequence_length
    inputs = context.inputs(decoder, context.ids_S[None])
    decoder.reset(1)
    for call in calls_of([CHUNK] * -(-slots // CHUNK), slots):
        decoder.prefill(inputs[:, call.start : call.stop])
    copy_to_rows(decoder, torch.tensor(starts))
    parts: list[list[Errors]] = [[] for _ in starts]
    for step in range(LATE_STEPS):
        positions = [start + step for start in starts]
        outputs_B1V = decoder.step(inputs[0, positions][:, None])
        for i, position in enumerate(positions):
            parts[i].append(context.expected.measured(outputs_B1V[i], [position]))
    return [Errors.join(part) for part in parts]


def _padded(row: Row, width: int, vocab_size: int) -> torch.Tensor:
    """The prompt, and behind it tokens that the row never has there: a slot of padding left behind would show."""
    padded_S = (row.ids_S.repeat(-(-width // len(row.ids_S)))[:width] + 1) % vocab_size
    padded_S[: row.prompt] = row.ids_S[: row.prompt]
    return padded_S


def _run(context: CheckContext, decoder: Decoder) -> list[Errors]:
    """Errors of each row at the positions the decoder gives outputs for; padding is left out."""
    rows, prompts = context.rows, [row.prompt for row in context.rows]
    width, vocab_size = max(prompts), context.config.vocab_size
    given_BS = torch.stack([torch.cat([_padded(row, width, vocab_size), row.ids_S[row.prompt :]]) for row in rows])
    found = []
    for i, outputs_PV in enumerate(context.run_rows(decoder, given_BS, prompts, width)):
        positions = range(decoder.interface.ends.told(prompts[i]).start, len(rows[i].ids_S))
        found.append(context.expected.measured(outputs_PV, positions, context.starts_in_row(positions, prompts[i]), i))
    return found
