"""Judge an artifact: every check that applies, on one sequence, against one pass of the reference."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from blockexport.compare.checks.catalogue import choose_checks
from blockexport.compare.core.check import Check, CheckResult, Kind, Verdict
from blockexport.compare.core.context import CheckContext, Row
from blockexport.compare.core.embeddings import embeddings_at
from blockexport.compare.core.position_plan import make_plan
from blockexport.compare.core.reference import Reference
from blockexport.compare.core.tokens import Encode, Tokens, choose_tokens
from blockexport.compare.golden_choice import golden_vectors
from blockexport.compare.report.report import Artifact, Positions, Report, RoundingCost, Skipped, Stretches
from blockexport.export.bundle.embedding import EmbeddingRecord
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.element_types import BY_SAFETENSORS
from blockexport.models.interface import Ends
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, silent
from blockexport.runtime.backends import ONNXRUNTIME, Arithmetic, backend_named, require_judgeable
from blockexport.runtime.decoder import Decoder, Foreign
from blockexport.runtime.eager import EagerDecoder

if TYPE_CHECKING:
    import onnx_ir as ir

    from blockexport.compare.audits.artifact_weights import ArtifactWeights
    from blockexport.compare.explain.explanation import Explanation

ROWS = 4  # of the batched run
ROW_PROMPT = 29  # the longest of their prompts
ROW_STEPS = 6


@dataclass(frozen=True)
class JudgeOptions:
    """How to judge.

    Attributes:
        backend: name of the backend behind the decoder, one of `runtime.backends.BACKENDS`.
        checks: names of the checks to run; all that apply when empty.
        decode_steps: teacher-forced steps after the prefill; 64, or what fits, when None.
        prefill: tokens of the prompt; 256, or what fits, when None.
        encode: the bundle's tokenizer, where it has one.
        text: what to judge on instead of the built-in passage; needs `encode`.
        token_ids: what to judge on instead of any text.
        seed: of the random ids used where there is neither.
        weights: gives the weights in the artifact's file, to be counted and held against the checkpoint's.
        graph: gives the artifact's ONNX graph, for the audits of types and constants.
        growing: opens the artifact with a cache that has so many slots at first; None where none grows.
        in_integers: opens it with activations rounded to 8 bits; None where nothing is known to run it so.
        explain: looks for place and cause after a check has failed; None leaves that out.
        locate: call `explain` even where every check has passed.
        cost: measure what quantising costs as well; `judged_cost.py` does, beside the checks.
        max_kl: the limit on it, in nats, which asks for it too; see `QuantisingCost`.
    """

    backend: str = ONNXRUNTIME.name
    checks: tuple[str, ...] = ()
    decode_steps: int | None = None
    prefill: int | None = None
    encode: Encode | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    seed: int = 0
    weights: Callable[[], ArtifactWeights] | None = None
    graph: Callable[[], ir.Graph] | None = None
    growing: Callable[[int], Decoder] | None = None
    in_integers: Callable[[], Decoder] | None = None
    explain: Callable[[CheckContext, Sequence[CheckResult]], Explanation] | None = None
    locate: bool = False
    cost: bool = False
    max_kl: float | None = None


@dataclass(frozen=True)
class Judgement:
    """The verdict, which is there as soon as the checks have run, and the explanation, which takes as long again.

    Attributes:
        report: of the checks, without an explanation.
        explain: looks for place and cause; None where there is nothing to explain, or nobody asked.
    """

    report: Report
    explain: Callable[[Progress], Explanation] | None = None

    def explained(self, progress: Progress = silent) -> Report:
        """The whole report; `progress` is told of the calls, layers and defects looked at."""
        return self.report if self.explain is None else replace(self.report, explanation=self.explain(progress))


def run_checks(
    decoder: Decoder,
    checkpoint: Checkpoint,
    options: JudgeOptions | None = None,
    progress: Progress = silent,
    notes: Sequence[str] = (),
) -> Judgement:
    """Run the checks on `decoder` against the source `checkpoint`.

    Args:
        decoder: the artifact, opened.
        checkpoint: what it was exported from.
        options: see `JudgeOptions`.
        progress: told of the reference's layers, and of the calls of artifact and eager.
        notes: what there is to say of the artifact, for the report.

    Raises:
        NotJudgedError: the backend cannot run this precision in a way that proves anything.
        UsageError: an unknown check, tokens outside the vocabulary, more steps than the cache has slots.
    """
    options = options or JudgeOptions()
    precision = Precision.of(decoder.dtype)
    arithmetic = require_judgeable(options.backend, precision, decoder.device)
    checks = choose_checks(options.checks)
    slots, steps, prefill = decoder.max_sequence_length, options.decode_steps, options.prefill
    rows_alone = all(entry.in_rows and not entry.to_last_slot for entry in checks)  # the sequence itself: for doubts
    if rows_alone and steps is prefill is None and slots >= ROW_PROMPT + ROW_STEPS:
        steps, prefill = ROW_STEPS, ROW_PROMPT
    plan = make_plan(slots, steps, prefill)
    in_rows = any(entry.in_rows for entry in checks) and not (decoder.foreign or Foreign("")).no_rows
    to_last_slot = any(entry.to_last_slot for entry in checks)
    length = plan.max_sequence_length if to_last_slot else plan.decode_positions.stop
    spare = ROWS * (ROW_PROMPT + ROW_STEPS)
    tokens = choose_tokens(
        checkpoint.config,
        max(length, spare),
        encode=options.encode,
        text=options.text,
        ids=options.token_ids,
        seed=options.seed,
    )
    context = CheckContext(
        decoder,
        lambda kept: _eager(decoder, kept, progress),
        checkpoint,
        plan,
        tokens.ids_S[:length],
        to_last_slot=to_last_slot,
        rows=_rows(tokens.ids_S, plan.max_sequence_length) if in_rows else (),
        weights=options.weights,
        graph=options.graph,
        growing=options.growing,
        in_integers=options.in_integers,
        progress=progress,
    )
    return _run(context, checks, _artifact(decoder, options.backend, precision, arithmetic), tokens, options, notes)


def _run(
    context: CheckContext,
    checks: Sequence[Check],
    artifact: Artifact,
    tokens: Tokens,
    options: JudgeOptions,
    notes: Sequence[str],
) -> Judgement:
    results: list[CheckResult] = []
    skipped: list[Skipped] = []
    for entry in checks:
        reason = entry.inapplicable(context)
        if reason is None:
            results.append(entry.run(context))
        elif options.checks:  # one that was asked for by name is not passed over
            results.append(CheckResult(entry, Verdict.NOT_JUDGED, f"does not apply; {reason}"))
        else:
            skipped.append(Skipped(entry.name, reason))
    verdicts = {result.verdict for result in results}
    plan = context.plan
    last = plan.last if context.to_last_slot else 0
    library = backend_named(artifact.backend).library
    own = {name: importlib.metadata.version(name) for name in ("blockexport", "torch")}
    walked = any(result.check.along and result.stretch for result in results)
    compared = any(result.check.kind is Kind.NUMERICAL and result.stretch for result in results)
    report = Report(
        artifact=artifact,
        tokens=Stretches(tokens.origin, len(context.ids_S), plan.prefill, plan.decode, last),
        checks=tuple(results),
        skipped=tuple(skipped),
        left_out=tuple(entry.name for entry in choose_checks() if entry not in checks),
        weight_rounding=_weight_rounding(context) if compared else None,
        positions=_positions(context) if walked else None,
        versions={**own, **({} if library is None else library.versions())},
        golden=golden_vectors(context) if walked and verdicts == {Verdict.PASS} else None,
        notes=tuple(filter(None, (tokens.caution(len(context.ids_S)), *notes))),
    )
    look = options.explain if Verdict.FAIL in verdicts or options.locate else None
    return Judgement(report, None if look is None else lambda progress: look(context.heard_by(progress), results))


def _artifact(decoder: Decoder, backend: str, precision: Precision, arithmetic: Arithmetic) -> Artifact:
    return Artifact(
        backend=backend,
        precision=precision,
        max_sequence_length=decoder.max_sequence_length,
        headless=decoder.headless,
        last_logits_only=decoder.interface.ends.last_logits_only,
        embedding=EmbeddingRecord.of(decoder.interface.ends),
        model_type=decoder.config.model_type,
        arithmetic=arithmetic,
        convention=None if decoder.foreign is None else decoder.foreign.convention,
    )


def _eager(decoder: Decoder, checkpoint: Checkpoint, progress: Progress) -> Decoder:
    slots, ends = decoder.max_sequence_length, decoder.interface.ends
    if ends.pooling is None:
        ends = Ends.of(headless=decoder.headless)  # with logits of every token
    model = load_model(checkpoint, decoder.dtype, slots, ends=ends, progress=progress)
    return EagerDecoder(model, slots, decoder.device)


def _rows(ids_S: torch.Tensor, slots: int) -> list[Row]:
    """Rows with tokens and prompt lengths of their own; none where the cache is too small for that."""
    longest = min(ROW_PROMPT, slots - ROW_STEPS)
    if longest < 2 * ROWS:
        return []
    prompts = [longest - i * (longest - 1) // ROWS for i in range(ROWS)]
    starts = [i * (ROW_PROMPT + ROW_STEPS) for i in range(ROWS)]
    return [
        Row(ids_S[start : start + prompt + ROW_STEPS], prompt) for start, prompt in zip(starts, prompts, strict=True)
    ]


def _weight_rounding(context: CheckContext) -> RoundingCost | None:
    """What rounding the weights to the artifact's type costs on its own, in float64, on the judged prompt."""
    dtype = context.decoder.dtype
    if not _rounds(context.checkpoint, dtype):
        return None
    prompt = range(context.plan.prefill)
    rounded = Reference(context.checkpoint, round_weights_to=dtype, ends=context.decoder.interface.ends)
    outputs_PV = rounded.run([context.ids_S[: len(prompt)]], [prompt], context.progress)[0]
    if context.ends.pooling is not None:
        outputs_PV = embeddings_at(outputs_PV, prompt, prompt, context.ends)
    errors = context.expected.measured(outputs_PV, prompt)
    return RoundingCost(errors.rms, float(errors.max_P.max()), errors.relative_l2)


def _rounds(checkpoint: Checkpoint, dtype: torch.dtype) -> bool:
    """Whether some weight's type holds values that `dtype` does not."""
    kinds = {BY_SAFETENSORS[entry.dtype].torch_dtype for entry in checkpoint.entries.values()}
    return any(torch.promote_types(kind, dtype) != dtype for kind in kinds)


def _positions(context: CheckContext) -> Positions:
    errors = context.artifact_errors
    positions = errors.positions_P.tolist()
    max_floor = context.max_floor
    tokens = (errors.top1_P, errors.reference_top1_P, errors.margin_P)
    return Positions(
        positions,
        errors.rms_P.tolist(),
        context.floor(positions).rms_P.tolist(),
        errors.max_P.tolist(),
        [max_floor[p] for p in positions],
        errors.kl_P.tolist(),
        *(tensor_P.tolist() for tensor_P in tokens if context.has_top1),
    )
