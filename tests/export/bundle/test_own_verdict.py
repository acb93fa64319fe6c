"""Of a bundle that was judged and found bad nothing is made, whatever its folder is called; running it says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from blockexport import build_engine
from blockexport.cli.main import main
from blockexport.export.bundle.manifest import read_manifest, sha256_of
from blockexport.export.bundle.own_verdict import known_bad, why_bad
from blockexport.export.redeclare import redeclare
from blockexport.models.errors import RejectedBundleError, UsageError
from tests.exported import export, random_model
from tests.small_models import small_config, small_weights, write_folder
from tests.support import shared_path


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that float16 cannot hold, judged so, and then renamed by its user."""
    folder, config = tmp_path_factory.mktemp("rejected"), small_config(vocab_size=512)
    weights = small_weights(config)
    weights["model.layers.1.mlp.up_proj.weight"] *= 2e4
    source = write_folder(folder / "source", config, weights)
    assert main(["onnx", str(source), "-o", str(folder / "b"), "-M", "40", "--fp16", "--no-explain", "-q"]) == 1
    shutil.copyfile(shared_path("models/stories260K/tokenizer.json"), folder / "b.rejected/tokenizer.json")
    return Path(shutil.move(folder / "b.rejected", folder / "a model that passed"))


def contents(folder: Path) -> dict[str, str]:
    return {str(path): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        ["trt", "{}", "--backend", "tensorrt-rtx", "--compute-capability", "8.9"],
        ["aoti", "{}"],
        ["aoti", "{}", "--no-compare", "-q"],
        ["cpp", "{}", "-o", "{}/../project"],
        ["redeclare", "{}", "-M", "39"],
        ["redeclare", "{}", "-M", "39", "-o", "{}/../copy"],
        ["selftest", "{}"],
    ],
    ids=lambda command: " ".join(command[:1] + command[2:]),
)
def test_nothing_is_made_of_it(command: list[str], rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if command[0] == "trt":
        pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed: pip install tensorrt-rtx")
    before = contents(rejected.parent)
    assert main([word.format(rejected) for word in command]) == 1
    said = capsys.readouterr()
    assert "was judged and found bad: float16 cannot hold this model" in said.err
    assert f"{rejected}/parity/report.md says where" in said.err and said.out == ""
    assert contents(rejected.parent) == before


def test_the_library_refuses_it_too(rejected: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed: pip install tensorrt-rtx")
    with pytest.raises(RejectedBundleError, match="found bad"):
        build_engine(rejected, backend="tensorrt-rtx", compute_capabilities=["8.9"])
    with pytest.raises(RejectedBundleError, match="found bad"):
        redeclare(rejected, 39, tmp_path / "copy")


def test_it_runs_with_a_warning_that_quiet_does_not_silence(rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(rejected), "x", "-n", "1", "--raw"]
    assert main(command) == main([*command, "-q"]) == 0
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == last and first.startswith(f"warning: {rejected} was judged and found bad: float16 cannot hold")


def test_a_report_that_somebody_changed_tells_nothing(rejected: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(rejected, tmp_path / "bundle"))
    report = bundle / "parity/report.json"
    manifest, text = read_manifest(bundle), report.read_text()
    report.write_text(text.replace('"verdict": "fail"', '"verdict": "pass"', 1))
    with pytest.raises(UsageError, match=r"report\.json has the SHA-256"):
        why_bad(bundle, manifest)
    assert known_bad(bundle, manifest) is None, "to run a bundle takes no proof"
    report.unlink()
    with pytest.raises(UsageError, match=r"report\.json is missing"):
        redeclare(bundle, 39)


def test_a_bundle_that_passed_and_one_that_nobody_judged_are_free(judged_stories: Path, tmp_path: Path) -> None:
    assert why_bad(judged_stories, read_manifest(judged_stories)) is None
    assert json.loads((judged_stories / "parity/report.json").read_text())["verdict"] == "pass"
    assert why_bad(tmp_path, export(random_model(), tmp_path)) is None
