"""One digest for a checkpoint: its config as we read it, and the bytes of its weight files; and one for an adapter."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from blockexport.export.bundle.manifest import combined_digest, sha256_of
from blockexport.models.checkpoints.adapter_tensors import ADAPTER_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.formats.adapter_config import ADAPTER_CONFIG
from blockexport.models.regular_file import open_regular

_CHUNK = 1 << 20


def source_digest(checkpoint: Checkpoint, known: Mapping[Path, str] | None = None) -> str:
    """Hex sha256 over the config and every weight file, as it was opened: without an adapter.

    Args:
        checkpoint: an opened checkpoint.
        known: sha256 of weight files that were already read, so that they need not be read again.
    """
    known, checkpoint = known or {}, checkpoint.base
    config = hashlib.sha256(json.dumps(_stated(checkpoint.config), sort_keys=True).encode()).hexdigest()
    seed = "" if checkpoint.source.seed is None else str(checkpoint.source.seed)
    files = [known.get(path) or sha256_of(path) for path in checkpoint.source.files]
    return combined_digest([config, seed, *files])


@contextmanager
def hashed_meanwhile(files: Iterable[Path]) -> Iterator[Callable[[], dict[Path, str]]]:
    """Hash files on a thread, while the body of the `with` does something else; given up where that fails.

    Yields:
        A function that waits for the hex sha256 of each. It raises UsageError where a file may not be read.
    """
    ended = threading.Event()

    def digest(path: Path) -> str:
        found, buffer = hashlib.sha256(), bytearray(_CHUNK)
        with open_regular(path) as file:
            while not ended.is_set() and (count := file.readinto(buffer)):
                found.update(memoryview(buffer)[:count])
        return found.hexdigest()

    with ThreadPoolExecutor(max_workers=1) as worker:
        try:
            yield worker.submit(lambda: {path: digest(path) for path in files}).result
        finally:
            ended.set()  # an error waits for a chunk, and not for a file


def _stated(config: ModelConfig) -> dict[str, Any]:
    """A config without what is left at its default: an option that a later version brings changes no digest."""
    defaults = {one.name: one.default for one in fields(config)}
    return {name: value for name, value in config.to_json().items() if value != defaults[name]}


def adapter_digest(folder: Path) -> str:
    """Hex sha256 over an adapter's config and weights."""
    return combined_digest(sha256_of(folder / name) for name in (ADAPTER_CONFIG, ADAPTER_FILE))
