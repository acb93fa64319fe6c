"""A Hugging Face folder: config.json, and weights in one safetensors file or in shards listed by an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import Checkpoint, FileSlice, Source, TensorEntry
from blockexport.models.checkpoints.safetensors_files import stored_entries
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD, needed_entries
from blockexport.models.checkpoints.tensor_spellings import in_hugging_face_names
from blockexport.models.errors import UsageError
from blockexport.models.formats.config_hf import read_hf_config
from blockexport.models.regular_file import open_regular, read_json_object

if TYPE_CHECKING:
    import torch

_COMPARE_BYTES = 1 << 24


class SafetensorsCheckpoint(Checkpoint):
    """The checkpoint in `folder`; every name, shape, type and byte range is checked here, values are read later.

    Args:
        folder: holds config.json and the weights.
        reference: what to record as its source; the absolute path unless given.

    Raises:
        UsageError: anything is missing, unknown, damaged or contradictory.
    """

    def __init__(self, folder: Path, reference: str | None = None) -> None:
        self.folder = folder.absolute()
        self.config = read_hf_config(self.folder)
        self.range_is_stated = "max_position_embeddings" in read_json_object(self.folder / "config.json", "")
        stored, notes = stored_entries(self.folder)
        spelled = in_hugging_face_names(stored, self.config, str(self.folder))
        found = spelled.entries
        self.notes = (*notes, *spelled.notes)
        self.entries: Mapping[str, TensorEntry] = needed_entries(found, self.config, str(self.folder))
        if self.config.tie_word_embeddings and OUTPUT_HEAD in found:
            _check_tied_head(found[EMBEDDING], found[OUTPUT_HEAD])
        files = sorted({entry.location.path for entry in self.entries.values() if entry.location})
        self.source = Source("safetensors", reference or str(self.folder), tuple(files))

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`. The tensor maps the file's pages; nothing is copied."""
        from blockexport.models.checkpoints.mapped_tensor import tensor_of

        entry = self.entries[name]
        assert entry.location is not None
        return tensor_of(entry.location, entry.dtype, entry.shape)

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """See `Checkpoint.strips`. The pages of a strip are given back with it."""
        from blockexport.models.checkpoints.mapped_tensor import strips_of

        return strips_of(self.entries[name])


def _check_tied_head(embedding: TensorEntry, head: TensorEntry) -> None:
    """A head stored beside tied embeddings must be the same bytes, or config and weights contradict each other."""
    same = (embedding.dtype, embedding.shape) == (head.dtype, head.shape)
    if same and embedding.location and head.location:
        same = _same_bytes(embedding.location, head.location)
    if not same:
        raise UsageError(
            f"config.json says tie_word_embeddings: true, and {OUTPUT_HEAD} differs from {EMBEDDING}: "
            "set tie_word_embeddings to false if the separate head is meant, or remove the head"
        )


def _same_bytes(one: FileSlice, other: FileSlice) -> bool:
    with open_regular(one.path) as first, open_regular(other.path) as second:
        first.seek(one.offset)
        second.seek(other.offset)
        for done in range(0, one.length, _COMPARE_BYTES):
            count = min(_COMPARE_BYTES, one.length - done)
            if first.read(count) != second.read(count):
                return False
    return one.length == other.length
