"""A manifest that does not fit itself is refused by every command that reads it, in one message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from tests.exported import export, random_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with 29 slots and a RoPE table of 64 rows."""
    folder = tmp_path_factory.mktemp("manifest") / "bundle"
    export(random_model(), folder)
    return folder


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("ends", [{}, {"headless": True}, {"last_logits_only": True}])
def test_the_interface_follows_from_the_numbers(tmp_path: Path, precision: Precision, ends: dict[str, bool]) -> None:
    written = export(random_model(), tmp_path, precision, **ends)
    assert (written.inputs, written.outputs) == (written.interface.inputs, written.interface.outputs), (
        "the graph's own, as exported"
    )
    assert read_manifest(tmp_path) == written


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(data: dict[str, Any]) -> None:
        *above, last = path.split("/")
        for key in above:
            data = data[key]
        data[last] = value

    return apply


def one_layer_less(data: dict[str, Any]) -> None:
    data["config"] |= {"num_hidden_layers": 2, "layer_types": []}


def without_output(data: dict[str, Any]) -> None:
    del data["outputs"][-1]


def without_sha(data: dict[str, Any]) -> None:
    del data["files"]["model.onnx"]["sha256"]


def without_graph(data: dict[str, Any]) -> None:
    del data["files"]["model.onnx"]


def without_weights(data: dict[str, Any]) -> None:
    del data["files"]["model.safetensors"]


def add_secret(data: dict[str, Any]) -> None:
    data["files"]["../secret"] = {"sha256": "0" * 64, "sampled_sha256": "0" * 64, "bytes": 1}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("max_sequence_length", 28), "(float32 [batch_size, 2, 29, 10]) among its inputs"),
        (change("max_sequence_length", -3), "max_sequence_length is -3, and must be within 1..64"),
        (change("max_sequence_length", 65), "max_sequence_length is 65, and must be within 1..64"),
        (change("max_sequence_length", "29"), 'max_sequence_length is "29", and must be a whole number'),
        (change("precision", "fp16"), "give past_key_values.0.key (float16 [batch_size, 2, 29, 10])"),
        (change("precision", "int8"), 'precision is "int8", and must be one of fp32, fp16, bf16'),
        (change("headless", True), "give inputs_embeds (float32 [batch_size, sequence_length, 24])"),
        (change("headless", "no"), 'headless is "no", and must be true or false'),
        (change("last_logits_only", True), "give logits (float32 [batch_size, 1, 101])"),
        (change("config/vocab_size", 100), "give logits (float32 [batch_size, sequence_length, 100])"),
        (change("config/hidden_size", "24"), 'config.hidden_size is "24", and must be a whole number'),
        (one_layer_less, "it lists 8 inputs, and a decoder of its config has 6"),
        (change("config/intermediate_size", -1), "config.intermediate_size is -1, and must be above 0"),
        (change("config/sliding_window", 0), "config.sliding_window is 0, and must be at least 1, or null"),
        (change("config/layer_types", ["full_attention"]), "must have one for each of the 3 layers"),
        (change("config/layers_without_rope", [0, 3]), "must name some of the 3 layers, from 0 on"),
        (change("source/seed", "x"), 'source.seed is "x", and must be a whole number or null'),
        (change("files", []), "files is [], and must be an object"),
        (add_secret, "files lists '../secret', and must list none outside of the bundle"),
        (change("files/model.onnx/bytes", -1), "files['model.onnx'].bytes is -1, and must be at least 0"),
        (change("files/model.onnx/sha256", "abc"), "has the hash 'abc', and must have 64 hexadecimal digits"),
        (without_graph, "files does not list model.onnx, which every bundle has"),
        (without_weights, "is made from model.safetensors, which files does not list"),
        (without_output, "it lists 6 outputs, and a decoder of its config has 7"),
        (without_sha, "files['model.onnx'] lacks the key 'sha256'"),
    ],
)
def test_what_is_wrong_is_named(
    made: Path, tmp_path: Path, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = json.loads((made / "manifest.json").read_text())
    spoil(data)
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(UsageError) as caught:
        read_manifest(tmp_path)
    said = str(caught.value)
    assert message in said
    assert said.startswith(f"{tmp_path / 'manifest.json'} is damaged: ")
    assert said.endswith(". Copy the whole bundle again, or export it again")


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xfe", b'{"schema_version": 1}', b"[" * 100_000])
def test_what_is_no_manifest_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"manifest\.json (is damaged|has schema version)"):
        read_manifest(tmp_path)


def test_a_path_that_is_no_bundle_says_what_was_meant(made: Path, tmp_path: Path) -> None:
    for inside in (made / "model.onnx", made / "parity", made / "parity" / "report.json"):
        with pytest.raises(UsageError) as caught:
            read_manifest(inside)
        assert str(caught.value) == f"{inside} is not a bundle, but a path inside of one: did you mean {made}?"
    for name in ("file", "m.gguf", "model/config.json", "folder/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    said = {
        "absent": ": there is no such folder. `blockexport onnx MODEL -o {}` makes one",
        "file": ": it is a file. `blockexport onnx MODEL -o BUNDLE` makes",
        "folder": ": it has no manifest.json. `blockexport onnx MODEL -o BUNDLE` makes",
        "m.gguf": ", but a model. `blockexport onnx {} -o BUNDLE` makes a bundle of it",
        "model": ", but a model. `blockexport onnx {} -o BUNDLE` makes a bundle of it",
    }
    for name, reason in said.items():
        path = tmp_path / name
        with pytest.raises(UsageError, match=re.escape(f"{path} is not a bundle{reason.format(path)}")):
            read_manifest(path)
