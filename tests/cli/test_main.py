"""The program as a whole: start-up without heavy imports, and one exit code and one message per outcome."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from blockexport.cli import main as program
from blockexport.models import openmp
from blockexport.models.errors import BlockexportError, NotJudgedError, UsageError
from tests.support import REPOSITORY

COMMAND = [sys.executable, "-c", "import sys; from blockexport.cli.main import run; sys.exit(run())"]

COMMANDS = sorted(path.name.removesuffix("_command.py") for path in (REPOSITORY / "cli").glob("*_command.py"))


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, **(environment or {})}, timeout=120
    )


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Makes `blockexport fail` a command; it raises what the test puts into the list."""
    planned: list[BaseException] = []
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)

    @app.command()
    def fail() -> None:
        raise planned[0]

    monkeypatch.setattr(program, "app", app)
    return planned


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE 2000"), ("ACTIVE", "ACTIVE None")])
def test_threads_spin_briefly_and_then_sleep(before: str | None, after: str) -> None:
    """Set before PyTorch, and its OpenMP with it, is loaded."""
    code = (
        "import os, sys\n"
        "from blockexport.cli import main\n"
        "names = ['OMP_WAIT_POLICY', 'GOMP_SPINCOUNT']\n"
        "main.main = lambda: print(*map(os.environ.get, names), 'torch' in sys.modules)\n"
        "main.run()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in (openmp.POLICY, openmp.SPINS)}
    environment |= {} if before is None else {"OMP_WAIT_POLICY": before}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout == f"{after} False\n", done.stderr


@pytest.mark.parametrize("command", ["onnx", "compare", "trt", "generate", "selftest", "aoti"])
def test_commands_that_compute_take_a_number_of_threads(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([command, "--help"]) == 0
    assert "--threads" in capsys.readouterr().out


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom blockexport.cli.main import main\n"
        "code = main(['--help'])\n"
        "print('OURS', *sorted(name for name in sys.modules if name.startswith('blockexport.')))\n"
        "heavy = {'torch', 'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'rich', 'safetensors', 'gguf', 'tokenizers'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\nsys.exit(code)"
    )
    light = ("cli", *(f"cli.{name}" for name in ("command_line", "completion", "console", "interrupts", "main")))
    light += ("models", *(f"models.{name}" for name in ("errors", "exit_codes", "openmp", "wording")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
    assert f"OURS {' '.join(f'blockexport.{name}' for name in light)}\n" in done.stdout, "start-up has grown"
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example_and_loads_no_torch(name: str) -> None:
    code = (
        f"import sys\nfrom blockexport.cli.main import main\ncode = main(['{name}', '--help'])\n"
        "print('TORCH', 'torch' in sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"blockexport {name} " in done.stdout.replace("\n", " ").split("Usage:", 1)[1].split("]", 1)[1]
    assert "TORCH False" in done.stdout


def test_help_takes_less_than_a_third_of_a_second_after_a_warm_up() -> None:
    """Counted in time on the processor, which other programs on the machine do not lengthen."""
    run("--help")
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.3, f"blockexport --help took {min(seconds):.2f} s at best"


def test_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert run("--version").stdout == f"blockexport {version('blockexport')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no such command 'nope': there are onnx, compare, "),
        (["exprt"], "no such command 'exprt' (did you mean onnx?): there are "),
        (["lnt"], "no such command 'lnt' (did you mean lint?): there are "),
        (["doctor", "--nope"], "no such option: --nope\nUsage: blockexport doctor [OPTIONS] [FOLDER]\n"),
        (["onnx", "x", "-M", "0"], "--max-sequence-length (-M) is 0, and has to be a whole number of at least 1\n"),
        (["onnx", "x", "-M", "abc"], "--max-sequence-length (-M) is abc, and has to be a whole number of at least 1\n"),
        (
            ["trt", "x", "--builder-optimization-level", "9"],
            "--builder-optimization-level is 9, and has to be a whole number from 0 to 5\n",
        ),
        (
            ["inspect"],
            "MODEL is missing: checkpoint folder, .gguf file, Hugging Face id, or preset name\n"
            "Usage: blockexport inspect [OPTIONS] {MODEL}\n",
        ),
        (["generate", "b"], "PROMPT is missing: what to say to the model; - reads it from stdin\n"),
        (["redeclare", "b"], "--max-sequence-length (-M) is missing: cache slots per row, for prompt and answer: "),
        (["onnx", "tiny"], "--output (-o) is missing: folder to make\n"),
        (["onnx", "tiny", "-o"], "-o needs a value\n"),
        (["selftest", "b", "c", "d"], "too many arguments: c d\n"),
        (["compare", "b", "--text", "no.txt"], "--text: there is no file no.txt\n"),
        (["compare", "b", "--text", "/"], "--text: / is a folder, and has to be a file\n"),
    ],
)
def test_wrong_use_is_exit_2_with_nothing_on_stdout(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"blockexport: {message}")
    assert "Traceback" not in done.stderr


def test_no_arguments_shows_the_help_and_is_wrong_use() -> None:
    done = run()
    assert done.returncode == 2
    assert "doctor" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("value, limit, remedy"), 2, "blockexport: value, limit, remedy\n"),
        (NotJudgedError("no GPU"), 3, "blockexport: no GPU\n"),
        (BlockexportError("plain"), 2, "blockexport: plain\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "b/model.onnx"),
            2,
            "blockexport: No space left on device ('b/model.onnx'): "
            "free some space, or choose a folder on another device\n",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "b"),
            2,
            "blockexport: Permission denied ('b'): check the permissions, or choose another path\n",
        ),
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", "b/c"),
            2,
            "blockexport: Not a directory ('b/c'): a part of this path is a file: choose another path\n",
        ),
        (
            MemoryError(),
            3,
            "blockexport: this machine's memory is used up: close other programs, or use a larger one\n",
        ),
        (
            ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime"),
            3,
            "blockexport: onnxruntime is not installed: pip install onnxruntime\n",
        ),
        (typer.Exit(1), 2, ""),  # of Typer itself: a command returns its code
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_each_known_outcome_has_its_code_and_one_message(
    failing: list[BaseException],
    error: BaseException,
    code: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    failing.append(error)
    assert program.main(["fail"]) == code
    captured = capfd.readouterr()
    assert captured.err == message
    assert captured.out == ""


def test_a_message_about_names_of_any_length_keeps_its_beginning_and_its_end(
    failing: list[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    failing.append(UsageError(f"m.gguf lacks {'a' * 100_000}: download it again"))
    assert program.main(["fail"]) == 2
    message = capfd.readouterr().err
    assert message.startswith("blockexport: m.gguf lacks aaa")
    assert message.endswith("aaa: download it again\n")
    assert "(90032 characters left out)" in message
    assert len(message) < program.LONGEST_MESSAGE + 100


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("division by zero"), FileNotFoundError(errno.ENOENT, "No such", "x")]
)
def test_anything_else_is_a_bug_of_ours(
    failing: list[BaseException], error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BLOCKEXPORT_DEBUG", raising=False)
    failing.append(error)
    assert program.main(["fail"]) == 70
    message = capsys.readouterr().err
    assert message.startswith(f"blockexport: {type(error).__name__}: {error}\nThis is a bug of ours")
    assert "BLOCKEXPORT_DEBUG=1" in message
    assert "Traceback" not in message

    monkeypatch.setenv("BLOCKEXPORT_DEBUG", "1")
    assert program.main(["fail"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_reader_that_leaves_early_gets_no_complaint(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        process = subprocess.Popen([*COMMAND, "doctor"], stdout=subprocess.PIPE, stderr=stderr)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=120) in (0, 141)
    assert errors.read_text() == ""
