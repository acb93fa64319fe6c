"""Code in a bundle that was not built here is told of before it runs, and --trust takes that as read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blockexport.cli.main import main
from blockexport.cli.running_code import warn_of_code
from blockexport.export.bundle.manifest import read_manifest, write_manifest
from blockexport.runtime.backends import BACKENDS

STATE = "XDG_STATE_HOME"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle with a program of PyTorch's, and the folder that notes who built it."""
    folder, state = tmp_path_factory.mktemp("bundle") / "b", tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STATE, str(state))
        assert main(["onnx", "tiny", "-M", "16", "--pt2", "--no-compare", "-q", "-o", str(folder)]) == 0
    return folder, state


def judged(bundle: Path, *more: str) -> int:
    return main(["compare", str(bundle), "--backend", "pt2", "--check", "prefill", "--model", "tiny", "-q", *more])


def test_what_was_built_here_runs_without_a_word(
    built: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, state = built
    monkeypatch.setenv(STATE, str(state))
    assert judged(bundle) == 0
    assert "warning" not in capsys.readouterr().err


def test_on_another_machine_it_is_warned_of_once_and_runs(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, _ = built
    monkeypatch.setenv(STATE, str(tmp_path))
    assert judged(bundle) == 0
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and str(bundle / "model.pt2") in said and said.rstrip().endswith("--trust")
    assert judged(bundle, "--trust") == 0
    assert "warning" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "who only runs a bundle has nothing noted"


def test_a_file_that_was_replaced_since_is_warned_of(
    built: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, state = built
    monkeypatch.setenv(STATE, str(state))
    content = (bundle / "model.pt2").read_bytes()
    try:
        (bundle / "model.pt2").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        warn_of_code(bundle, "pt2", trust=False)
    finally:
        (bundle / "model.pt2").write_bytes(content)
    assert "model.pt2 was not built here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "backend", [one for one in BACKENDS if one.file is None and not one.is_eager], ids=lambda b: b.name
)
def test_engines_are_code_of_their_own_backend(
    built: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: object
) -> None:
    name = str(getattr(backend, "name"))  # noqa: B009 - parametrised
    manifest, place = read_manifest(built[0]), f"engines/{name}-sm89-fp32.engine"
    entry = manifest.files["model.pt2"]
    (tmp_path / "engines").mkdir()
    (tmp_path / place).write_bytes(b"engine")
    engines = {place: {"backend": name}}
    write_manifest(tmp_path, replace(manifest, files={**manifest.files, place: entry}, engines=engines))
    for other in BACKENDS:
        warn_of_code(tmp_path, other.name, trust=False)
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and f"{tmp_path / place} was not built here" in said


def test_without_a_place_for_notes_a_bundle_is_built_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(STATE, str(tmp_path / "file"))
    bundle = tmp_path / "b"
    assert main(["onnx", "tiny", "-M", "16", "--pt2", "--no-compare", "-q", "-o", str(bundle)]) == 0
    warn_of_code(bundle, "pt2", trust=False)
    assert "was not built here" in capsys.readouterr().err
