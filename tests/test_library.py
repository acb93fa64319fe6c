"""`import blockexport`: what the commands do, as typed functions."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import blockexport
from blockexport.models.errors import UsageError
from tests.small_models import small_config, small_weights, write_folder
from tests.support import REPOSITORY

CONFIG = small_config("qwen2", max_position_embeddings=64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("library") / "checkpoint", CONFIG, small_weights(CONFIG))


@pytest.fixture(scope="module")
def made(checkpoint: Path) -> blockexport.ExportedBundle:
    return blockexport.export_bundle(checkpoint, checkpoint.parent / "bundle", max_sequence_length=29)


def test_a_bundle_is_exported_judged_and_sealed(made: blockexport.ExportedBundle) -> None:
    assert made.report is not None and str(made.report.verdict) == "pass"
    assert made.not_judged is None and made.manifest.max_sequence_length == 29
    assert (made.folder / "parity" / "report.html").is_file()


def test_a_bundle_is_judged_again(made: blockexport.ExportedBundle) -> None:
    heard: list[str] = []

    def listen(label: str, done: int, total: int) -> None:
        heard.append(label)

    report = blockexport.compare_bundle(made.folder, backend="replay", checks=["prefill", "decode"], progress=listen)
    assert [check.name for check in report.checks] == ["prefill", "decode"] and report.exit_code == 0
    assert heard


def test_a_decoder_is_opened(made: blockexport.ExportedBundle) -> None:
    decoder = blockexport.open_decoder(made.folder, max_sequence_length=40)
    assert decoder.prefill(torch.tensor([[5, 6, 7]])).shape == (1, 3, CONFIG.vocab_size)
    assert decoder.lengths_B.tolist() == [3] and decoder.max_sequence_length == 40


def test_slots_are_declared_anew(made: blockexport.ExportedBundle, tmp_path: Path) -> None:
    manifest, dropped = blockexport.redeclare(made.folder, 41, tmp_path / "longer")
    assert manifest.max_sequence_length == 41 and "parity/report.json" in dropped
    assert blockexport.open_decoder(tmp_path / "longer").max_sequence_length == 41


def test_an_engine_is_built(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed: pip install tensorrt-rtx")
    half = blockexport.export_bundle(checkpoint, tmp_path / "half", precision="fp16", compare=False)
    assert half.report is None
    name, manifest, times = blockexport.build_engine(
        half.folder, backend="tensorrt-rtx", compute_capabilities=["8.9"], max_prefill=8
    )
    assert times is None and (half.folder / name).stat().st_size == manifest.files[name].bytes


def test_a_bad_file_is_kept_aside_and_explained_as_asked(checkpoint: Path, tmp_path: Path) -> None:
    """The judgement's own way of explaining can be replaced, and what it returns is the report."""
    seen: list[Any] = []

    def verdict_alone(judgement: Any) -> Any:
        seen.append(judgement)
        return judgement.report

    made = blockexport.export_bundle(checkpoint, tmp_path / "bundle", max_sequence_length=29, explain=verdict_alone)
    assert len(seen) == 1 and made.report is seen[0].report


def test_a_model_is_counted() -> None:
    figures = blockexport.inspect_model("llama-3-8b", tokens=8192, precision="bf16")
    assert figures["parameters"]["total"] == 8_030_261_248 and figures["cache_bytes"]["per_token"] == 131_072
    with pytest.raises(UsageError, match="99999999"):
        blockexport.inspect_model("llama-3-8b", tokens=99_999_999)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sequence_length": 65}, "beyond the 64 positions"),
        ({"headless": True, "last_logits_only": True}, "has no logits"),
        ({"precision": "int3"}, "no precision 'int3'"),
        ({"max_sequence_length": 0}, "max_sequence_length is 0, and has to be a whole number of at least 1"),
        ({"max_sequence_length": 32.5}, "max_sequence_length is 32.5"),
        ({"max_sequence_length": "64"}, "max_sequence_length is '64'"),
        ({"seed": "a"}, "seed is 'a', and has to be a whole number"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        blockexport.export_bundle(checkpoint, tmp_path / "bundle", **options)
    assert list(tmp_path.iterdir()) == []


def test_wrong_values_are_refused_and_never_taken_for_others(made: blockexport.ExportedBundle) -> None:
    for call, message in (
        (lambda: blockexport.open_decoder(made.folder, verify="all"), "verify is 'all': there are sample, whole"),  # type: ignore[arg-type]
        (lambda: blockexport.open_decoder(made.folder, max_sequence_length=0), "at least 1"),
        (lambda: blockexport.compare_bundle(made.folder, decode_steps=0), "decode_steps is 0"),
        (lambda: blockexport.compare_bundle(made.folder, max_sequence_length=-1), "max_sequence_length is -1"),
        (lambda: blockexport.compare_bundle(made.folder, checks="decode"), r"has to be a list of names: \['decode'\]"),
        (lambda: blockexport.inspect_model("tiny", tokens=-5), "tokens is -5"),
        (lambda: blockexport.inspect_model("tiny", batch_size=0), "batch_size is 0"),
        (lambda: blockexport.redeclare(made.folder, 0), "max_sequence_length is 0"),
        (lambda: blockexport.build_engine(made.folder, max_batch_size=-1), "max_batch_size is -1"),
    ):
        with pytest.raises(blockexport.UsageError, match=message):
            call()


def test_the_version_is_the_package_s() -> None:
    assert blockexport.__version__ == version("blockexport")
    assert set(blockexport.__all__) <= set(dir(blockexport))
    with pytest.raises(AttributeError, match="no attribute 'onnx'"):
        blockexport.onnx  # noqa: B018


def test_importing_it_loads_nothing_else(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import blockexport; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "{'blockexport'}\n"
    assert (REPOSITORY / "py.typed").is_file()
