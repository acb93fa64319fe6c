"""A Hugging Face folder: config.json, and weights in one safetensors file or in shards listed by an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockexport.models.checkpoints.checkpoint import Checkpoint, FileSlice, Source, TensorEntry
from blockexport.models.checkpoints.fused_tensors import storage_of, taken_apart
from blockexport.models.checkpoints.packed_matrices import Unpacked, with_packed
from blockexport.models.checkpoints.safetensors_files import stored_entries
from blockexport.models.checkpoints.size_keys import SizeKeys
from blockexport.models.checkpoints.tensor_names import (
    EMBEDDING,
    OTHER_PARTS,
    OUTPUT_HEAD,
    expected_tensors,
    needed_entries,
)
from blockexport.models.checkpoints.tensor_spellings import in_hugging_face_names
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.formats.config_hf import config_from_hf
from blockexport.models.formats.packing import read_packing
from blockexport.models.formats.text_part import read_config_json
from blockexport.models.regular_file import open_regular
from blockexport.models.wording import listed

if TYPE_CHECKING:
    import torch

    from blockexport.models.quantised_matrix import QuantisedMatrix

_COMPARE_BYTES = 1 << 24
_HEAD = OUTPUT_HEAD.removesuffix(".weight")


class SafetensorsCheckpoint(Checkpoint):
    """The checkpoint in `folder`; every name, shape, type and byte range is checked here, values are read later.

    Args:
        folder: holds config.json and the weights.
        reference: what to record as its source; the absolute path unless given.
        text_only: of a multimodal model its text part, which is refused otherwise.
        headless: the output head may be absent, as nothing reads it.

    Raises:
        UsageError: anything is missing, unknown, damaged or contradictory.
    """

    folder: Path

    def __init__(
        self, folder: Path, reference: str | None = None, *, text_only: bool = False, headless: bool = False
    ) -> None:
        self.folder = folder.absolute()
        where = str(self.folder)
        content = read_config_json(self.folder, text_only=text_only)
        self.config = config_from_hf(content, str(self.folder / "config.json"))
        family = FAMILIES[self.config.model_type]
        length = "max_position_embeddings"
        self.range_is_stated = family.keys.get(length, length) in content
        stored, notes = stored_entries(self.folder)
        if text_only:
            stored, left_out = _without_other_parts(stored)
            notes += left_out
        spelled = in_hugging_face_names(stored, self.config, where)
        if headless and not any(name.startswith(f"{_HEAD}.") for name in spelled.entries):
            self.config = replace(self.config, tie_word_embeddings=True, head_bias=False)
        expected = expected_tensors(self.config)
        packing = read_packing(content, str(self.folder / "config.json"))
        entries, self._rearranged = taken_apart(spelled.entries, storage_of(self.config), expected, where)
        unpacked = Unpacked(entries, {})
        if packing is not None:
            unpacked = with_packed(unpacked.entries, packing, expected, where)
        found, self._packed = unpacked.entries, unpacked.matrices
        self.notes = (*notes, *spelled.notes, *unpacked.notes)
        self.entries: Mapping[str, TensorEntry] = needed_entries(
            found, self.config, where, keys=SizeKeys(self.config, family.keys, _unstated(content))
        )
        if self.config.tie_word_embeddings and OUTPUT_HEAD in found:
            _check_tied_head(found[EMBEDDING], found[OUTPUT_HEAD])
        parts = [entry for name, matrix in self._packed.items() if name in self.entries for entry in matrix.parts]
        parts += [one.whole for name, one in self._rearranged.items() if name in self.entries]
        files = sorted({entry.location.path for entry in (*self.entries.values(), *parts) if entry.location})
        self.source = Source("safetensors", reference or str(self.folder), tuple(files))

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`. The tensor maps the file's pages, and nothing is copied, unless it is packed or lies
        otherwise in the file."""
        from blockexport.models.checkpoints.mapped_tensor import tensor_of

        entry = self.entries[name]
        if name in self._packed:
            from blockexport.models.checkpoints.packed_values import values_of

            return values_of(self._packed[name], str(self.folder))
        if name in self._rearranged:
            made = self._rearranged[name]
            assert made.whole.location is not None
            return made.of(tensor_of(made.whole.location, made.whole.dtype, made.whole.shape))
        assert entry.location is not None
        return tensor_of(entry.location, entry.dtype, entry.shape)

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """See `Checkpoint.strips`. The pages of a strip are given back with it; a packed tensor is read as a whole."""
        from blockexport.models.checkpoints.mapped_tensor import strips_of

        made = name in self._packed or name in self._rearranged
        return super().strips(name) if made else strips_of(self.entries[name])

    def read_codes(self, name: str) -> QuantisedMatrix:
        """See `Checkpoint.read_codes`."""
        from blockexport.models.checkpoints.packed_codes import codes_of

        scheme = self.entries[name].codes
        assert scheme is not None, name
        return codes_of(self._packed[name], scheme, str(self.folder))


def _without_other_parts(stored: Mapping[str, TensorEntry]) -> tuple[dict[str, TensorEntry], list[str]]:
    """The tensors that may be the text part's, and what to say of the others."""
    others = [name for name in stored if OTHER_PARTS.search(name)]
    note = f"{len(others)} tensors of the model's other parts are left out: {listed(others, 4)}"
    return {name: entry for name, entry in stored.items() if name not in set(others)}, [note] if others else []


def _unstated(content: Mapping[str, Any]) -> frozenset[str]:
    """The sizes of attention that a config.json does not state."""
    return frozenset(key for key in ("num_key_value_heads", "head_dim") if content.get(key) is None)


def _check_tied_head(embedding: TensorEntry, head: TensorEntry) -> None:
    """A head stored beside tied embeddings must be the same bytes, or config and weights contradict each other."""
    same = (embedding.dtype, embedding.shape) == (head.dtype, head.shape)
    if same:  # packed ones are no bytes to compare
        places = (embedding.location, head.location)
        same = places[0] is not None and places[1] is not None and _same_bytes(places[0], places[1])
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
