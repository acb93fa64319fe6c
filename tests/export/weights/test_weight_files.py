"""The bundle's weights: what is written is what the checkpoint holds, in the asked precision, or one message says why
it cannot be."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors import safe_open

from blockexport.export.bundle import clone_file
from blockexport.export.weights.weight_files import WrittenWeights, write_weights
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.checkpoints.safetensors_header import StoredTensor, read_header
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends
from blockexport.models.precision import Precision
from blockexport.models.wording import size
from tests.small_models import (
    Weights,
    close_gguf,
    gguf_name,
    gguf_writer,
    small_config,
    small_weights,
    write_folder,
    write_gguf,
    write_odd_folder,
)

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
PAGE = 4096


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "büro ausgabe"
    folder.mkdir()
    return folder


def saved(tmp_path: Path, weights: Weights, dtype: str = "float32", shards: int = 1) -> Checkpoint:
    return open_checkpoint(str(write_folder(tmp_path / "model", small_config(dtype=dtype), weights, shards)))


def places(out: Path, written: WrittenWeights) -> dict[str, tuple[str, StoredTensor]]:
    """Where each tensor is: file and place."""
    return {name: (file, stored) for file in written.files for name, stored in read_header(out / file).items()}


def check_written(out: Path, written: WrittenWeights, expected: Weights) -> None:
    """Every claim of the record against the files, and the tensors in them: values, places and hashes."""
    found = places(out, written)
    assert found.keys() >= expected.keys()
    assert written.report.cloned or found.keys() == expected.keys()
    assert sorted(path.name for path in out.iterdir()) == sorted(written.files)
    for name, values in expected.items():
        file, stored = found[name]
        with (out / file).open("rb") as opened:
            opened.seek(stored.offset)
            raw = bytearray(opened.read(stored.length))
        assert torch.equal(torch.frombuffer(raw, dtype=values.dtype).view(stored.shape), values), name
        with safe_open(out / file, "pt") as library:
            assert torch.equal(library.get_tensor(name), values)
    for name, sha256 in written.files.items():
        assert sha256 == hashlib.sha256((out / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("dtype", "precision"), [("float32", FP32), ("bfloat16", BF16), ("float16", FP16)])
def test_files_of_the_wanted_type_are_cloned(
    tmp_path: Path, out: Path, dtype: str, precision: Precision, shards: int
) -> None:
    weights = small_weights(small_config(dtype=dtype))
    checkpoint = saved(tmp_path, weights, dtype, shards)
    written = write_weights(checkpoint, out, precision, list(weights))
    check_written(out, written, weights)
    assert written.report.cloned
    assert len(written.files) == shards
    for source in checkpoint.source.files:
        copy = out / source.name
        assert copy.read_bytes() == source.read_bytes()
        assert written.source_sha256[source] == written.files[source.name]
        assert copy.stat().st_nlink == 1
        assert copy.stat().st_ino != source.stat().st_ino
        assert not copy.is_symlink()


def test_links_are_followed_and_not_copied(tmp_path: Path, out: Path) -> None:
    """A Hub snapshot is a folder of symbolic links."""
    weights = small_weights(small_config())
    saved(tmp_path, weights)
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "blob")
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "blob")
    written = write_weights(open_checkpoint(str(tmp_path / "model")), out, FP32, list(weights))
    check_written(out, written, weights)
    assert not (out / "model.safetensors").is_symlink()


def test_only_the_shards_that_are_needed_are_cloned(tmp_path: Path, out: Path) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights, shards=len(weights))
    headless = list(expected_tensors(checkpoint.config, Ends.HIDDEN_STATES))
    written = write_weights(checkpoint, out, FP32, headless)
    check_written(out, written, {name: weights[name] for name in headless})
    assert len(written.files) == len(weights) - 2


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float32", FP16), ("float32", BF16), ("bfloat16", FP32), ("float16", BF16), ("bfloat16", FP16)],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_other_types_are_converted_into_one_file(
    tmp_path: Path, out: Path, dtype: str, precision: Precision, shards: int
) -> None:
    weights = small_weights(small_config(dtype=dtype))
    written = write_weights(saved(tmp_path, weights, dtype, shards), out, precision, list(weights))
    check_written(out, written, {name: tensor.to(precision.torch_dtype) for name, tensor in weights.items()})
    assert list(written.files) == ["model.safetensors"]
    assert not written.report.cloned
    assert min(stored.offset for _, stored in places(out, written).values()) % PAGE == 0
    assert list(places(out, written)) == list(weights), "the order of the forward pass"


def test_a_mixed_checkpoint_is_converted(tmp_path: Path, out: Path) -> None:
    weights = small_weights(small_config())
    weights["model.norm.weight"] = weights["model.norm.weight"].half()
    written = write_weights(saved(tmp_path, weights), out, FP32, list(weights))
    check_written(out, written, {name: tensor.float() for name, tensor in weights.items()})
    assert written.report.source_types == ("F16", "F32")


def test_tensors_off_their_grid_are_not_cloned(tmp_path: Path, out: Path) -> None:
    """Other runtimes map the file and want each tensor at a multiple of its element."""
    _, weights = write_odd_folder(tmp_path / "model")
    names = [name for name in weights if name != "model.norm.weight"]  # all of the target's type
    written = write_weights(open_checkpoint(str(tmp_path / "model")), out, FP32, names)
    check_written(out, written, {name: weights[name] for name in names})
    assert all(stored.offset % 4 == 0 for _, stored in places(out, written).values())


def test_gguf_and_random_weights_are_written_out(tmp_path: Path, out: Path) -> None:
    config = small_config()
    weights = small_weights(config)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", config, weights)))
    check_written(out, write_weights(checkpoint, out, FP32, list(weights)), weights)
    shutil.rmtree(out)
    out.mkdir()
    random = RandomCheckpoint(config, 0, "x")
    expected = {name: random.read(name) for name in random.entries}
    check_written(out, write_weights(random, out, FP32, list(weights)), expected)


@pytest.mark.parametrize("precision", [FP32, FP16, BF16])
def test_a_quantised_file_says_what_it_was_and_how_it_grew(tmp_path: Path, out: Path, precision: Precision) -> None:
    config = small_config(hidden_size=64, intermediate_size=96, head_dim=8, num_attention_heads=8)
    weights = small_weights(config)
    writer = gguf_writer(tmp_path / "m.gguf", config)
    for name, values in weights.items():
        kind = {"up_proj": "Q8_0", "down_proj": "Q8_0", "embed_tokens": "Q4_1", "gate_proj": "F16"}.get(
            name.split(".")[-2], "F32"
        )
        stored = GGMLQuantizationType[kind]
        writer.add_tensor(gguf_name(name, config), quants.quantize(values.numpy(), stored), raw_dtype=stored)
    close_gguf(writer)
    written = write_weights(open_checkpoint(str(tmp_path / "m.gguf")), out, precision, list(weights))
    assert written.report.source_types == ("F16", "F32", "Q4_1", "Q8_0")
    assert written.report.dequantised == {"Q4_1": 1, "Q8_0": 6}
    sizes = [size(path.stat().st_size) for path in (tmp_path / "m.gguf", out / "model.safetensors")]
    note = written.report.notes()[0]
    assert all(part in note for part in ("1 in Q4_1, 6 in Q8_0", *sizes, precision.element.safetensors))
    assert ("--fp16" in note) is (precision is FP32)


def test_an_unquantised_gguf_says_nothing(tmp_path: Path, out: Path) -> None:
    config = small_config()
    path = write_gguf(tmp_path / "m.gguf", config, small_weights(config))
    written = write_weights(open_checkpoint(str(path)), out, FP32, list(expected_tensors(config)))
    assert (written.report.source_types, written.report.notes()) == (("F32",), [])


def test_a_headless_conversion_leaves_the_ends_out(tmp_path: Path, out: Path) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)
    headless = list(expected_tensors(checkpoint.config, Ends.HIDDEN_STATES))
    written = write_weights(checkpoint, out, BF16, headless)
    check_written(out, written, {name: weights[name].bfloat16() for name in headless})


def test_the_same_input_gives_the_same_bytes_whatever_the_order_asked_for(tmp_path: Path, out: Path) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)
    one = write_weights(checkpoint, out, BF16, list(weights))
    (out / "model.safetensors").unlink()
    two = write_weights(checkpoint, out, BF16, list(reversed(weights)))
    assert one == two


def test_large_tensors_are_converted_in_chunks(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockexport.export.weights.weight_files._CHUNK_ELEMENTS", 1000)
    weights = small_weights(small_config())
    weights["lm_head.weight"][0, 0] = 1e-9
    weights["lm_head.weight"][96, 47] = -3e-9
    written = write_weights(saved(tmp_path, weights), out, FP16, list(weights))
    check_written(out, written, {name: tensor.half() for name, tensor in weights.items()})
    (loss,) = written.report.losses
    assert (loss.name, loss.flushed) == ("lm_head.weight", 2)
    assert loss.largest_flushed == pytest.approx(3e-9)


def test_values_flushed_to_zero_are_counted(tmp_path: Path, out: Path) -> None:
    """Half of float16's smallest step rounds to zero, anything above it does not; zeros are not counted."""
    weights = small_weights(small_config())
    smallest = 2.0**-24
    weights["model.norm.weight"][:5] = torch.tensor([smallest / 2, -smallest / 4, smallest * 0.51, 0.0, smallest])
    weights["lm_head.weight"][3, 4] = 1e-12
    written = write_weights(saved(tmp_path, weights), out, FP16, list(weights))
    assert {loss.name: loss.flushed for loss in written.report.losses} == {"model.norm.weight": 2, "lm_head.weight": 1}
    (note,) = written.report.notes()
    assert "3 weights" in note
    assert "model.norm.weight" in note
    assert "2.98e-08" in note
    (norm,) = [x for x in written.report.to_json()["flushed_to_zero"] if x["tensor"] == "model.norm.weight"]
    assert (norm["count"], norm["largest"]) == (2, smallest / 2)


def test_a_conversion_that_loses_nothing_says_nothing(tmp_path: Path, out: Path) -> None:
    weights = small_weights(small_config())
    written = write_weights(saved(tmp_path, weights), out, BF16, list(weights))
    assert written.report.notes() == []
    assert written.report.losses == ()


@pytest.mark.parametrize(
    ("precision", "value", "limit", "remedy"),
    [(FP16, -65_520.0, "65504", "--bf16"), (BF16, 3.4e38, "3.38953e+38", "--fp32")],
)
def test_overflow_is_refused(
    tmp_path: Path, out: Path, precision: Precision, value: float, limit: str, remedy: str
) -> None:
    weights = small_weights(small_config())
    weights["model.layers.2.mlp.down_proj.weight"][1, 1] = value
    checkpoint = saved(tmp_path, weights)
    with pytest.raises(UsageError) as caught:
        write_weights(checkpoint, out, precision, list(weights))
    for fragment in ("model.layers.2.mlp.down_proj.weight (1 values", f"{abs(value):.6g}", limit, remedy):
        assert fragment in str(caught.value)


def test_the_largest_value_that_fits_is_no_overflow(tmp_path: Path, out: Path) -> None:
    weights = small_weights(small_config())
    weights["model.layers.2.mlp.down_proj.weight"][1, 1] = 65_519.0
    written = write_weights(saved(tmp_path, weights), out, FP16, list(weights))
    check_written(out, written, {name: tensor.half() for name, tensor in weights.items()})


@pytest.mark.parametrize("precision", [FP32, BF16])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, out: Path, precision: Precision, bad: float) -> None:
    weights = small_weights(small_config())
    weights["lm_head.weight"][90, 3] = bad
    checkpoint = saved(tmp_path, weights)
    with pytest.raises(UsageError, match=r"lm_head\.weight holds 1 values .*\[90, 3\]"):
        write_weights(checkpoint, out, precision, list(weights))


@pytest.mark.parametrize("precision", [FP32, BF16])
def test_a_disk_that_is_too_small_is_found_before(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)
    monkeypatch.setattr(clone_file, "share_blocks", lambda source, target: False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UsageError, match=r"needs \d{6} bytes .* 1000 free"):
        write_weights(checkpoint, out, precision, list(weights))
    assert list(out.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)

    def copyfile(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(clone_file, "share_blocks", lambda source, target: False)
    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(UsageError, match="no space was left"):
        write_weights(checkpoint, out, FP32, list(weights))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_conversion_onto_a_full_disk(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)
    original = Path.open

    def open_full(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        return original(Path("/dev/full"), "wb") if mode == "xb" else original(path, mode, *args, **options)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(UsageError, match="no space was left"):
        write_weights(checkpoint, out, BF16, list(weights))


def test_a_source_that_changes_meanwhile(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)
    source = checkpoint.source.files[0]
    original = shutil.copyfile

    def copyfile(one: Path, other: Path) -> None:
        original(one, other)
        os.utime(source, ns=(1, 1))

    monkeypatch.setattr(clone_file, "share_blocks", lambda source, target: False)
    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(UsageError, match="was changed while it was copied"):
        write_weights(checkpoint, out, FP32, list(weights))


@pytest.mark.parametrize("precision", [FP32, BF16])
def test_a_file_in_the_way_is_neither_overwritten_nor_removed(tmp_path: Path, out: Path, precision: Precision) -> None:
    weights = small_weights(small_config())
    checkpoint = saved(tmp_path, weights)
    (out / "model.safetensors").write_text("precious")
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        write_weights(checkpoint, out, precision, list(weights))
    assert (out / "model.safetensors").read_text() == "precious"


@pytest.mark.parametrize("precision", [FP32, BF16])
def test_progress_ends_at_its_total(tmp_path: Path, out: Path, precision: Precision) -> None:
    heard: list[tuple[str, int, int]] = []
    weights = small_weights(small_config())
    names: Sequence[str] = list(weights)
    write_weights(saved(tmp_path, weights), out, precision, names, progress=lambda *args: heard.append(args))
    assert len({(label, total) for label, _, total in heard}) == 1
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    assert heard[-1][1] == heard[-1][2]


def test_torch_keeps_its_threads(tmp_path: Path, out: Path) -> None:
    before = torch.get_num_threads()
    weights = small_weights(small_config())
    write_weights(saved(tmp_path, weights), out, BF16, list(weights))
    assert torch.get_num_threads() == before
