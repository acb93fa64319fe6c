"""Arguments of the library that count something, checked where they come in."""

from __future__ import annotations

from typing import overload

from blockexport.models.errors import UsageError


@overload
def whole(name: str, value: int, least: int | None = None) -> int: ...
@overload
def whole(name: str, value: int | None, least: int | None = None) -> int | None: ...
def whole(name: str, value: int | None, least: int | None = None) -> int | None:
    """`value`, a whole number of at least `least`; None stands for a default and stays.

    Raises:
        UsageError: it is something else.
    """
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):  # a bool is none
        bound = "" if least is None else f" of at least {least}"
        raise UsageError(f"{name} is {value!r}, and has to be a whole number{bound}")
    return value
