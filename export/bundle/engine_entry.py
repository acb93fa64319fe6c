"""What a manifest says of the engines in its bundle.

An engine is `engines/<backend>-sm<capability>[-sm<capability> ...]-<precision>.engine`. The manifest lists it like any
file (sha256, and the hashes of the graph and weights it was made from) and describes it under `engines`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blockexport.export.bundle.manifest import MANIFEST, Manifest
from blockexport.export.bundle.trt_library import ascending
from blockexport.models.errors import UsageError
from blockexport.models.interface import Port
from blockexport.models.precision import Precision
from blockexport.models.strict_json import read_record

ENGINES = "engines"


@dataclass(frozen=True)
class Profile:
    """What shapes a set of kernels is chosen for: rows of the batch and tokens per row, as (least, usual, most)."""

    name: str
    batch_size: tuple[int, int, int]
    sequence_length: tuple[int, int, int]

    def takes(self, batch_size: int, sequence_length: int) -> bool:
        """True when a step of this size runs in this profile."""
        least, most = self.sequence_length[0], self.sequence_length[2]
        return self.batch_size[0] <= batch_size <= self.batch_size[2] and least <= sequence_length <= most


@dataclass(frozen=True)
class EngineEntry:
    """What a user of an engine has to know; sha256, length and origin are in the manifest's entry of the file."""

    backend: str
    version: str
    compute_capabilities: tuple[str, ...]
    precision: Precision
    profiles: tuple[Profile, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights_digest: str
    options: dict[str, Any]
    audit: dict[str, Any]
    rebuild: str


def engine_name(backend: str, targets: Iterable[str], precision: Precision) -> str:
    """Where an engine is in its bundle."""
    generations = "-".join(f"sm{target.replace('.', '')}" for target in ascending(targets))
    return f"{ENGINES}/{backend}-{generations}-{precision.value}.engine"


def entry_of(manifest: Manifest, name: str) -> EngineEntry:
    """What the manifest says of one engine.

    Raises:
        UsageError: its entry is damaged.
    """
    try:
        return read_record(EngineEntry, manifest.engines[name], "")
    except ValueError as error:
        raise UsageError(
            f"the manifest's entry of {name} is damaged ({error}): build that engine again, or take the entry out of "
            f'"engines" in {MANIFEST}'
        ) from error
