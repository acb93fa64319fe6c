"""Hugging Face folders: what is read is what was saved, and whatever is wrong is said in one message."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.errors import UsageError
from tests.small_models import Weights, small_config, small_weights, write_folder, write_odd_folder

INDEX = "model.safetensors.index.json"


def raw_file(path: Path, header: object, data: bytes) -> None:
    """A safetensors file with whatever header, JSON or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = small_config()
    return write_folder(tmp_path / "model", config, small_weights(config))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    config = small_config()
    return write_folder(tmp_path / "sharded", config, small_weights(config), shards=3)


def edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    edit(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def resave(folder: Path, edit: Callable[[Weights], object], config: Any = None) -> None:
    weights = small_weights(config or small_config())
    edit(weights)
    save_file(weights, folder / "model.safetensors")


def refused(folder: Path, *fragments: str) -> None:
    with pytest.raises(UsageError) as caught:
        SafetensorsCheckpoint(folder)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_reads_what_was_saved(tmp_path: Path, family: str, shards: int, dtype: str) -> None:
    config = small_config(family, dtype=dtype, tie_word_embeddings=shards == 1)
    weights = small_weights(config)
    checkpoint = SafetensorsCheckpoint(write_folder(tmp_path / "größe und maß 模型", config, weights, shards))
    assert checkpoint.config == config
    assert checkpoint.entries.keys() == weights.keys()
    assert len(checkpoint.source.files) == shards
    for name, saved in weights.items():
        assert checkpoint.read(name).dtype == saved.dtype
        assert torch.equal(checkpoint.read(name), saved)


def test_a_location_holds_the_tensors_own_bytes(sharded: Path) -> None:
    checkpoint = SafetensorsCheckpoint(sharded)
    for name, entry in checkpoint.entries.items():
        assert entry.location is not None
        with entry.location.path.open("rb") as file:
            file.seek(entry.location.offset)
            raw = file.read(entry.location.length)
        assert raw == checkpoint.read(name).numpy().tobytes()


def test_writing_to_a_tensor_leaves_the_file_alone(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    SafetensorsCheckpoint(folder).read("model.norm.weight").fill_(3.0)
    assert (folder / "model.safetensors").read_bytes() == before


def test_an_odd_offset_is_read_by_copying(tmp_path: Path) -> None:
    _, weights = write_odd_folder(tmp_path)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    location = checkpoint.entries["lm_head.weight"].location
    assert location is not None
    assert location.offset % 4 == 2
    for name, saved in weights.items():
        tensor = checkpoint.read(name)
        assert torch.equal(tensor, saved)
        assert tensor.data_ptr() % tensor.itemsize == 0


def test_harmless_tensors_are_left_out(folder: Path) -> None:
    resave(folder, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(5)}))
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in SafetensorsCheckpoint(folder).entries


def test_a_tied_head_equal_to_the_embedding_passes_and_another_does_not(tmp_path: Path) -> None:
    config = small_config(tie_word_embeddings=True)
    weights = small_weights(config)
    head = weights["model.embed_tokens.weight"].clone()
    folder = write_folder(tmp_path, config, weights | {"lm_head.weight": head})
    assert "lm_head.weight" not in SafetensorsCheckpoint(folder).entries
    head[-1, -1] += 1e-3
    write_folder(tmp_path, config, weights | {"lm_head.weight": head})
    refused(tmp_path, "tie_word_embeddings", "lm_head.weight differs")


@pytest.mark.parametrize(
    ("edit", "fragments"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), ["lacks", "model.layers.1.mlp.up_proj.weight"]),
        (lambda w: w.pop("lm_head.weight"), ["lacks", "lm_head.weight", "tie_word_embeddings: true"]),
        (lambda w: w.update({"model.layers.3.mlp.up_proj.weight": torch.ones(1)}), ["model.layers.3", "does not use"]),
        (
            lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(60)}),
            ["q_proj.bias", "does not use"],
        ),
        (lambda w: w.update({"model.norm.weight": torch.ones(49)}), ["model.norm.weight", "[49]", "[48]"]),
        (lambda w: w.update({"model.norm.weight": torch.ones(48).to(torch.complex64)}), ["model.norm.weight", "C64"]),
        (lambda w: w.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}), ["I8", "unquantised"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(folder: Path, edit: Any, fragments: list[str]) -> None:
    resave(folder, edit)
    refused(folder, *fragments)


SIZES = {
    ("llama", "vocab_size"): "embed_tokens.weight in",
    ("llama", "intermediate_size"): "gate_proj.weight in",
    ("llama", "num_key_value_heads"): "k_proj.weight in",
    ("llama", "hidden_size"): "embed_tokens.weight in",
    ("qwen3", "head_dim"): "q_proj.weight in",
}


@pytest.mark.parametrize(("family", "key"), SIZES)
def test_a_tensor_of_another_shape_is_named_with_the_key_that_its_shape_follows_from(
    family: str, key: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, config := small_config(family), small_weights(config))
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, key: 3 * stated[key]}))
    with pytest.raises(UsageError, match=f"{SIZES[family, key]} .*, by .*{key} = {3 * stated[key]}[. ]"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize(("layers", "said"), [(2, "has more layers"), (4, "has fewer layers")])
def test_another_number_of_layers_is_told_as_that(layers: int, said: str, folder: Path) -> None:
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, "num_hidden_layers": layers}))
    refused(folder, said, f"num_hidden_layers = {layers} in config.json")


HEADS = {  # heads and key/value heads of the weights, and what the family takes where the config states no number
    "mistral": (16, 4, 8, 4),
    "smollm3": (16, 8, 4, 4),
    "qwen2": (32, 8, 32, 2),
    "qwen3": (32, 8, 32, 128),
    "llama": (8, 2, 8, 8),
}


@pytest.mark.parametrize("family", HEADS)
def test_a_size_that_the_config_does_not_state_is_not_passed_off_as_its_own(tmp_path: Path, family: str) -> None:
    heads, key_value_heads, taken, width = HEADS[family]
    config = small_config(
        family, hidden_size=64, num_attention_heads=heads, num_key_value_heads=key_value_heads, head_dim=10
    )
    folder = write_folder(tmp_path, config, small_weights(config))
    stated = json.loads((folder / "config.json").read_text())
    for key in ("num_key_value_heads", "head_dim"):
        stated.pop(key)
    (folder / "config.json").write_text(json.dumps(stated))
    refused(folder, f"by num_attention_heads = {heads} and head_dim = {width}, which it does not state.", "q_proj")
    (folder / "config.json").write_text(json.dumps({**stated, "head_dim": 10}))
    refused(folder, f"by head_dim = 10 and num_key_value_heads = {taken}, which it does not state.", "k_proj")
    (folder / "config.json").write_text(json.dumps({**stated, "head_dim": 12, "num_attention_heads": 4 * heads}))
    refused(folder, f"num_attention_heads = {4 * heads} and head_dim = 12. Config", "q_proj")  # the others are no cause
    (folder / "config.json").write_text(json.dumps({**stated, "num_key_value_heads": 8, "head_dim": 12}))
    with pytest.raises(UsageError) as caught:
        SafetensorsCheckpoint(folder)
    assert "not state" not in str(caught.value)


def test_index_naming_an_absent_file(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    refused(sharded, INDEX, "names 3 files", "model-00002-of-00003.safetensors is not beside it")


def test_index_and_shard_that_disagree(sharded: Path) -> None:
    edit_index(sharded, lambda m: m.update({"model.norm.weight": _other(m["model.norm.weight"])}))
    refused(sharded, "model.norm.weight", "do not belong together")


def _other(shard: str) -> str:
    return "model-00001-of-00003.safetensors" if "00001-of" not in shard else "model-00002-of-00003.safetensors"


def test_shard_with_a_tensor_that_the_index_omits(sharded: Path) -> None:
    edit_index(sharded, lambda m: m.pop("model.norm.weight"))
    refused(sharded, "model.norm.weight", "does not place there")


def test_index_with_a_tensor_that_no_shard_holds(sharded: Path) -> None:
    edit_index(sharded, lambda m: m.update({"ghost": m["model.norm.weight"]}))
    refused(sharded, "should hold ghost", "lacks it")


@pytest.mark.parametrize(
    "escape", ["../model/model.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", 7, None]
)
def test_index_reaching_outside_its_folder(sharded: Path, escape: Any) -> None:
    edit_index(sharded, lambda m: m.update({"model.norm.weight": escape}))
    refused(sharded, "plain file name", repr(escape))


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": {}}', '{"weight_map": 3}', "\xff", "[" * 100_000])
def test_a_damaged_index(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content, encoding="latin-1")
    refused(sharded, INDEX)


def test_both_layouts_at_once(sharded: Path, folder: Path) -> None:
    (folder / "model.safetensors").rename(sharded / "model.safetensors")
    refused(sharded, "both", "model.safetensors")


def test_folders_without_safetensors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "can run code")
    (folder / "pytorch_model.bin").rename(folder / "weights.safetensors")
    refused(folder, "weights.safetensors", "rename it")
    (folder / "weights.safetensors").unlink()
    refused(folder, "download the weights")


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 3000, -4, -1])
def test_truncation_at_any_place(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(folder, str(path), "truncated")


def test_trailing_bytes(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0" * 4)
    refused(folder, "4 bytes follow")


def test_a_git_lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(folder, "git lfs pull")


F32_PAIR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "fragment"),
    [
        (b"\xff\xff", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"a": 1, "a": 1}', "appears more than once"),
        ({"a": 3}, "describes a"),
        ({"a": F32_PAIR | {"dtype": "F33"}}, "F33"),
        ({"a": F32_PAIR | {"shape": [-2]}}, "describes a"),
        ({"a": F32_PAIR | {"shape": [2.0]}}, "describes a"),
        ({"a": F32_PAIR | {"data_offsets": [8, 0]}}, "describes a"),
        ({"a": F32_PAIR | {"data_offsets": [0]}}, "describes a"),
        ({"a": F32_PAIR | {"shape": [3]}}, "12 bytes"),
        ({"a": F32_PAIR | {"data_offsets": [4, 12]}}, "gap"),
        ({"a": F32_PAIR, "b": F32_PAIR | {"data_offsets": [4, 12]}}, "overlaps a"),
        ({"a": F32_PAIR | {"shape": [1 << 62], "data_offsets": [0, 1 << 64]}}, "truncated"),
        # What the safetensors library does not open is not copied into a bundle.
        ({"a": F32_PAIR, "__metadata__": 1}, "__metadata__ is 1, and must be texts by name"),
        ({"a": F32_PAIR, "__metadata__": "x"}, '__metadata__ is "x"'),
        ({"a": F32_PAIR, "__metadata__": []}, "__metadata__ is []"),
        ({"a": F32_PAIR, "__metadata__": {"format": 3}}, '__metadata__ is {"format": 3}'),
        ({"a": F32_PAIR, "__metadata__": {"format": None}}, '__metadata__ is {"format": null}'),
        ({"a": F32_PAIR, "__metadata__": {"x": "\ud800"}}, "__metadata__ is"),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: Any, fragment: str) -> None:
    raw_file(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(UsageError, match=re.escape(fragment)):
        read_header(tmp_path / "x.safetensors")


def test_a_lie_of_any_length_is_quoted_in_short(tmp_path: Path) -> None:
    raw_file(tmp_path / "x.safetensors", {"a": F32_PAIR | {"dtype": "y" * 100_000}}, bytes(8))
    with pytest.raises(UsageError, match=r"describes a as .*\.\.\.\. Download it again") as caught:
        read_header(tmp_path / "x.safetensors")
    assert len(str(caught.value)) < 500


def test_no_flipped_byte_of_a_header_ends_in_a_traceback(folder: Path) -> None:
    path = folder / "model.safetensors"
    good = path.read_bytes()
    header_end = 8 + int.from_bytes(good[:8], "little")
    dice = random.Random(5)
    for _ in range(300):
        damaged = bytearray(good)
        damaged[dice.randrange(header_end)] = dice.randrange(256)
        path.write_bytes(damaged)
        with suppress(UsageError):
            SafetensorsCheckpoint(folder)


def test_a_file_cut_after_opening_is_reported(folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(UsageError, match="cannot be read"):
        checkpoint.read("model.norm.weight")
