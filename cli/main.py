"""The `blockexport` command: knows one function per command and turns every outcome into an exit code.

A command returns its `ExitCode`, or raises. Errors are text on stderr, also with --json: stdout
then holds one JSON document or nothing.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
import typer.core
import typer.main

from blockexport.cli import console, interrupts
from blockexport.cli.command_line import wrong_use
from blockexport.cli.completion import VARIABLE
from blockexport.models import openmp
from blockexport.models.errors import BlockexportError
from blockexport.models.exit_codes import ExitCode

COMMANDS = {
    "onnx": "Export a checkpoint as an ONNX bundle and prove the file.",
    "compare": "Judge a bundle's file against eager PyTorch.",
    "trt": "Build a TensorRT engine, audited, into a bundle.",
    "lint": "Find what TensorRT would misread in an ONNX file.",
    "ablate": "Train small models that differ in one choice of the block.",
    "inspect": "Count a model's parameters, operations and cache.",
    "generate": "Answer a prompt from a bundle.",
    "serve": "Serve a bundle to many clients, as OpenAI's API.",
    "selftest": "Replay a bundle's golden vectors on this machine.",
    "verify": "Check every file of a bundle, without running it.",
    "diff": "Tell what differs between two bundles.",
    "triton": "Write a model repository for Triton Inference Server.",
    "bench": "Measure a bundle's speed, beside the machine's and other tools'.",
    "redeclare": "Give a bundle another number of cache slots.",
    "aoti": "Compile a bundle's model for programs with libtorch.",
    "cpp": "Write a C++ project that chats with a bundle.",
    "doctor": "Say what this machine can do, and what to fix.",
}
"""The commands, each a function of this name in `cli/NAME_command.py`, with what the program's help says of it."""

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""Of the program and of every command."""

GARBAGE_THRESHOLD = 100_000  # new objects between two looks for garbage

LONGEST_MESSAGE = 10_000  # characters: a file may hold names of any length, and the remedy stands at the end

# What the operating system refuses for a reason that the user can fix; other errors of the system are our bugs.
_REMEDIES = {
    errno.ENOSPC: "free some space, or choose a folder on another device",
    errno.EDQUOT: "your quota is used up: free some space, or choose a folder on another device",
    errno.EACCES: "check the permissions, or choose another path",
    errno.EPERM: "check the permissions, or choose another path",
    errno.EROFS: "the file system is read-only: choose another path",
    errno.ENOTDIR: "a part of this path is a file: choose another path",
    errno.EISDIR: "a folder is where a file is needed: choose another path, or move it away",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "the device failed: check the disk",
}


class _Commands(typer.core.TyperGroup):
    """Commands that are imported when they are called: the program's help, which lists all of them, needs none."""

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        name, placeholder, rest = super().resolve_command(context, arguments)
        return name, placeholder if name not in COMMANDS else command(name), rest


def command(name: str) -> typer.core.TyperCommand:
    """One of `COMMANDS`, with its options."""
    module = importlib.import_module(f"blockexport.cli.{name}_command")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name)(getattr(module, name))
    found = typer.main.get_command(alone)
    assert isinstance(found, typer.core.TyperCommand)
    return found


app = typer.Typer(
    name="blockexport",
    cls=_Commands,
    help="Export decoder checkpoints to ONNX with a static KV cache, and prove that the shipped file equals the model.",
    epilog="Start with: blockexport onnx MODEL -o BUNDLE",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"blockexport {version('blockexport')}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the program itself; each command has its own."""


for _name, _summary in COMMANDS.items():
    app.command(_name, short_help=_summary)(lambda: None)


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Run the command line (`sys.argv` by default) and return its exit code; never raises, never prints a traceback
    unless BLOCKEXPORT_DEBUG=1."""
    interrupts.forget()
    try:
        code = app(args=arguments, prog_name="blockexport", standalone_mode=False)
        if code == ExitCode.BAD and not isinstance(code, ExitCode):
            code = ExitCode.WRONG_USE  # Typer's own: a shell that it cannot complete for
        sys.stdout.flush()
    except BaseException as error:
        code = ExitCode.INTERRUPTED if interrupts.arrived() else _outcome(error)
    if code == ExitCode.INTERRUPTED:  # Typer catches the interrupt itself and returns this number
        console.say("interrupted")
    console.give_up_broken_streams()
    return ExitCode.GOOD if code is None else ExitCode(code)


def run() -> ExitCode:
    """The installed program: `main` on the command line, and a garbage collector that keeps out of the way.

    The libraries make millions of objects that live until the end. Looking through them for garbage every few hundred
    takes a fifth of an export's time, and once more at the end; frozen objects are left to the operating system.
    """
    gc.set_threshold(GARBAGE_THRESHOLD)
    openmp.let_wait(os.environ)
    interrupts.listen()
    code = main()
    interrupts.stop_listening()
    gc.freeze()
    return code


def _outcome(error: BaseException) -> Any:
    """The exit code of what was raised, once what is wrong has been said."""
    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case SystemExit():
            # Typer ends so after completion, whose codes are the shell's, and where a reader (`| head`) has left.
            return error.code if error.code == 0 or VARIABLE in os.environ else ExitCode.READER_LEFT
        case BrokenPipeError():
            return ExitCode.READER_LEFT
        case Exception():
            return _explain(error)
    raise error


def _explain(error: Exception) -> ExitCode:
    """Say what went wrong on stderr in one message; returns the exit code."""
    if os.environ.get("BLOCKEXPORT_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, BlockexportError):
        return _complain(str(error), error.exit_code)
    # Typer's own complaints about the command line have no public base class; they know how to show themselves.
    if callable(getattr(error, "show", None)):
        console.say(wrong_use(error, [str(one.name) for one in app.registered_commands]))
        return ExitCode.WRONG_USE
    if isinstance(error, typer.Abort):
        return ExitCode.INTERRUPTED
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        where = f" ({os.fspath(error.filename)!r})" if error.filename is not None else ""
        return _complain(f"{error.strerror}{where}: {_REMEDIES[error.errno]}", ExitCode.WRONG_USE)
    if isinstance(error, ModuleNotFoundError) and (package := _package(error.name)):
        return _complain(f"{error.name} is not installed: pip install {package}", ExitCode.NOT_JUDGED)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return _complain(
            "this machine's memory is used up: close other programs, or use a larger one", ExitCode.NOT_JUDGED
        )
    console.say(
        f"blockexport: {type(error).__name__}: {error}\n"
        "This is a bug of ours, not of your input. Please report it with the command line, the output of "
        "`blockexport doctor`,\nand the traceback that BLOCKEXPORT_DEBUG=1 in the environment prints."
    )
    return ExitCode.BUG


def _package(module: str | None) -> str | None:
    """The package that brings a module which only some installations have."""
    from blockexport.runtime.backends import BACKENDS, Backend, Library

    for backend in BACKENDS:
        match backend:
            case Backend(library=Library(name, package)) if name == module:
                return package
    return None


def _complain(message: str, code: ExitCode) -> ExitCode:
    if len(message) > LONGEST_MESSAGE:
        half, rest = LONGEST_MESSAGE // 2, len(message) - LONGEST_MESSAGE
        message = f"{message[:half]} ... ({rest} characters left out) ... {message[-half:]}"
    console.say(f"blockexport: {message}")
    return code
