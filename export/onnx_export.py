"""Write everything an ONNX bundle needs, but for the proof, into a folder; returns the manifest to seal it with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnx_ir as ir

from blockexport.export.bundle.bundle import file_entries
from blockexport.export.bundle.embedding import EmbeddingRecord
from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.genai_config import genai_config
from blockexport.export.bundle.generation_config import GENERATION_CONFIG, read_generation_config
from blockexport.export.bundle.manifest import (
    GRAPHS,
    NONPAD_FILE,
    ONNX_FILE,
    AdapterRecord,
    Manifest,
    SourceRecord,
    combined_digest,
)
from blockexport.export.bundle.rope_file import ROPE_FILE, write_rope_file
from blockexport.export.bundle.source_digest import adapter_digest, source_digest
from blockexport.export.graph.onnx_graph import build_model
from blockexport.export.graph.unmasked import check_unmasked, take_masks_out
from blockexport.export.tokenizer.tokenizer_files import write_tokenizer_files
from blockexport.export.weights.calibration import Calibration
from blockexport.export.weights.matrix_layout import layouts_of
from blockexport.export.weights.weight_files import WrittenWeights, write_weights
from blockexport.models import io_names
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.block.rope import rope_table_rows
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.safetensors_header import StoredTensor, read_header
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.element_types import BY_ONNX, BY_SAFETENSORS
from blockexport.models.formats.config_hf_write import config_to_hf
from blockexport.models.interface import Ends, Interface, Port
from blockexport.models.progress import Progress, silent
from blockexport.models.quantisation import Quantisation
from blockexport.models.quantised_matrix import CODES, ZERO_POINTS

Note = Callable[[str], None]
_TOOLS = ("blockexport", "torch", "onnx", "onnx-ir", "ml-dtypes", "numpy", "safetensors", "gguf", "tokenizers")
"""Whose code shapes an artifact."""
_JUDGES = ("onnxruntime", "onnxruntime-gpu")  # one of them, if any


def export_onnx(
    checkpoint: Checkpoint,
    folder: Path,
    interface: Interface,
    *,
    quantisation: Quantisation | None = None,
    calibration: Calibration | None = None,
    attention: AttentionForms = AttentionForms.MASKED,
    progress: Progress = silent,
    texts: Callable[[Path], Sequence[str]] = lambda folder: (),
    note: Note = lambda message: None,
) -> Manifest:
    """Write graph, weights, RoPE table, tokenizer and configs into `folder`.

    The tokenizer and the configs come first: what is wrong with them is said before the work. The weights are written
    while the graph is traced: one waits for the disk, the other for Python.

    Args:
        checkpoint: the model.
        folder: an empty folder.
        interface: the decoder's: of the checkpoint's config, in the type to be written.
        quantisation: which matrices are quantised, and how; None where none is.
        calibration: the run over a text that those in 4 bits are quantised for; None for the nearest codes.
        attention: the forms to write it in.
        progress: hears of the weights.
        texts: looks at the tokenizer's files in `folder`, and returns the names of what it has added.
        note: is told what the user should know: what a conversion flushed to zero, a tokenizer that is missing.

    Raises:
        UsageError: the weights are damaged, or do not fit the precision; every layer has a window, and so needs a mask.
    """
    config = checkpoint.config
    if attention is not AttentionForms.MASKED:
        check_unmasked(config)
    if calibration is not None and quantisation is not None:
        quantisation = replace(quantisation, calibration=calibration.digest)
    others = write_tokenizer_files(checkpoint, folder, note) + _write_configs(checkpoint, folder, interface, note)
    others += texts(folder)
    source, names = stored_weights(checkpoint, interface.ends, quantisation)
    rows = rope_table_rows(config, interface.max_sequence_length)
    with ThreadPoolExecutor(max_workers=1) as worker:
        how = interface.precision, names, quantisation, progress, calibration
        written = worker.submit(write_weights, source, folder, *how, hash_source=True)
        write_rope_file(folder, config, rows)
        layouts = layouts_of(source, names, quantisation)
        stored = {name: layout for layout in layouts.values() for name in layout.tensors.outputs}
        model = build_model(
            interface,
            _external_tensors(folder, written),
            quantisation,
            {name: layout.tensors for name, layout in stored.items()},
            {name: layout.order for name, layout in stored.items() if layout.order is not None},
        )
    weights = written.result()
    if attention is not AttentionForms.NONPAD:
        ir.save(model, folder / ONNX_FILE)
    if attention is not AttentionForms.MASKED:
        take_masks_out(model, config)
        ir.save(model, folder / (NONPAD_FILE if attention is AttentionForms.BOTH else ONNX_FILE))
    for line in (*checkpoint.notes, *weights.report.notes()):
        note(line)
    return _manifest(checkpoint, folder, interface, quantisation, model, weights, rows, others)


def stored_weights(
    checkpoint: Checkpoint, ends: Ends, quantisation: Quantisation | None
) -> tuple[Checkpoint, list[str]]:
    """What the weights of a bundle are written from, with a head of its own where that is quantised, and the names of
    its tensors."""
    if quantisation is not None and quantisation.stored_config(checkpoint.config) != checkpoint.config:
        checkpoint = UntiedCheckpoint(checkpoint)
    return checkpoint, list(expected_tensors(checkpoint.config, ends=ends))


def _external_tensors(folder: Path, written: Future[WrittenWeights]) -> Callable[[str], ir.TensorProtocol]:
    """Tensors that point into the files of the bundle. The first one asked for waits until the weights are written."""
    rope = {name: (ROPE_FILE, stored) for name, stored in read_header(folder / ROPE_FILE).items()}

    @cache
    def weights() -> dict[str, tuple[str, StoredTensor]]:
        files = written.result().files
        return {name: (file, stored) for file in files for name, stored in read_header(folder / file).items()}

    def tensor(name: str) -> ir.ExternalTensor:
        file, stored = rope.get(name) or weights()[name]
        kind, shape = BY_SAFETENSORS[stored.dtype].onnx, stored.shape
        for part in (CODES, ZERO_POINTS):
            if name.endswith(part):
                layout = written.result().layouts[name.removesuffix(part)]
                kind, shape = layout.scheme.onnx, layout.shape if part == CODES else layout.grid
        place = (file, stored.offset, stored.length)
        return ir.ExternalTensor(*place, ir.DataType(kind), shape=ir.Shape(shape), name=name, base_dir=folder)

    return tensor


def _write_configs(checkpoint: Checkpoint, folder: Path, interface: Interface, note: Note) -> list[str]:
    """The configs of other tools: `config.json` where Hugging Face can say it, `genai_config.json` with logits.
    None of a stage, which is no model of theirs."""
    files: dict[str, object] = {}
    if interface.ends.is_stage:
        return []
    hugging_face = config_to_hf(replace(checkpoint.config, dtype=interface.element.name))
    if hugging_face is not None:
        files["config.json"] = hugging_face
    if interface.ends.to_logits:
        generation = read_generation_config(folder / GENERATION_CONFIG)
        ends = generation.eos_token_ids
        stops = checkpoint.config.eos_token_ids if ends is None else ends
        producible = [stop for stop in stops if stop < checkpoint.config.vocab_size]
        if impossible := [str(stop) for stop in stops if stop not in producible]:
            note(
                f"eos_token_id {', '.join(impossible)} is beyond the vocabulary of {checkpoint.config.vocab_size} "
                "tokens, so the model never gives it, and onnxruntime-genai would refuse it: it is not in "
                "genai_config.json"
            )
        files["genai_config.json"] = genai_config(checkpoint.config, interface.max_sequence_length, producible)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return list(files)


def _manifest(
    checkpoint: Checkpoint,
    folder: Path,
    interface: Interface,
    quantisation: Quantisation | None,
    model: ir.Model,
    weights: WrittenWeights,
    rows: int,
    others: Sequence[str],
) -> Manifest:
    files = {name: file_entry(folder / name, sha256=sha256) for name, sha256 in weights.files.items()}
    files |= file_entries(folder, [ROPE_FILE, *others])
    made_from = {name: files[name].sha256 for name in (*weights.files, ROPE_FILE)}
    files |= file_entries(folder, [name for name in GRAPHS if (folder / name).exists()], made_from)
    source, adapter = checkpoint.source, checkpoint.adapter
    digest = source_digest(checkpoint, weights.source_sha256)
    merged = None if adapter is None else AdapterRecord(str(adapter), adapter_digest(adapter))
    return Manifest(
        config=checkpoint.config,
        source=SourceRecord(source.kind, source.reference, digest, source.seed, merged),
        precision=interface.precision,
        max_sequence_length=interface.max_sequence_length,
        rope_table_rows=rows,
        headless=interface.ends.headless,
        last_logits_only=interface.ends.last_logits_only,
        embedding=EmbeddingRecord.of(interface.ends),
        quantisation=quantisation,
        inputs=tuple(_port(value) for value in model.graph.inputs),
        outputs=tuple(_port(value) for value in model.graph.outputs),
        opset=model.opset_imports[""],
        ir_version=model.ir_version,
        weights_digest=combined_digest(sha256 for _, sha256 in sorted(weights.files.items())),
        files=dict(sorted(files.items())),
        conversion=weights.report.to_json(),
        tools=dict(_versions()),
    )


def _versions() -> Iterator[tuple[str, str]]:
    for name in (*_TOOLS, *_JUDGES):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            assert name in _JUDGES


def _port(value: ir.Value) -> Port:
    """An input or output of the graph, as it stands there."""
    assert value.name is not None and value.dtype is not None and value.shape is not None
    shape = tuple(dim if isinstance(dim, int) else str(dim) for dim in value.shape)
    return Port(value.name, BY_ONNX[value.dtype].name, shape, io_names.past_of(value.name))
