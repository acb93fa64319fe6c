"""Judge an ONNX decoder that another tool exported against the checkpoint it is said to come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from blockexport.compare.audits.artifact_weights import initialisers
from blockexport.compare.core.backends import require_judgeable
from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.tokens import Encode
from blockexport.compare.explain.explain import Explanation, explain
from blockexport.compare.judge import Judgement, JudgeOptions, run_checks
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER, write_tokenizer_files
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, silent
from blockexport.runtime.foreign.foreign_convention import read_model, recognise
from blockexport.runtime.foreign.foreign_decoder import open_foreign
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

BACKEND = "onnxruntime"
NOT_LOCATED = (
    "not located: only graphs of this project's own operators can be replayed node by node, so of a foreign file "
    "nothing but its outputs is known"
)


def judge_foreign(
    path: Path,
    model: str,
    *,
    checks: tuple[str, ...] = (),
    decode_steps: int | None = None,
    max_sequence_length: int | None = None,
    text: str | None = None,
    token_ids: Sequence[int] | None = None,
    progress: Progress = silent,
) -> Judgement:
    """Judge the ONNX file `path` against the checkpoint `model`, on the checks that its inputs allow.

    Args:
        path: an ONNX file of a convention that `foreign_convention` knows.
        model: the checkpoint, as `open_checkpoint` takes it; its tokenizer reads the text.
        checks: names of the checks to run; all that apply when empty.
        decode_steps: teacher-forced steps behind the prefill.
        max_sequence_length: tokens a row may hold; see `open_foreign`.
        text: what to judge on instead of the built-in passage.
        token_ids: what to judge on instead of any text.
        progress: see `run_checks`.

    Raises:
        UsageError: no ONNX decoder of a known convention, or not of the checkpoint's architecture.
        NotJudgedError: quantised weights, or a precision that ONNX Runtime cannot prove anything about here.
    """
    graph = read_model(path)
    convention = recognise(graph, path)
    require_judgeable(BACKEND, Precision.of(convention.dtype))
    checkpoint = open_checkpoint(model)
    decoder = open_foreign(path, graph, convention, checkpoint.config, max_sequence_length=max_sequence_length)
    options = JudgeOptions(
        backend=BACKEND,
        checks=checks,
        decode_steps=decode_steps,
        encode=_encoder(checkpoint),
        text=text,
        token_ids=token_ids,
        weights=lambda: initialisers(graph, path.parent),
        explain=_explain,
    )
    return run_checks(decoder, checkpoint, options, progress)


def _explain(context: CheckContext, results: Sequence[CheckResult]) -> Explanation | None:
    return explain(context, results, None, NOT_LOCATED)


def _encoder(checkpoint: Checkpoint) -> Encode | None:
    """The checkpoint's own tokenizer, however it is stored."""
    with TemporaryDirectory() as folder:
        names = write_tokenizer_files(checkpoint, Path(folder))
        return BundleTokenizer(Path(folder)).encode if TOKENIZER in names else None
