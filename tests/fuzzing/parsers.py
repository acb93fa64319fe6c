"""Every parser of a stranger's bytes, as one function of those bytes: it may refuse them, and may do nothing else."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blockexport.export.bundle.engine_entry import entry_of
from blockexport.export.bundle.generation_config import read_generation_config
from blockexport.export.bundle.golden_file import read_golden
from blockexport.export.bundle.manifest import is_as_written, read_manifest
from blockexport.export.bundle.onnx_file import require_weights
from blockexport.export.bundle.signature import wrong_signature
from blockexport.export.lint.graph_file import read_graph
from blockexport.export.lint.lint_graph import examine
from blockexport.export.output.atomic_write import PLAN, locked
from blockexport.export.output.ownership import strangers
from blockexport.export.tokenizer.gguf_tokenizer import rebuild_tokenizer
from blockexport.export.tokenizer.sentencepiece_model import read_sentencepiece
from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from blockexport.models.checkpoints.gguf_header import read_gguf
from blockexport.models.checkpoints.safetensors_files import stored_entries
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.formats.adapter_config import read_adapter_config
from blockexport.models.formats.config_hf import read_hf_config
from blockexport.models.formats.packing import read_packing
from blockexport.models.regular_file import read_json_object
from blockexport.runtime.foreign.foreign_convention import recognise
from blockexport.runtime.serving.openai_body import BadRequest, ChatBody, CompletionBody, read_body
from blockexport.runtime.text.bundle_tokenizer import chat_template_of
from blockexport.runtime.text.chat_turns import read_chat_turns
from blockexport.runtime.text.detokenize import TokenBytes
from blockexport.runtime.text.encoder import load_tokenizer
from blockexport.runtime.text.tokenizer_pipeline import is_bounded
from tests.fuzzing import seeds

SECONDS = 1.0  # of processor time for one input
KEY = "RWQ" + "A" * 53
_SAFETENSORS = seeds.safetensors_file()
MODULE = "model.layers.0.self_attn.q_proj"


@dataclass(frozen=True)
class Parser:
    """One parser.

    Attributes:
        seeds: makes sound inputs.
        name: what the bytes are called in their folder.
        steps: what is done with that folder; each may refuse.
        files: whose code this is, whose coverage is told: paths below the repository.
    """

    seeds: Callable[[], Sequence[bytes]]
    name: str
    steps: Sequence[Callable[[Path], object]]
    files: Sequence[str]


def _entries(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_bytes(_SAFETENSORS)
    stored_entries(folder)


def _gguf(folder: Path) -> None:
    checkpoint = GgufCheckpoint(folder / "a.gguf")
    for name in list(checkpoint.entries)[:2]:
        checkpoint.read(name)


def _manifest(folder: Path) -> None:
    manifest = read_manifest(folder)
    for name in manifest.engines:
        entry_of(manifest, name)


def _adapter(folder: Path) -> None:
    config = read_adapter_config(folder)
    config.targets(MODULE, is_inside=True)
    config.scaling(MODULE)
    config.saves(MODULE)


def _packing(folder: Path) -> None:
    model = read_packing(read_json_object(folder / "config.json", ""), "config.json")
    if model is not None:
        model.packing_of(MODULE)


def _tokenizer(folder: Path) -> None:
    loaded = load_tokenizer(folder / "tokenizer.json")
    tokens = TokenBytes(loaded.tokenizer, loaded.decoder)
    for token_id in range(12):
        _ = tokens[token_id]
    if is_bounded(json.loads((folder / "tokenizer.json").read_bytes())):  # what is not has a process with limits
        loaded.encode("ab a\nb<s>" * 9)


def _recognised(folder: Path) -> None:
    path = folder / "model.onnx"
    recognise(read_graph(path), path)


def _linted(folder: Path) -> None:
    examine(read_graph(folder / "model.onnx"))


def _weights(folder: Path) -> None:
    path = folder / "model.onnx"
    (folder / "model.safetensors").write_bytes(bytes(24))
    require_weights(read_graph(path), path, "")


def _chat(folder: Path) -> None:
    body = read_body(ChatBody, (folder / "body").read_bytes())
    body.conversation()
    _ = body.most_tokens, body.logprobs_wanted, body.stops


def _completion(folder: Path) -> None:
    read_body(CompletionBody, (folder / "body").read_bytes()).prompt_given()


def _finished(folder: Path) -> None:
    """A plan is carried out inside of its folder, and nowhere else."""
    outside = folder.parent / "outside"
    for path in (folder / "a", folder / "b", outside):
        path.write_bytes(path.name.encode())
    with locked(folder):
        pass
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, outside.name}
    assert outside.read_bytes() == b"outside"
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _signed(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"{}")
    wrong_signature(folder, b"{}", KEY)


def try_input(parser: Parser, data: bytes, folder: Path) -> int:
    """Hand `data` to a parser as a file in `folder`, which has a folder of its own around it.

    Returns:
        How many steps took it.

    Raises:
        AssertionError: it took too long, or touched what it may not.
        Exception: whatever is no refusal: a bug.
    """
    (folder / parser.name).write_bytes(data)
    taken = 0
    for step in parser.steps:
        began = time.process_time()
        with suppress(UsageError, NotJudgedError, BadRequest):
            step(folder)
            taken += 1
        took = time.process_time() - began
        assert took < SECONDS, f"it took {took:.1f} s of processor time"
    return taken


PARSERS: dict[str, Parser] = {
    "gguf": Parser(
        lambda: [seeds.gguf_file(), seeds.gguf_file(byte_level=True)],
        "a.gguf",
        (_gguf, lambda folder: rebuild_tokenizer(read_gguf(folder / "a.gguf")[0])),
        (
            "models/checkpoints/gguf_header.py",
            "models/checkpoints/gguf_checkpoint.py",
            "models/formats/config_gguf.py",
            "export/tokenizer/gguf_tokenizer.py",
            "export/tokenizer/gguf_vocabulary.py",
        ),
    ),
    "safetensors": Parser(
        lambda: [seeds.safetensors_file()],
        "a.safetensors",
        (lambda folder: read_header(folder / "a.safetensors"),),
        ("models/checkpoints/safetensors_header.py",),
    ),
    "weight-index": Parser(
        lambda: [seeds.weight_index()],
        "model.safetensors.index.json",
        (_entries,),
        ("models/checkpoints/safetensors_files.py",),
    ),
    "config": Parser(
        seeds.configs,
        "config.json",
        (read_hf_config, _packing),
        (
            "models/formats/config_hf.py",
            "models/formats/config_rope.py",
            "models/formats/packing.py",
            "models/formats/module_targets.py",
            "models/config/config_fields.py",
        ),
    ),
    "generation-config": Parser(
        lambda: [seeds.generation_config()],
        "generation_config.json",
        (lambda folder: read_generation_config(folder / "generation_config.json"),),
        ("export/bundle/generation_config.py", "models/regular_file.py"),
    ),
    "manifest": Parser(
        lambda: [seeds.manifest(), seeds.manifest_with_engine()],
        "manifest.json",
        (_manifest, is_as_written, strangers),
        ("export/bundle/manifest.py", "models/strict_json.py", "export/output/ownership.py"),
    ),
    "plan": Parser(lambda: [seeds.plan()], PLAN, (_finished,), ("export/output/atomic_write.py",)),
    "golden": Parser(lambda: [seeds.golden()], "golden.safetensors", (read_golden,), ("export/bundle/golden_file.py",)),
    "tokenizer": Parser(
        seeds.tokenizers,
        "tokenizer.json",
        (_tokenizer,),
        ("runtime/text/tokenizer_pipeline.py", "runtime/text/encoder.py", "runtime/text/detokenize.py"),
    ),
    "tokenizer-config": Parser(
        seeds.tokenizer_configs,
        "tokenizer_config.json",
        (chat_template_of,),
        ("runtime/text/bundle_tokenizer.py", "runtime/text/chat_template.py"),
    ),
    "chat-turns": Parser(
        lambda: [seeds.chat_turns()], "chat_turns.json", (read_chat_turns,), ("runtime/text/chat_turns.py",)
    ),
    "sentencepiece": Parser(
        lambda: [seeds.sentencepiece()],
        "tokenizer.model",
        (lambda folder: rebuild_tokenizer(read_sentencepiece(folder / "tokenizer.model")),),
        ("export/tokenizer/sentencepiece_model.py",),
    ),
    "adapter": Parser(
        lambda: [seeds.adapter_config()],
        "adapter_config.json",
        (_adapter,),
        ("models/formats/adapter_config.py",),
    ),
    "onnx": Parser(
        seeds.graphs,
        "model.onnx",
        (_weights, _recognised, _linted),
        (
            "export/bundle/onnx_file.py",
            "export/bundle/external_data.py",
            "export/bundle/model_bounds.py",
            "export/bundle/dataflow/flat_graph.py",
            "export/bundle/dataflow/cache_flow.py",
            "runtime/foreign/foreign_convention.py",
        ),
    ),
    "openai": Parser(seeds.bodies, "body", (_chat, _completion), ("runtime/serving/openai_body.py",)),
    "signature": Parser(
        lambda: [seeds.signature()],
        "manifest.json.minisig",
        (_signed,),
        ("export/bundle/signature.py",),
    ),
}
