"""What a bundle says of the embeddings it gives, and who cannot do with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.errors import UsageError
from blockexport.models.interface import Ends, Pooling

if TYPE_CHECKING:
    from blockexport.export.bundle.manifest import Manifest


@dataclass(frozen=True)
class EmbeddingRecord:
    """What a text's embedding is made of, and whether it is brought to length 1."""

    pooling: Pooling
    normalized: bool

    @classmethod
    def of(cls, ends: Ends) -> EmbeddingRecord | None:
        """Of the ends that give one; None of others."""
        return None if ends.pooling is None else cls(ends.pooling, ends.normalizes)


def require_no_embeddings(manifest: Manifest, folder: Path, why: str) -> None:
    """Refuse a bundle that gives embeddings, since `why`, a clause.

    Raises:
        UsageError: it does.
    """
    if manifest.embedding is not None:
        raise UsageError(
            f"{folder} was exported with --task embed and gives embeddings, and {why}: run it with "
            "blockexport.open_decoder, or its model.onnx with ONNX Runtime by itself"
        )
