"""`import blockexport`: what the commands do, as typed functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
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


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda b: blockexport.redeclare(b, None), "max_sequence_length is None, and has to be a whole number$"),  # type: ignore[arg-type]
    (lambda b: blockexport.redeclare(b, True), "max_sequence_length is True, and has to be a whole number$"),
    (lambda b: blockexport.redeclare(b, "64"), "max_sequence_length is '64', and has to be a whole number$"),  # type: ignore[arg-type]
    (lambda b: blockexport.redeclare(b, 64.0), "max_sequence_length is 64.0, and has to be a whole number$"),  # type: ignore[arg-type]
    (lambda b: blockexport.redeclare(b, -1), "max_sequence_length is -1, and has to be a whole number of at least 1"),
    (lambda b: blockexport.redeclare(b, 10**12), "is outside 1..64, the rows"),
    (lambda b: blockexport.redeclare(None, 64), "bundle is None, and has to be text or a path$"),  # type: ignore[arg-type]
    (lambda b: blockexport.redeclare(b, 64, 7), "output is 7, and has to be text or a path or None"),  # type: ignore[arg-type]
    (lambda b: blockexport.redeclare(b, 64, force="yes"), "force is 'yes', and has to be True or False"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle(None, b / "x"), "model is None, and has to be text or a path"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle(b"tiny", b / "x"), "model is b'tiny'"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle("tiny", None), "output is None"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle("tiny", b / "x", quantize=4), "quantize is 4, and has to be text or None"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle("tiny", b / "x", block_size="32"), "block_size is '32'"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle("tiny", b / "x", precision=16), "precision"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle("tiny", b / "x", explain="no"), "explain is 'no', and has to be a function"),  # type: ignore[arg-type]
    (lambda b: blockexport.export_bundle("tiny", b / "x", note=None), "note is None, and has to be a function$"),  # type: ignore[arg-type]
    (lambda b: blockexport.compare_bundle(b, backend=1), "backend is 1, and has to be text or None"),  # type: ignore[arg-type]
    (lambda b: blockexport.compare_bundle(b, checks=None), "checks is None, and has to be a list, each item"),  # type: ignore[arg-type]
    (lambda b: blockexport.compare_bundle(b, checks=[3]), r"checks is \[3\]"),  # type: ignore[list-item]
    (lambda b: blockexport.compare_bundle(b, token_ids=[1, 2.5]), "token_ids is .*each item of it a whole number"),  # type: ignore[list-item]
    (lambda b: blockexport.compare_bundle(b, token_ids="1,2"), "token_ids is '1,2'"),  # type: ignore[arg-type]
    (lambda b: blockexport.compare_bundle(b, text=b"once"), "text is b'once'"),  # type: ignore[arg-type]
    (lambda b: blockexport.compare_bundle(b, max_kl="1"), "max_kl is '1', and has to be a number or None"),  # type: ignore[arg-type]
    (lambda b: blockexport.compare_bundle(b, progress=1), "progress is 1, and has to be a function"),  # type: ignore[arg-type]
    (lambda b: blockexport.build_engine(b, options={"workspace_mib": 1}), "has to be BuildOptions or None"),  # type: ignore[arg-type]
    (lambda b: blockexport.build_engine(b, compute_capabilities="8.9"), r"has to be a list.*: \['8.9'\]"),
    (lambda b: blockexport.build_engine(b, compute_capabilities=[8.9]), r"compute_capabilities is \[8.9\]"),  # type: ignore[list-item]
    (lambda b: blockexport.build_engine(b, max_batch_size=None), "max_batch_size is None, and has to be"),  # type: ignore[arg-type]
    (lambda b: blockexport.build_engine(b, max_batch_size=2.0), "max_batch_size is 2.0"),  # type: ignore[arg-type]
    (lambda b: blockexport.open_decoder(None), "folder is None"),  # type: ignore[arg-type]
    (lambda b: blockexport.open_decoder(b, None), "backend is None, and has to be text$"),  # type: ignore[arg-type]
    (lambda b: blockexport.open_decoder(b, threads="2"), "threads is '2', and has to be a whole number$"),  # type: ignore[arg-type]
    (lambda b: blockexport.open_decoder(b, threads=-1), "threads is -1"),
    (lambda b: blockexport.open_decoder(b, threads=10**12), "threads"),
    (lambda b: blockexport.open_decoder(b, max_sequence_length=True), "max_sequence_length is True"),
    (lambda b: blockexport.open_decoder(b, max_sequence_length=10**12), "is outside 1..64, the rows"),
    (lambda b: blockexport.open_decoder(b, exact=1), "exact is 1, and has to be True or False"),  # type: ignore[arg-type]
    (lambda b: blockexport.open_decoder(b, verify=None), "verify is None: there are sample, whole"),  # type: ignore[arg-type]
    (lambda b: blockexport.inspect_model(None), "model is None"),  # type: ignore[arg-type]
    (lambda b: blockexport.inspect_model("tiny", tokens="8"), "tokens is '8'"),  # type: ignore[arg-type]
    (lambda b: blockexport.inspect_model("tiny", batch_size=None), "batch_size is None"),  # type: ignore[arg-type]
    (lambda b: blockexport.inspect_model("tiny", precision=["bf16"]), "precision"),  # type: ignore[arg-type]
    (lambda b: blockexport.bench_bundle(b, against=str(b)), r"against is .*has to be a list.*: \["),
    (lambda b: blockexport.bench_bundle(b, contexts=[None]), r"contexts is \[None\]"),  # type: ignore[list-item]
    (lambda b: blockexport.bench_bundle(b, rounds=1.5), "rounds is 1.5"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_value_of_another_type_is_one_message_that_names_it(
    call: Callable[[Any], object], message: str, made: blockexport.ExportedBundle
) -> None:
    with pytest.raises(blockexport.UsageError, match=message) as caught:
        call(made.folder)
    assert str(caught.value).count("has to be") <= 1


def test_wrong_values_are_refused_and_never_taken_for_others(made: blockexport.ExportedBundle) -> None:
    for call, message in (
        (lambda: blockexport.open_decoder(made.folder, verify="all"), "verify is 'all': there are sample, whole"),  # type: ignore[arg-type]
        (lambda: blockexport.open_decoder(made.folder, max_sequence_length=0), "at least 1"),
        (lambda: blockexport.compare_bundle(made.folder, decode_steps=0), "decode_steps is 0"),
        (lambda: blockexport.compare_bundle(made.folder, max_sequence_length=-1), "max_sequence_length is -1"),
        (
            lambda: blockexport.compare_bundle(made.folder, checks="decode"),
            r"has to be a list, each item of it text: \['decode'\]",
        ),
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
