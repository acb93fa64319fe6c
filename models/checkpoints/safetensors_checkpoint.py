"""A Hugging Face folder: config.json, and weights in one safetensors file or in shards listed by an index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import Checkpoint, FileSlice, Source, TensorEntry
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD, needed_entries
from blockexport.models.config.config_hf import read_hf_config
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, open_regular, read_json

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

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
        found = _stored_entries(self.folder)
        self.entries: Mapping[str, TensorEntry] = needed_entries(found, self.config, str(self.folder))
        if self.config.tie_word_embeddings and OUTPUT_HEAD in found:
            _check_tied_head(found[EMBEDDING], found[OUTPUT_HEAD])
        files = sorted({entry.location.path for entry in self.entries.values() if entry.location})
        self.source = Source("safetensors", reference or str(self.folder), tuple(files))

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`. The tensor maps the file's pages; nothing is copied."""
        from blockexport.models.checkpoints.tensor_types import tensor_of

        entry = self.entries[name]
        assert entry.location is not None
        return tensor_of(entry.location, entry.dtype, entry.shape)


def _stored_entries(folder: Path) -> dict[str, TensorEntry]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise UsageError(
            f"{folder} holds both {SINGLE_FILE} and {INDEX_FILE}, two sets of weights that may differ: "
            "remove the one that is not meant"
        )
    if index.exists():
        return _sharded_entries(folder, index)
    if single.exists():
        return _entries_of(single)
    raise UsageError(_no_weights(folder))


def _no_weights(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    message = f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}"
    safetensors = [name for name in names if name.endswith(".safetensors")]
    pickled = [name for name in names if name.endswith((".bin", ".pth", ".pt"))]
    if safetensors:
        return f"{message}, only {safetensors[0]}: rename it to {SINGLE_FILE} if it is the whole model"
    if pickled:
        return (
            f"{message}, only {pickled[0]}: pickled weights can run code when they are loaded and are not read. "
            "Convert them with transformers: from_pretrained(folder).save_pretrained(new_folder)"
        )
    return f"{message}: download the weights into it"


def _entries_of(path: Path) -> dict[str, TensorEntry]:
    return {
        name: TensorEntry(name, stored.dtype, stored.shape, FileSlice(path, stored.offset, stored.length))
        for name, stored in read_header(path).items()
    }


def _sharded_entries(folder: Path, index: Path) -> dict[str, TensorEntry]:
    weight_map = _weight_map(index)
    entries: dict[str, TensorEntry] = {}
    for shard in sorted({_shard_name(index, value) for value in weight_map.values()}):
        if not is_there(folder / shard):
            raise UsageError(f"{index} names the shard {shard}, and there is no such file beside it. Download it")
        placed = {name for name, value in weight_map.items() if value == shard}
        stored = _entries_of(folder / shard)
        for name in sorted(placed ^ stored.keys()):
            relation = "which the index does not place there" if name in stored else "and the shard lacks it"
            verb = "holds" if name in stored else "should hold"
            raise UsageError(
                f"{folder / shard} {verb} {name}, {relation}: shard and {index.name} do not belong together"
            )
        entries |= stored
    return entries


def _weight_map(index: Path) -> dict[str, object]:
    data = read_json(index, "download it again")
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{index} has no weight_map from tensor names to files. Download it again")
    return weight_map


def _shard_name(index: Path, value: object) -> str:
    """A plain file name: an index must not reach outside its own folder."""
    if not isinstance(value, str) or not re.fullmatch(r"[^/\\\0]*\.safetensors", value):
        raise UsageError(
            f"{index} places weights in {value!r}; a shard must be a plain file name that ends in .safetensors"
        )
    return value


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
