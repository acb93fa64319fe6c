"""Judge an ONNX decoder that another tool exported against the checkpoint it is said to come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from blockexport.compare.audits.artifact_weights import ArtifactWeights, initializers
from blockexport.compare.audits.quantised_weights import (
    QuantisedCheckpoint,
    is_quantised,
    rounds_to_8_bits,
    with_exact_activations,
)
from blockexport.compare.core.quantising_cost import NamedRun
from blockexport.compare.core.tokens import Encode
from blockexport.compare.explain.explain import explain
from blockexport.compare.explain.foreign_values import watch_foreign
from blockexport.compare.judge import Judgement, JudgeOptions, run_checks
from blockexport.compare.judged_cost import APART, AS_SHIPPED, cost_question, with_cost
from blockexport.export.preflight import check_one_copy
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER, write_tokenizer_files
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.models.progress import Progress, silent
from blockexport.runtime.backends import ONNXRUNTIME, require_judgeable
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.foreign.foreign_file import ForeignFile
from blockexport.runtime.foreign.names import read_map
from blockexport.runtime.foreign.open_foreign import open_foreign, read_foreign
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

BACKEND = ONNXRUNTIME.name


def judge_foreign(
    paths: Sequence[Path],
    model: str,
    asked: JudgeOptions | None = None,
    *,
    max_sequence_length: int | None = None,
    mapped: Sequence[str] = (),
    max_memory: int | None = None,
    progress: Progress = silent,
) -> Judgement:
    """Judge an ONNX file against the checkpoint `model`, on the checks that its inputs allow.

    Args:
        paths: an ONNX file of a convention that `foreign_convention` knows; or two, where prompt and steps have a
            graph each.
        model: the checkpoint, as `open_checkpoint` takes it; its tokenizer reads the text.
        asked: which checks to run, on what, and whether to look inside where every check passes.
        max_sequence_length: tokens a row may hold; see `open_foreign`.
        mapped: `ROLE=NAME` for inputs and outputs whose names are not known; see `names.read_map`.
        max_memory: see `check_one_copy`, which is asked before the work begins.
        progress: see `run_checks`.

    Raises:
        UsageError: no ONNX decoder of a known convention, or not of the checkpoint's architecture.
        NotJudgedError: quantised weights, or a precision that ONNX Runtime cannot prove anything about here.
    """
    files = read_foreign(paths, read_map(mapped))
    precision = Precision.of(files[0].convention.dtype)
    require_judgeable(BACKEND, precision)
    checkpoint = open_checkpoint(model, text_only=True)
    check_one_copy(checkpoint, Interface(checkpoint.config, precision.element, 1), max_memory)
    original, shipped, read = checkpoint, files, checkpoint.notes
    files, checkpoint, notes = _on_its_own_weights(files, checkpoint)
    decoder = open_foreign(files, checkpoint.config, max_sequence_length=max_sequence_length)

    def as_shipped() -> Decoder:
        return open_foreign(shipped, original.config, max_sequence_length=max_sequence_length)

    options = replace(
        asked or JudgeOptions(),
        backend=BACKEND,
        encode=_encoder(original),
        weights=lambda: _weights(files),
        in_integers=as_shipped if all(rounds_to_8_bits(file.model) for file in shipped) else None,
        explain=lambda context, results: explain(context, results, lambda: watch_foreign(decoder)),
    )
    not_quantised = "the file has no MatMulNBits" if checkpoint is original else ""
    question = cost_question(original, decoder, options, not_quantised)
    judgement = run_checks(decoder, checkpoint, options, progress, (*read, *notes))

    def others() -> list[NamedRun]:
        return [] if files[0] is shipped[0] else [NamedRun(AS_SHIPPED, as_shipped())]

    return with_cost(judgement, question, checkpoint, decoder, others, progress)


def _weights(files: Sequence[ForeignFile]) -> ArtifactWeights:
    """Of the graph of the steps, and of that of the prompt where there is one."""
    first, *others = (initializers(part.model, part.path.parent) for file in files for part in file.branches())
    return replace(first, others=tuple(others))


def _on_its_own_weights(
    files: list[ForeignFile], checkpoint: Checkpoint
) -> tuple[list[ForeignFile], Checkpoint, tuple[str, ...]]:
    """Of a quantised file, the checkpoint as the file has it, and what is to be said about that."""
    steps = files[0]
    if not any(is_quantised(file.model) for file in files):
        return files, checkpoint, ()
    notes = [
        "the file's weights are quantised: its graph is judged on the weights that it has, and those, tensor by "
        f"tensor, to within a step of their grid; {APART}"
    ]
    exact = []
    for file in files:
        model = with_exact_activations(file.model)
        exact.append(file if model is None else replace(file, model=model, edited=True))
    if exact[0] is not steps:
        notes.append(
            "the file lets ONNX Runtime round activations to 8 bits (accuracy_level of MatMulNBits); it is "
            "judged without that"
        )
    return exact, QuantisedCheckpoint(checkpoint, steps.model, steps.path.parent), tuple(notes)


def _encoder(checkpoint: Checkpoint) -> Encode | None:
    """The checkpoint's own tokenizer, however it is stored."""
    folder = TemporaryDirectory()
    if TOKENIZER not in write_tokenizer_files(checkpoint, Path(folder.name)):
        return None
    encode = BundleTokenizer(Path(folder.name)).encode

    def encode_while_there(text: str) -> list[int]:
        assert folder.name  # some tokenizers are read when they are used
        return encode(text)

    return encode_while_there
