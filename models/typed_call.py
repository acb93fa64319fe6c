"""Arguments of the library's public functions, held against their own annotations where they come in.

A value of another type would be taken for something else (`None` for a model of that name at the Hugging Face Hub), or
end far inside in an error that names none of the caller's words. What a number or a name may be is checked beyond this,
by whoever uses it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from blockexport.models.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "text"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: type(value) is int, "a whole number"),  # a bool is none
    "float": (lambda value: type(value) in (int, float), "a number"),
    "Sequence": (lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes)), "a list"),
    **dict.fromkeys(("Callable", "Explainer", "Progress"), (callable, "a function")),
    "BuildOptions": (lambda value: type(value).__name__ == "BuildOptions", "BuildOptions"),
}
"""By the name in an annotation: whether a value is of that kind, and what the kind is called in a message."""

_CHECKED_ELSEWHERE = {"AttentionForms", "Precision", "Verify"}  # names out of a list, which the message is to give


def typed_call(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose arguments are compared with its annotations before it runs.

    Raises:
        UsageError: one is of another type; it is named, with the value and what it has to be.
    """
    signature = inspect.signature(function)
    annotations = {name: ast.parse(one.annotation, mode="eval").body for name, one in signature.parameters.items()}

    @functools.wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if not _fits(value, annotations[name]):
                words = " or ".join(_words(annotations[name]))
                meant = f": [{value!r}]" if isinstance(value, str) and words.startswith("a list") else ""
                raise UsageError(f"{name} is {value!r}, and has to be {words}{meant}")
        return function(*arguments, **named)

    return checked


def _fits(value: Any, annotation: ast.expr) -> bool:
    match annotation:
        case ast.BinOp(left=left, right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=element):
            return _KINDS["Sequence"][0](value) and all(_fits(one, element) for one in value)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name) if name in _KINDS:
            return _KINDS[name][0](value)
        case ast.Constant(value=None):
            return value is None
    return ast.unparse(annotation) in _CHECKED_ELSEWHERE


def _words(annotation: ast.expr) -> list[str]:
    match annotation:
        case ast.BinOp(left=left, right=right):
            return [*_words(left), *_words(right)]
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=element):
            return [f"a list, each item of it {' or '.join(_words(element))}"]
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name):
            return [_KINDS[name][1]]
    return ["None"]
