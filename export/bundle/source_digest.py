"""One digest for a checkpoint: its config as we read it, and the bytes of its weight files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from blockexport.export.bundle.manifest import combined_digest, sha256_of
from blockexport.models.checkpoints.checkpoint import Checkpoint


def source_digest(checkpoint: Checkpoint, known: Mapping[Path, str] | None = None) -> str:
    """Hex sha256 over the config and every weight file.

    Args:
        checkpoint: an opened checkpoint.
        known: sha256 of weight files that were already read, so that they need not be read again.
    """
    known = known or {}
    config = hashlib.sha256(json.dumps(checkpoint.config.to_json(), sort_keys=True).encode()).hexdigest()
    seed = "" if checkpoint.source.seed is None else str(checkpoint.source.seed)
    files = [known.get(path) or sha256_of(path) for path in checkpoint.source.files]
    return combined_digest([config, seed, *files])
