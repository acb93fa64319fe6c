"""A backend that only the tests have: eager PyTorch under another name. One file, beside one record."""

from __future__ import annotations

from blockexport.runtime.backends import Backend, Opening, everywhere
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import open_bundle as open_eager

ECHO = Backend(
    "echo", f"{__name__}:open_bundle", ("cpu",), everywhere(True, "an echo of eager PyTorch, every operator in {}")
)


def open_bundle(wanted: Opening) -> Decoder:
    """Eager PyTorch on the source of the bundle."""
    return open_eager(wanted)
