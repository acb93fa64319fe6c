"""Rows of a batch at different positions, each against the reference of that row alone."""

from __future__ import annotations

import torch

from blockexport.compare.check import CheckResult, Verdict, check
from blockexport.compare.context import CheckContext, Row
from blockexport.compare.errors import Errors, measure
from blockexport.compare.noise import floor_of
from blockexport.compare.stretch import judge_stretch
from blockexport.runtime.decoder import Decoder


def _no_rows(context: CheckContext) -> str | None:
    return None if context.rows else "the cache is too small for rows of unequal length"


@check("batch", "rows of unequal length in one batch equal each row alone", order=45, inapplicable=_no_rows)
def batch(context: CheckContext) -> CheckResult:
    """A right-padded prefill of all rows together, then steps that write each row at its own position."""
    artifact = _run(context, context.decoder)
    eager = _run(context, context.eager)
    results = []
    for i, (row, errors) in enumerate(zip(context.rows, artifact, strict=True)):
        positions = errors.positions_P.tolist()
        runs = [eager[i].select(positions), context.whole_errors[1 + i].select(positions)]
        floor = floor_of(runs, context.decoder.dtype)
        what = f"row {i} of {len(context.rows)} (prompt of {row.prompt}, {len(row.ids_S) - row.prompt} steps)"
        results.append(judge_stretch("batch", what, errors, floor, has_top1=context.has_top1))
    bad = [result for result in results if result.verdict is Verdict.FAIL]
    worst = (bad or [r for r in results if r.verdict is Verdict.NOT_JUDGED] or _by_ratio(results))[0]
    return CheckResult("batch", worst.verdict, worst.message, {**worst.figures, "rows": [r.figures for r in results]})


def _by_ratio(results: list[CheckResult]) -> list[CheckResult]:
    return sorted(results, key=lambda result: -float(result.figures["rms_ratio"]))


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
