"""Rows of a batch at different positions, each against the reference of that row alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from blockexport.compare.check import CheckResult, Verdict, check
from blockexport.compare.context import CheckContext, Row
from blockexport.compare.errors import Errors, measure
from blockexport.compare.noise import floor_of
from blockexport.compare.stretch import judge_stretch
from blockexport.runtime.decoder import Decoder


def _no_rows(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None and context.decoder.foreign.no_rows is not None:
        return context.decoder.foreign.no_rows
    return None if context.rows else "the cache is too small for rows of unequal length"


@check("batch", "rows of unequal length in one batch equal each row alone", order=45, inapplicable=_no_rows)
def batch(context: CheckContext) -> CheckResult:
    """A right-padded prefill of all rows together, then steps that write each row at its own position.

    The verdict is on all rows together: a row alone holds so few positions that one of them, the first say, whose
    error is often the largest, decides its mean.
    """
    artifact = _run(context, context.decoder)
    cached = _run(context, context.eager)
    positions = [errors.positions_P.tolist() for errors in artifact]
    runs = [
        [errors.select(wanted) for errors, wanted in zip(of_rows, positions, strict=True)]
        for of_rows in (cached, context.whole_errors[1:])
    ]
    dtype, has_top1 = context.decoder.dtype, context.has_top1
    rows = []
    for i, (row, errors) in enumerate(zip(context.rows, artifact, strict=True)):
        what = f"row {i} of {len(context.rows)} (prompt of {row.prompt}, {len(row.ids_S) - row.prompt} steps)"
        rows.append(judge_stretch("batch", what, errors, floor_of([r[i] for r in runs], dtype), has_top1=has_top1))
    prompts = ", ".join(str(row.prompt) for row in context.rows)
    floor = floor_of([Errors.join(r) for r in runs], dtype)
    result = judge_stretch("batch", f"rows with prompts of {prompts}", Errors.join(artifact), floor, has_top1=has_top1)
    guilty = [row for row in rows if row.verdict is result.verdict]
    message = result.message if result.verdict is Verdict.PASS or not guilty else guilty[0].message
    return replace(result, message=message, figures={**result.figures, "rows": [row.figures for row in rows]})


def _padded(row: Row, width: int, vocab_size: int) -> torch.Tensor:
    """The prompt, and behind it tokens that the row never has there: a slot of padding left behind would show."""
    padded_S = (row.ids_S.repeat(-(-width // len(row.ids_S)))[:width] + 1) % vocab_size
    padded_S[: row.prompt] = row.ids_S[: row.prompt]
    return padded_S


def _run(context: CheckContext, decoder: Decoder) -> list[Errors]:
    """Errors of each row at the positions the decoder gives outputs for; padding is left out."""
    rows, expected = context.rows, context.expected[1:]
    prompts = [row.prompt for row in rows]
    width = max(prompts)
    padded_BS = torch.stack([_padded(row, width, context.config.vocab_size) for row in rows])
    decoder.reset(len(rows))
    outputs_BSV = decoder.prefill(context.inputs(decoder, padded_BS), torch.tensor(prompts))
    parts: list[list[Errors]] = [[] for _ in rows]
    for i, prompt in enumerate(prompts):
        if not decoder.last_logits_only:
            parts[i].append(measure(outputs_BSV[i, :prompt], expected[i][:prompt], range(prompt)))
    for step in range(len(rows[0].ids_S) - prompts[0]):
        token_B1 = torch.stack([row.ids_S[row.prompt + step] for row in rows])[:, None]
        outputs_B1V = decoder.step(context.inputs(decoder, token_B1))
        for i, prompt in enumerate(prompts):
            position = prompt + step
            parts[i].append(measure(outputs_B1V[i], expected[i][position : position + 1], [position]))
    return [Errors.join(part) for part in parts]
