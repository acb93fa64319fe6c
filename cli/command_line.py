"""What Typer has to say about a command line, in our words: the value, the limit, the remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import typer

from blockexport.models.wording import did_you_mean

_OTHER_WORDS = {"export": "onnx", "judge": "compare", "build": "trt", "run": "generate", "check": "compare"}
"""What a command may be called by those who guess, and what it is called here."""

_WORDINGS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"^got unexpected extra arguments?(?:\(s\))? \((.*)\)$", r"too many arguments: \1"),
    (r"^option '(.*)' requires an argument$", r"\1 needs a value"),
    (r"^invalid value for '(.*?)': (dir\w*|file|path) '(.*)' does not exist$", lambda match: _absent(*match.groups())),
    (r"^invalid value for '(.*?)': file '(.*)' is a directory$", r"\1: \2 is a folder, and has to be a file"),
    (r"^invalid value for '(.*?)': dir\w* '(.*)' is a file$", r"\1: \2 is a file, and has to be a folder"),
    (r" \(Possible options: (.*)\)$", r" (did you mean \1?)"),
)
"""What Typer says of the rest, and what is said here instead."""


def given_options(context: typer.Context, but: Collection[str] = ()) -> list[str]:
    """The options that were given, as words of a command line, without the parameters named in `but`."""
    words: list[str] = []
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        source = context.get_parameter_source(name)
        if name in but or not parameter.opts[0].startswith("-") or source is None or source.name != "COMMANDLINE":
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [parameter.opts[0]] if one is True else [parameter.opts[0], shlex.quote(str(one))]
    return words


def wrong_use(error: Any, commands: Iterable[str]) -> str:
    """The message for one of Typer's complaints, with the line of usage after it.

    Args:
        error: the complaint; its class is Typer's own.
        commands: names of the program's commands.
    """
    context, said = getattr(error, "ctx", None), str(error.format_message()).removesuffix(".")
    if said.startswith("Usage:"):  # nothing was asked for: the whole help
        return said
    said = _missing(error) or _value(error) or _command(said, list(commands)) or _reworded(said)
    if context is None:
        return f"blockexport: {said}"
    return f"blockexport: {said}\n{context.get_usage()}\nTry '{context.command_path} -h' for help."


def _command(said: str, commands: list[str]) -> str | None:
    """Of a command that there is none of."""
    found = re.match("No such command '(.*?)'", said, re.DOTALL)
    if found is None:
        return None
    names = {**{name: name for name in commands}, **_OTHER_WORDS}
    meant = did_you_mean(found[1], names)
    for word, name in _OTHER_WORDS.items():
        meant = meant.replace(f"mean {word}?", f"mean {name}?")
    return f"no such command {found[1]!r}{meant}: there are {', '.join(commands)}"


def _reworded(said: str) -> str:
    said = said[:1].lower() + said[1:]
    for pattern, words in _WORDINGS:
        said = re.sub(pattern, words, said, flags=re.DOTALL)
    return said


def _absent(option: str, kind: str, path: str) -> str:
    if Path(path).is_symlink():
        return f"{option}: {path} is a link to {Path(path).readlink()}, and there is nothing there"
    return f"{option}: there is no {'folder' if kind.startswith('dir') else kind} {path}"


def _missing(error: Any) -> str | None:
    """Of an argument or option that has to be there, with what it stands for."""
    parameter = getattr(error, "param", None)
    if parameter is None or type(error).__name__ != "MissingParameter":
        return None
    name = _name(parameter) if parameter.param_type_name == "option" else str(parameter.metavar)
    meaning = str(parameter.help).removesuffix(".")
    return f"{name} is missing: {meaning[:1].lower()}{meaning[1:]}"


def _name(option: Any) -> str:
    """Of an option, the long name with the short one behind it."""
    return " (".join(sorted(option.opts, key=len, reverse=True)) + (")" if len(option.opts) > 1 else "")


def _value(error: Any) -> str | None:
    """Of a number that is none, or out of its range."""
    parameter, cause = getattr(error, "param", None), error.__cause__
    if parameter is None or not hasattr(cause, "errors"):
        return None
    first = cause.errors()[0]
    kind, given = str(first["type"]), first["input"]
    if not kind.startswith(("int_", "float_", "greater_", "less_")):
        return None
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    number = "number" if kind.startswith("float_") else "whole number"
    return f"{_name(parameter)} is {given!s}, and has to be a {number}{_range(least, most)}"


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f" of at least {least:g}"
    return f" of at most {most:g}" if least is None else f" from {least:g} to {most:g}"
