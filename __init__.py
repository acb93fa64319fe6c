"""blockexport as a library: what its commands do, as calls.

Each name is imported when it is first asked for: `import blockexport` itself loads no library.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockexport.export.redeclare import redeclare
    from blockexport.runtime.open import open_decoder

__all__ = ["__version__", "open_decoder", "redeclare"]

_HOMES = {"open_decoder": "blockexport.runtime.open", "redeclare": "blockexport.export.redeclare"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("blockexport")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
