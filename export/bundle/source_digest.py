"""One digest for a checkpoint: its config as we read it, and the bytes of its weight files; and one for an adapter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from blockexport.export.bundle.manifest import combined_digest, sha256_of
from blockexport.models.checkpoints.adapter_tensors import ADAPTER_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.formats.adapter_config import ADAPTER_CONFIG


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


def _stated(config: ModelConfig) -> dict[str, Any]:
    """A config without what is left at its default: an option that a later version brings changes no digest."""
    defaults = {one.name: one.default for one in fields(config)}
    return {name: value for name, value in config.to_json().items() if value != defaults[name]}


def adapter_digest(folder: Path) -> str:
    """Hex sha256 over an adapter's config and weights."""
    return combined_digest(sha256_of(folder / name) for name in (ADAPTER_CONFIG, ADAPTER_FILE))
