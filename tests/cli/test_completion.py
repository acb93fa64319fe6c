"""What the shell offers after Tab: bash's protocol as a table, each shell's script, and nothing heavy loaded."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockexport.cli.completion import VARIABLE
from blockexport.cli.main import main
from blockexport.cpp_project import CPP_BACKENDS
from blockexport.models.families.every_family import PRESETS
from blockexport.runtime.backends import ENGINES, backend_names

PROGRAM = [sys.executable, "-c", "import sys; from blockexport.cli.start import run; sys.exit(run())"]


def presets(beginning: str) -> list[str]:
    return [name for name in PRESETS if name.startswith(beginning)]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder of the user, who has two models there, and something that is none."""
    (tmp_path / "smollm2").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "small.gguf").touch()
    (tmp_path / "small.txt").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("in", ["inspect"]),
        ("tr", ["triton", "trt"]),
        ("onnx --max", ["--max-memory", "--max-sequence-length"]),
        ("compare b --no-", ["--no-explain"]),
        ("onnx sm", [*presets("sm"), "small.gguf", "smollm2"]),
        ("trt smo", [*presets("smo"), "smollm2"]),
        ("onnx ", [*PRESETS, "small.gguf", "smollm2"]),
        ("inspect llama", presets("llama")),
        ("onnx ./sm", []),  # a path is the shell's own affair
        ("lint sm", []),
        ("onnx tiny --logits ", ["all", "last"]),
        ("compare b --backend ", backend_names()),
        ("generate b hi --backend on", ["onnxruntime", "onnxruntime-nonpad"]),
        ("selftest b --backend t", [one.name for one in ENGINES]),
        ("trt b --backend ", [one.name for one in ENGINES]),
        ("trt b --hardware-compatibility a", ["ampere-plus"]),
        ("cpp b --backend ", list(CPP_BACKENDS)),
        ("compare b --model ti", presets("ti")),
    ],
)
def test_what_bash_is_offered(
    line: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"blockexport {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
    assert main([]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(offered)


def test_a_current_folder_that_may_not_be_read_offers_presets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    for name, value in {VARIABLE: "complete_bash", "COMP_WORDS": "blockexport onnx ", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(PRESETS)


@pytest.mark.parametrize(("line", "code"), [("blockexport onnx sm", 0), ("blockexport lint sm", 1)])
def test_fish_is_told_by_the_exit_code_whether_to_offer_files(
    line: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {VARIABLE: "complete_fish", "ARGS": line, "FISH_ACTION": "is-args"}.items():
        monkeypatch.setenv(name if name == VARIABLE else f"_TYPER_COMPLETE_{name}", value)
    assert main([]) == code


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", ".bash_completions/blockexport.sh"), ("zsh", ".zfunc/_blockexport")]
)
def test_a_script_is_installed_for_the_shell_that_asks(
    shell: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion"]) == 0
    assert f"{shell} completion installed in {tmp_path / file}" in capsys.readouterr().out
    assert main(["--show-completion"]) == 0
    assert capsys.readouterr().out.strip() == (tmp_path / file).read_text().strip()


def test_a_shell_that_has_no_completion_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("tcsh", "/bin/tcsh"))
    for option in ("--install-completion", "--show-completion"):
        assert main([option]) == 2
        assert "tcsh" in "".join(capsys.readouterr())


def test_bash_itself_completes_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    program = tmp_path / "blockexport"
    heavy = "print('\\n'.join({'torch', 'numpy', 'rich', 'onnx'} & set(sys.modules)))"
    code = f"import atexit, sys; atexit.register(lambda: {heavy}); {PROGRAM[2].removeprefix('import sys; ')}"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(blockexport --show-completion)"\n'
        "COMP_WORDS=(blockexport onnx smo) COMP_CWORD=2\n_blockexport_completion blockexport\n"
        'printf "%s " "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert sorted(done.stdout.split()) == sorted([*presets("smo"), "smollm2"]), done.stderr
