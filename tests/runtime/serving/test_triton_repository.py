"""What `blockexport triton` writes, and what it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from blockexport.cli.main import main
from blockexport.export.bundle.manifest import read_manifest
from blockexport.export.triton_repository import Asked, decoder_config, text_config, write_repository
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from tests.exported import export, random_model

WHOLE = Asked("stories", 8, 64, "onnxruntime", decoder=True)


def asked_for(**changes: object) -> Asked:
    """The usual choice, with changes."""
    return replace(WHOLE, **changes)  # type: ignore[arg-type]


def test_both_models_are_written_and_hold_what_the_bundle_does(judged_stories: Path, tmp_path: Path) -> None:
    assert main(["triton", str(judged_stories), "-o", str(tmp_path / "models"), "--name", "stories"]) == 0
    version = tmp_path / "models" / "stories" / "1"
    assert read_manifest(version / "bundle") == read_manifest(judged_stories)
    for name in read_manifest(judged_stories).files:
        assert (version / "bundle" / name).read_bytes() == (judged_stories / name).read_bytes()
    decoder = sorted(path.name for path in (tmp_path / "models" / "stories-decoder" / "1").iterdir())
    assert decoder == ["model.onnx", "model.safetensors", "rope.safetensors"]
    assert main(["verify", str(version / "bundle"), "-q"]) == 0
    text = (tmp_path / "models" / "stories" / "README.md").read_text()
    assert "$" not in text and "stories-decoder" in text
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["stories", "stories-decoder"]


def test_the_configs(judged_stories: Path) -> None:
    manifest = read_manifest(judged_stories)
    decoder = decoder_config(manifest, "d")
    heads = f"{manifest.config.num_key_value_heads}, 512, {manifest.config.head_dim}"
    assert '{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1, -1 ] }' in decoder
    assert f'{{ name: "present.0.value" data_type: TYPE_FP32 dims: [ -1, {heads} ] }}' in decoder
    assert decoder.count("data_type") == len(manifest.inputs) + len(manifest.outputs)
    text = text_config(asked_for(rows=3, queue=0))
    assert "decoupled: true" in text and 'key: "rows" value { string_value: "3" }' in text


def test_what_is_refused(judged_stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("-o", str(tmp_path / "models"), "-q")
    wrong = {
        ("--name", "a/b"): "'a/b' cannot name a model",
        ("--name", ".a"): "'.a' cannot name a model",
        ("--backend", "pt2"): "has no model.pt2, which the backend pt2 runs",
        ("--backend", "none"): "no backend 'none'",
    }
    for more, message in wrong.items():
        assert main(["triton", str(judged_stories), *out, *more]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
    (tmp_path / "models" / "b-decoder").mkdir(parents=True)
    assert main(["triton", str(judged_stories), *out, "--name", "b"]) == 2
    assert "has a model b-decoder already" in capsys.readouterr().err
    assert main(["triton", str(judged_stories), *out, "--name", "b", "--no-decoder"]) == 0
    assert main(["triton", str(judged_stories), "-o", str(judged_stories / "models")]) == 2


def test_a_damaged_bundle_leaves_nothing(judged_stories: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    shutil.copytree(judged_stories, bundle)
    content = bytearray((bundle / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (bundle / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"model\.safetensors is not the file that the manifest lists"):
        write_repository(bundle, tmp_path / "models", WHOLE)
    (bundle / "model.onnx").unlink()
    with pytest.raises(UsageError, match=r"model\.onnx is missing"):
        write_repository(bundle, tmp_path / "models", WHOLE)
    assert not (tmp_path / "models").exists()


def test_bundles_without_tokens_or_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = random_model(num_hidden_layers=1, layer_types=())
    export(model, tmp_path / "headless", Precision.FP32, headless=True)
    export(model, tmp_path / "plain", Precision.FP32)
    for name, message in (("headless", "is headless and gives no tokens"), ("plain", "tokenizer.json")):
        assert main(["triton", str(tmp_path / name), "-o", str(tmp_path / "models"), "-q"]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
