"""`blockexport compare` and its neighbours on what users do to bundles and report folders: one message, one code."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from blockexport.cli.main import main
from blockexport.compare.judged_bundle import changed_files
from blockexport.compare.report import report_files
from blockexport.export.bundle.bundle import file_entries
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.exported import export
from tests.small_models import small_config, small_weights, write_folder

CONFIG = small_config("qwen3", max_position_embeddings=128)
QUICK = ("--check", "types", "--quiet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `source` and its bundle `bundle` with 24 cache slots and a program for torch."""
    folder = tmp_path_factory.mktemp("bundle files")
    write_folder(folder / "source", CONFIG, small_weights(CONFIG))
    export(open_checkpoint(str(folder / "source")), folder / "bundle", slots=24)
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that may be spoilt."""
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


def run(*arguments: object) -> int:
    return main([*map(str, arguments)])


def test_a_report_folder_is_looked_at_before_the_judging(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "x", Path("/dev/null"), Path("/proc/x")):
        assert run("compare", made / "bundle", *QUICK, "--report", place) == 2
        captured = capsys.readouterr()
        assert captured.out == "", "nothing was judged"
        assert captured.err.startswith(f"blockexport: the report cannot be written to {place}")
        assert captured.err.count("\n") == 1
    (tmp_path / "file").unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, contents: dict[str, bytes]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(report_files, "write_together", full)


@pytest.mark.usefixtures("full_disk")
def test_the_verdict_is_told_although_the_report_cannot_be_written(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--json",)):
        assert run("compare", made / "bundle", *QUICK, *options, "--report", tmp_path / "r") == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"blockexport: the report cannot be written to {tmp_path / 'r'} (No space left")
        assert json.loads(captured.out)["verdict"] == "pass" if options else captured.out.startswith("PASS: ")


def test_a_reader_that_leaves_does_not_cost_the_report(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Gone())
        code = run("compare", made / "bundle", *QUICK, "--report", tmp_path / "r")
    assert code == 141
    assert (tmp_path / "r" / "report.html").is_file()


def edited_graph(bundle: Path) -> None:
    """Another graph that computes the same."""
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    model.doc_string = "edited by hand"
    (bundle / "model.onnx").write_bytes(model.SerializeToString())


def longer_weights(bundle: Path) -> None:
    with (bundle / "model.safetensors").open("ab") as file:
        file.write(b"tail")


def other_rope(bundle: Path) -> None:
    """The last bit of sin in the last row, which 24 slots do not reach."""
    data = bytearray((bundle / "rope.safetensors").read_bytes())
    data[-4] ^= 1
    (bundle / "rope.safetensors").write_bytes(data)


@pytest.mark.parametrize("backend", ["onnxruntime", "replay"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], None),
        ([edited_graph], "model.onnx"),
        ([longer_weights], "model.safetensors"),
        ([other_rope], "rope.safetensors"),
        ([edited_graph, longer_weights], "model.onnx and model.safetensors"),
    ],
)
def test_files_that_are_not_the_manifests_are_judged_and_named(
    bundle: Path,
    tmp_path: Path,
    changes: list[Callable[[Path], None]],
    said: str | None,
    backend: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for change in changes:
        change(bundle)
    arguments = ("compare", bundle, "--check", "decode", "--quiet", "--backend", backend)
    assert run(*arguments, "--report", tmp_path / "r") == 0, "the verdict is that of the file as it is"
    out = " ".join(capsys.readouterr().out.split())
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    markdown = (tmp_path / "r" / "report.md").read_text()
    html = (tmp_path / "r" / "report.html").read_text()
    if said is None:
        assert report["notes"] == []
        assert not any("Note:" in text for text in (out, markdown, html))
        return
    sentence = (
        f"the content of {said} is not what the manifest lists (by size or SHA-256): what is there now was judged"
    )
    assert report["notes"] == [sentence]
    shown = f"Note: {sentence}."
    assert shown in out and f"\n{shown}\n" in markdown and shown in html


def test_eager_runs_no_file_that_could_differ(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited_graph(bundle)
    assert run("compare", bundle, "--backend", "eager", "--check", "decode", "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_a_tokenizer_counts_where_the_manifest_lists_it(bundle: Path) -> None:
    path = bundle / "tokenizer.json"
    path.write_text("{}")
    manifest = read_manifest(bundle)
    assert changed_files(bundle, manifest, "eager") == (), "added by hand, for there was none"
    listed = replace(manifest, files={**manifest.files, **file_entries(bundle, ["tokenizer.json"])})
    assert changed_files(bundle, listed, "onnxruntime") == ()
    for change in (lambda: path.write_text("[]"), path.unlink):
        change()
        (said,) = changed_files(bundle, listed, "eager")
        assert said.startswith("the content of tokenizer.json is not what the manifest lists")


def test_a_check_that_was_asked_for_and_does_not_apply_is_not_judged(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--check", "last-slot", "--check", "capacity", "-M", "1", "--json")
    assert run("compare", made / "bundle", *named) == 3
    report = json.loads(capsys.readouterr().out)
    verdicts = {check["name"]: (check["verdict"], check["message"]) for check in report["checks"]}
    assert verdicts["capacity"][0] == "pass"
    assert verdicts["last-slot"][0] == "not judged" and verdicts["last-slot"][1].startswith("does not apply; ")
    assert report["skipped"] == [] and report["verdict"] == "not judged"
    assert run("compare", made / "bundle", "--backend", "eager", "--check", "types") == 3
    assert "types: does not apply; this backend runs no ONNX graph" in capsys.readouterr().out


def test_a_failure_outweighs_a_check_that_does_not_apply(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "other", small_config("qwen3", max_position_embeddings=128), small_weights(CONFIG, seed=9))
    named = ("--check", "last-slot", "--check", "prefill", "-M", "1", "--model", tmp_path / "other")
    assert run("compare", made / "bundle", *named, "--no-explain") == 1
    assert "last-slot: does not apply" in capsys.readouterr().out


def truncate(name: str) -> Callable[[Path], None]:
    return lambda bundle: os.truncate(bundle / name, (bundle / name).stat().st_size // 2)


def other_type(bundle: Path) -> None:
    data: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    data["config"]["hidden_size"] = str(data["config"]["hidden_size"])
    (bundle / "manifest.json").write_text(json.dumps(data))


COMMANDS: dict[str, tuple[str, ...]] = {
    "compare": ("compare", "BUNDLE", "--quiet"),
    "compare by replay": ("compare", "BUNDLE", "--quiet", "--backend", "replay"),
    "generate": ("generate", "BUNDLE", "Once", "--quiet"),
    "selftest": ("selftest", "BUNDLE", "--quiet"),
    "cpp": ("cpp", "BUNDLE", "-o", "OUT", "--quiet"),
    "aoti": ("aoti", "BUNDLE", "--quiet"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_damaged_manifest_alike(
    bundle: Path, tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    other_type(bundle)
    places = {"BUNDLE": str(bundle), "OUT": str(tmp_path / "out")}
    assert run(*(places.get(argument, argument) for argument in COMMANDS[command])) == 2
    captured = capfd.readouterr()
    size = CONFIG.hidden_size
    assert captured.out == ""
    assert captured.err == (
        f'blockexport: {bundle / "manifest.json"} is damaged: config.hidden_size is "{size}", and must be a whole '
        "number. Copy the whole bundle again, or export it again\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["compare", "compare by replay", "selftest"])
@pytest.mark.parametrize("name", ["model.onnx", "model.safetensors", "rope.safetensors"])
def test_every_command_refuses_a_file_that_was_cut_off(
    bundle: Path, command: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    truncate(name)(bundle)
    arguments = (str(bundle) if argument == "BUNDLE" else argument for argument in COMMANDS[command])
    assert run(*arguments) == (1 if command == "selftest" else 2)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert str(bundle / name) in captured.err and "again" in captured.err


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "aoti"])
def test_a_path_inside_a_bundle_says_which_was_meant(
    bundle: Path, tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"BUNDLE": str(bundle / "model.onnx"), "OUT": str(tmp_path / "out")}
    assert run(*(places.get(argument, argument) for argument in COMMANDS[command])) == 2
    assert capfd.readouterr().err.endswith(f"a path inside of one: did you mean {bundle}?\n")


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x", "FILE/x"])
def test_an_output_where_nothing_can_be_made(
    made: Path, bundle: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = place.replace("FILE", str(bundle / "manifest.json"))
    for arguments in (("onnx", made / "source", "--no-compare"), ("cpp", bundle)):
        assert run(*arguments, "-o", place, "--quiet") == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert "cannot be made" in captured.err or "cannot be read or written" in captured.err
        assert "hoose another p" in captured.err
