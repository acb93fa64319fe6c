"""GGUF files: names, types and the order of q and k rows come out as Hugging Face has them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from blockexport.models.checkpoints import gguf_checkpoint
from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from blockexport.models.checkpoints.gguf_header import read_gguf
from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.model_config import RopeScaling
from blockexport.models.errors import UsageError
from tests.small_models import (
    Weights,
    add_weights,
    close_gguf,
    gguf_name,
    gguf_writer,
    small_config,
    small_weights,
    write_gguf,
)
from tests.support import shared_path, smollm2_gguf

QUANTISED = [
    kind
    for kind in gguf.GGMLQuantizationType
    if kind.name[0] in "QITMN" and kind.name not in ("I8", "I16", "I32", "I64", "Q8_1", "Q8_K")
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    config = small_config()
    return write_gguf(tmp_path / "maß 模型.gguf", config, small_weights(config))


def refused(path: Path, *fragments: str) -> None:
    with pytest.raises(UsageError) as caught:
        GgufCheckpoint(path)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_the_trained_model_reads_the_same_from_both_of_its_files() -> None:
    """The GGUF's q and k rows pair neighbours, the safetensors file's pair halves: bit-equal means both are right."""
    folder = shared_path("models/stories260K")
    from_gguf, from_folder = GgufCheckpoint(folder / "stories260K-F32.gguf"), SafetensorsCheckpoint(folder)
    assert from_gguf.config == from_folder.config
    assert list(from_gguf.entries) == list(from_folder.entries)
    for name in from_folder.entries:
        assert torch.equal(from_gguf.read(name), from_folder.read(name)), name


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_tensor_comes_back_in_hugging_face_layout(tmp_path: Path, family: str) -> None:
    """With biases where the family has them: llama.cpp permutes those of q and k like the weights."""
    config = small_config(family, qkv_bias=family in ("llama", "qwen2"))
    weights = small_weights(config)
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "model.gguf", config, weights))
    assert checkpoint.entries.keys() == weights.keys()
    for name, saved in weights.items():
        assert torch.equal(checkpoint.read(name), saved), name


def test_only_untouched_tensors_have_a_location(file: Path) -> None:
    checkpoint = GgufCheckpoint(file)
    for name, entry in checkpoint.entries.items():
        assert (entry.location is None) == (".q_proj." in name or ".k_proj." in name)
        if entry.location is not None:
            raw = file.read_bytes()[entry.location.offset :][: entry.location.length]
            assert raw == checkpoint.read(name).numpy().tobytes()


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_types_are_dequantised_as_the_gguf_package_does(
    tmp_path: Path, kind: gguf.GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_checkpoint, "PIECE", 10 * 256)  # the last piece is a shorter one
    config = small_config(hidden_size=256)
    weights = small_weights(config)
    embedding = weights.pop("model.embed_tokens.weight")
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    try:
        raw = gguf.quants.quantize(embedding.numpy(), kind)
    except NotImplementedError:  # read only: any bytes are some weights
        shape = (config.vocab_size, 256 // block * block_bytes)
        raw = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    writer = gguf_writer(tmp_path / "model.gguf", config)
    add_weights(writer, config, weights)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)
    close_gguf(writer)
    try:
        with np.errstate(all="ignore"):
            expected = gguf.quants.dequantize(raw, kind)
    except NotImplementedError:
        refused(tmp_path / "model.gguf", "token_embd.weight", kind.name)
        return
    checkpoint = GgufCheckpoint(tmp_path / "model.gguf")
    entry, values = checkpoint.entries["model.embed_tokens.weight"], checkpoint.read("model.embed_tokens.weight")
    assert (entry.dtype, entry.shape, entry.location) == ("F32", (97, 256), None)
    assert values.dtype == torch.float32
    np.testing.assert_array_equal(values.numpy(), expected)
    for name, saved in weights.items():
        assert torch.equal(checkpoint.read(name), saved), name


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_half_precision_keeps_its_type(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    config = small_config()
    weights = {name: tensor.to(dtype) for name, tensor in small_weights(config).items()}
    writer = gguf_writer(tmp_path / "model.gguf", config)
    raw_type = gguf.GGMLQuantizationType[kind]
    for name, tensor in weights.items():
        heads = {"q_proj": 6, "k_proj": 2}.get(name.split(".")[-2])
        stored = tensor.float()
        if heads is not None:
            pairs = stored.shape[0] // heads // 2
            stored = stored.view(heads, 2, pairs, -1).transpose(1, 2).reshape(stored.shape)
        writer.add_tensor(gguf_name(name, config), gguf.quants.quantize(stored.numpy(), raw_type), raw_dtype=raw_type)
    close_gguf(writer)
    checkpoint = GgufCheckpoint(tmp_path / "model.gguf")
    for name, saved in weights.items():
        assert checkpoint.entries[name].dtype == kind
        assert torch.equal(checkpoint.read(name), saved), name


def test_rope_factors_go_into_the_config(tmp_path: Path) -> None:
    config = small_config()
    writer = gguf_writer(tmp_path / "model.gguf", config)
    add_weights(writer, config, small_weights(config))
    factors = [1.0, 1.0, 2.5, 8.0, 8.0]
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    close_gguf(writer)
    checkpoint = GgufCheckpoint(tmp_path / "model.gguf")
    assert checkpoint.config.rope_scaling == RopeScaling("freq_factors", freq_factors=tuple(factors))


def test_the_header_reads_as_the_gguf_package_reads_it() -> None:
    path = smollm2_gguf()
    metadata, tensors = read_gguf(path)
    reference = gguf.GGUFReader(path)
    fields = {name: field for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert metadata.keys() == fields.keys()
    for name, field in fields.items():
        assert metadata[name] == field.contents(), name
    assert [t.name for t in tensors] == [t.name for t in reference.tensors]
    for ours, theirs in zip(tensors, reference.tensors, strict=True):
        assert (ours.offset, ours.length, ours.ggml_type) == (theirs.data_offset, theirs.n_bytes, theirs.tensor_type)
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))


Edit = Callable[[Weights], object]


@pytest.mark.parametrize(
    ("edit", "fragments"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), ["lacks", "model.layers.1.mlp.up_proj.weight"]),
        (lambda w: w.update({"model.norm.weight": torch.ones(49)}), ["output_norm.weight", "[49]", "[48]"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, edit: Edit, fragments: list[str]) -> None:
    config = small_config()
    weights = small_weights(config)
    edit(weights)
    refused(write_gguf(tmp_path / "model.gguf", config, weights), *fragments)


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_inp.weight", "rope_factors_long.weight", "blk.9.attn_q.weight"])
def test_an_unknown_tensor_is_named(tmp_path: Path, name: str) -> None:
    config = small_config()
    writer = gguf_writer(tmp_path / "model.gguf", config)
    add_weights(writer, config, small_weights(config))
    writer.add_tensor(name, np.ones((60, 48), np.float32))
    close_gguf(writer)
    with pytest.raises(UsageError):
        GgufCheckpoint(tmp_path / "model.gguf")


def test_an_integer_type_is_refused(tmp_path: Path) -> None:
    config = small_config()
    weights = small_weights(config)
    del weights["model.norm.weight"]
    writer = gguf_writer(tmp_path / "model.gguf", config)
    add_weights(writer, config, weights)
    writer.add_tensor("output_norm.weight", np.ones(48, np.int32))
    close_gguf(writer)
    refused(tmp_path / "model.gguf", "output_norm.weight", "I32", "Q8_0")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_file_without_tensors_is_refused(family: str, tmp_path: Path) -> None:
    """Whatever its family: nothing is said of a config.json, which it does not have."""
    writer = gguf_writer(tmp_path / "vocabulary.gguf", small_config(family))
    close_gguf(writer)
    refused(tmp_path / "vocabulary.gguf", "holds metadata and no tensors", "Take the file of the whole model")
    with pytest.raises(UsageError) as caught:
        open_checkpoint(str(tmp_path / "vocabulary.gguf"))
    assert "config.json" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "said"), [("adapter", "LoRA adapter"), ("mmproj", "multimodal"), ("imatrix", "quantisation"), ("x", "'x'")]
)
def test_a_file_that_is_no_model_is_told_as_what_it_is(tmp_path: Path, kind: str, said: str) -> None:
    writer = gguf_writer(tmp_path / "m.gguf", small_config())
    writer.add_type(kind)
    add_weights(writer, small_config(), small_weights(small_config()))
    close_gguf(writer)
    refused(tmp_path / "m.gguf", f"general.type: {kind!r}", said)


def test_a_kind_of_file_that_is_no_text(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "m.gguf", small_config())
    writer.add_array("general.type", [1, 2])
    add_weights(writer, small_config(), small_weights(small_config()))
    close_gguf(writer)
    refused(tmp_path / "m.gguf", "general.type is [1, 2]", "a string")


def test_a_missing_tensor_is_no_fault_of_a_config_file(tmp_path: Path) -> None:
    config = small_config()
    weights = small_weights(config)
    del weights["model.norm.weight"]
    with pytest.raises(UsageError) as caught:
        GgufCheckpoint(write_gguf(tmp_path / "model.gguf", config, weights))
    assert "config.json" not in str(caught.value) and "Download the checkpoint again" in str(caught.value)


def test_a_split_file_is_refused(tmp_path: Path) -> None:
    config = small_config()
    writer = gguf_writer(tmp_path / "model.gguf", config)
    writer.add_uint16("split.count", 3)
    add_weights(writer, config, small_weights(config))
    close_gguf(writer)
    refused(tmp_path / "model.gguf", "3 parts", "llama-gguf-split --merge")


def test_a_later_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    """Only the first part holds the model's metadata."""
    key = b"split.count"
    body = struct.pack("<Q", len(key)) + key + struct.pack("<IH", 2, 3)
    (tmp_path / "model-00002-of-00003.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)
    refused(tmp_path / "model-00002-of-00003.gguf", "3 parts", "llama-gguf-split --merge")


def test_what_is_not_gguf(tmp_path: Path, file: Path) -> None:
    good = file.read_bytes()
    path = tmp_path / "x.gguf"
    for content, fragment in [
        (b"", "not a GGUF file"),
        (b"GGML" + good[4:], "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + good[8:], "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + good[8:], "big-endian"),
        (good[:8] + struct.pack("<Q", 1 << 60) + good[16:], "damaged"),
        (good[:16] + struct.pack("<Q", 1 << 60) + good[24:], "damaged"),
    ]:
        path.write_bytes(content)
        refused(path, str(path), fragment)


def _edited_table(file: Path, edit: Callable[[bytearray, int], None]) -> bytes:
    """The file with the description of `blk.0.attn_norm.weight` edited; the position is that of its name."""
    data = bytearray(file.read_bytes())
    edit(data, data.index(b"blk.0.attn_norm.weight"))
    return bytes(data)


def test_tables_that_lie(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "x.gguf"
    after_name = len(b"blk.0.attn_norm.weight")

    def rename(data: bytearray, at: int) -> None:
        data[at : at + after_name] = b"blk.1.attn_norm.weight"

    def to_the_front(data: bytearray, at: int) -> None:
        data[at + after_name + 16 : at + after_name + 24] = bytes(8)

    def no_dimension(data: bytearray, at: int) -> None:
        data[at + after_name : at + after_name + 4] = bytes(4)

    def unknown_type(data: bytearray, at: int) -> None:
        data[at + after_name + 12 : at + after_name + 16] = b"\xfe\0\0\0"

    for edit, fragment in [
        (rename, "holds blk.1.attn_norm.weight twice"),
        (to_the_front, "overlaps"),
        (no_dimension, "blk.0.attn_norm.weight has 0 dimensions"),
        (unknown_type, "blk.0.attn_norm.weight has the type 254"),
    ]:
        path.write_bytes(_edited_table(file, edit))
        refused(path, "damaged", fragment)


def test_a_vocabulary_cut_between_two_words(tmp_path: Path) -> None:
    """The file ends within eight bytes of a word's end, so that the next word's length does not fit."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 8, 2)
    path = tmp_path / "x.gguf"
    for rest in (b"", b"\0" * 3):
        path.write_bytes(head + struct.pack("<Q", 4) + b"word" + rest)
        refused(path, "truncated", "in the middle of its header")


def test_truncation_at_any_place(tmp_path: Path, file: Path) -> None:
    good = file.read_bytes()
    path = tmp_path / "x.gguf"
    for kept in [*range(4, 200, 7), *range(200, len(good), len(good) // 50), len(good) - 100]:
        path.write_bytes(good[:kept])
        refused(path, str(path), "truncated")


def test_no_flipped_byte_of_a_header_ends_in_a_traceback(tmp_path: Path, file: Path) -> None:
    good = file.read_bytes()
    header_end = min(tensor.offset for tensor in read_gguf(file)[1])
    path = tmp_path / "x.gguf"
    dice = random.Random(5)
    for _ in range(500):
        damaged = bytearray(good)
        damaged[dice.randrange(header_end)] = dice.randrange(256)
        path.write_bytes(damaged)
        with suppress(UsageError):
            checkpoint = GgufCheckpoint(path)
            list(checkpoint.metadata.values())


def test_arrays_are_decoded_when_asked_for(file: Path) -> None:
    metadata: Any = GgufCheckpoint(file).metadata
    assert metadata["tokenizer.ggml.tokens"][:2] == ["<0> é", "<1> é"]
    assert metadata["general.architecture"] == "llama"
    assert metadata.get("no.such.key") is None


def test_a_tied_file_has_no_head(tmp_path: Path) -> None:
    config = replace(small_config(), tie_word_embeddings=True)
    checkpoint = GgufCheckpoint(write_gguf(tmp_path / "model.gguf", config, small_weights(config)))
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.entries
