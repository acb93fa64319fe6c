"""What `blockexport onnx` refuses: one message that names the fault, exit code 2, and nothing left behind."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from blockexport.cli.main import main
from blockexport.export import onnx_export
from blockexport.export.bundle import clone_file
from tests.small_models import gguf_writer, small_config, small_weights, write_folder

CONFIG = small_config("llama", max_position_embeddings=64)
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint in three shards, in a folder whose name is not easy."""
    return write_folder(tmp_path / "ein mödel 模型", CONFIG, small_weights(CONFIG), shards=3)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused(MODEL, options...)` runs the command, which must fail cleanly; returns its message."""

    def run(source: Path, *options: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(["onnx", str(source), "-o", str(tmp_path / "new" / "bundle"), *options]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1, "one message"
        assert sorted(tmp_path.rglob("*")) == before, "nothing left behind"
        return captured.err

    return run


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("generation_config.json", b'{"top_p": 5}', "top_p is 5, and must be a number above 0"),
        ("tokenizer.json", Tokenizer(WordLevel({"a": 0, "b": 999}, "a")).to_str().encode(), "another model's"),
        ("tokenizer.json", b'{"version": "1.0"}', "the checkpoint's tokenizer.json"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja is not UTF-8"),
    ],
)
def test_texts_are_looked_at_before_the_weights_are_written(
    name: str, content: bytes, said: str, model: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "write_weights", lambda *_: pytest.fail("the work has begun"))
    (model / name).write_bytes(content)
    assert said in refused(model)


def change_config(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def change_shard(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Rewrite the second shard, and let the index follow."""
    tensors = load_file(folder / SHARD)
    old = set(tensors)
    change(tensors)
    save_file(tensors, folder / SHARD)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    kept = {name: file for name, file in index["weight_map"].items() if name not in old - set(tensors)}
    index["weight_map"] = kept | dict.fromkeys(tensors, SHARD)
    path.write_text(json.dumps(index))


def cut(folder: Path) -> None:
    data = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(data[:-100])


def name_in_shard(folder: Path) -> str:
    return sorted(name for name in load_file(folder / SHARD) if name.endswith("proj.weight"))[0]


def test_shards(model: Path, refused: Callable[..., str]) -> None:
    cut(model)
    assert SHARD in refused(model)
    (model / SHARD).unlink()
    assert SHARD in refused(model)


def test_a_missing_tensor(model: Path, refused: Callable[..., str]) -> None:
    name = name_in_shard(model)
    change_shard(model, lambda tensors: tensors.pop(name))
    assert name in refused(model)


def test_an_unknown_tensor(model: Path, refused: Callable[..., str]) -> None:
    change_shard(model, lambda tensors: tensors.update({"model.layers.0.surprise.weight": torch.ones(3)}))
    assert "model.layers.0.surprise.weight" in refused(model)


def test_a_wrong_shape(model: Path, refused: Callable[..., str]) -> None:
    name = name_in_shard(model)
    change_shard(model, lambda tensors: tensors.update({name: tensors[name].T.contiguous()}))
    assert name in refused(model)


def test_a_wrong_type(model: Path, refused: Callable[..., str]) -> None:
    name = name_in_shard(model)
    change_shard(model, lambda tensors: tensors.update({name: tensors[name].to(torch.int32)}))
    message = refused(model)
    assert name in message and "I32" in message


def test_values_that_are_not_finite(model: Path, refused: Callable[..., str]) -> None:
    name = name_in_shard(model)
    change_shard(model, lambda tensors: tensors[name].view(-1)[7:8].fill_(float("nan")))
    assert name in refused(model)


def test_values_that_overflow_in_half_precision(model: Path, refused: Callable[..., str]) -> None:
    name = name_in_shard(model)
    change_shard(model, lambda tensors: tensors[name].view(-1)[7:8].fill_(70000.0))
    message = refused(model, "--fp16")
    assert name in message and "65504" in message and "--bf16" in message


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"hidden_act": "relu"}, ["hidden_act", "relu"]),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, ["ntk"]),
        ({"model_type": "mamba"}, ["mamba", "llama"]),
        ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
        ({"dtype": "float16"}, ["float16", "float32"]),
        ({"num_key_value_heads": 4}, ["multiple", "6", "4"]),
    ],
)
def test_configs(keys: dict[str, object], named: list[str], model: Path, refused: Callable[..., str]) -> None:
    change_config(model, **keys)
    message = refused(model)
    assert all(word in message for word in named)


def test_a_corrupt_gguf(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf_writer(path, CONFIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    path.write_bytes(path.read_bytes()[:-3])
    assert "model.gguf" in refused(path)


def test_more_slots_than_the_model_was_trained_for(model: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    for options in ((), ("--force",), ("--fp16",)):
        message = refused(model, "-M", "65", *options)
        assert "65" in message and "64" in message and "--beyond-trained-range" in message
    forced = tmp_path / "forced"
    assert (
        main(["onnx", str(model), "-o", str(forced), "-M", "65", "--beyond-trained-range", "--no-compare", "-q"]) == 0
    )
    assert "use --force" in refused(model, "-M", "65", "--beyond-trained-range", "-o", str(forced))
    assert json.loads((forced / "manifest.json").read_text())["rope_table_rows"] == 65


@pytest.mark.parametrize(
    ("family", "default"), [("llama", 2048), ("mistral", 131_072), ("qwen2", 32_768), ("qwen3", 32_768)]
)
def test_a_range_that_is_a_default_is_told_to_be_one(
    family: str, default: int, refused: Callable[..., str], tmp_path: Path
) -> None:
    config = small_config(family)
    model = write_folder(tmp_path / "model", config, small_weights(config))
    data = json.loads((model / "config.json").read_text())
    del data["max_position_embeddings"]
    (model / "config.json").write_text(json.dumps(data))
    message = refused(model, "-M", str(default + 1))
    assert f"beyond the {default} positions that are the default of its family" in message
    assert "trained for" not in message


def test_contradictory_options(model: Path, refused: Callable[..., str]) -> None:
    assert "--fp16 and --bf16" in refused(model, "--fp16", "--bf16")
    assert "--headless" in refused(model, "--headless", "--logits", "last")
    assert "'some'" in refused(model, "--logits", "some")


def test_no_space_left(model: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(clone_file, "share_blocks", lambda source, target: False)
    monkeypatch.setattr("shutil.copyfile", full)
    assert "space" in refused(model)


def test_an_output_in_the_way(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bundle"
    command = ["onnx", str(model), "-o", str(target), "--no-compare"]

    def message() -> str:
        assert main(command) == 2
        return capsys.readouterr().err

    target.write_text("a file")
    assert "is a file" in message()
    target.unlink()
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    assert "not a bundle" in message()
    assert main([*command, "--force"]) == 2, "--force replaces bundles and nothing else"
    assert (target / "thesis.txt").read_text() == "precious"
    (target / "thesis.txt").unlink()
    assert main(command) == 0, "an empty folder is not in the way"
    capsys.readouterr()
    first = {path.name: path.read_bytes() for path in target.iterdir()}
    assert "--force" in message()
    assert main([*command, "--force"]) == 0
    assert {path.name: path.read_bytes() for path in target.iterdir()} == first, "the same input gives the same bytes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", model.name]


@pytest.mark.parametrize("path", ["y" * 250, "y" * 300, "ü" * 120, "y" * 300 + "/bundle", "a/b/" + "y" * 251])
def test_a_name_too_long_is_refused_before_the_work(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is unfinished has a longer name, which the user never gave and is never shown."""
    assert main(["onnx", "tiny", "-o", str(tmp_path / path)]) == 2
    message = capsys.readouterr().err
    assert ("bytes" in message or "File name too long" in message) and ".partial" not in message
    assert not list(tmp_path.iterdir())
