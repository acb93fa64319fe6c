"""A checkpoint with a LoRA adapter merged into it, tensor by tensor as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.adapter_tensors import TensorChange, read_adapter
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint

if TYPE_CHECKING:
    import torch

    from blockexport.models.quantised_matrix import QuantisedMatrix

_TOKENIZER = "tokenizer.json"


class MergedCheckpoint(Checkpoint):
    """The tensors of `base` as the adapter in `folder` changes them, in float32, or in float64 where the base has it.
    Of one that is read in strips, a strip is in memory at a time.

    Where the adapter changes one of two ends that share a table, they are two tables from here on, as they are in peft
    until it merges.

    Raises:
        UsageError: see `read_adapter`.
    """

    def __init__(self, base: Checkpoint, folder: Path) -> None:
        self._base, self._folder = base, folder.absolute()
        tied = base.config.tie_word_embeddings
        adapter = read_adapter(self._folder, base.config)
        self._changes: Mapping[str, TensorChange] = adapter.changes
        parts_ends = tied and not {EMBEDDING, OUTPUT_HEAD}.isdisjoint(self._changes)
        self._below = UntiedCheckpoint(base) if parts_ends else base
        self.config, self.source = self._below.config, base.source
        self.range_is_stated = base.range_is_stated
        self.entries = {name: self._entry(entry) for name, entry in self._below.entries.items()}
        self.notes = (*base.notes, *self._notes(adapter.config.base_model, parts_ends=parts_ends))

    @property
    def base(self) -> Checkpoint:
        """See `Checkpoint.base`."""
        return self._base

    @property
    def adapter(self) -> Path:
        """See `Checkpoint.adapter`."""
        return self._folder

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`."""
        import torch

        if name not in self._changes:
            return self._below.read(name)
        strips = list(self.strips(name))
        return strips[0] if len(strips) == 1 else torch.cat(strips)

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """See `Checkpoint.strips`."""
        import torch

        from blockexport.models.checkpoints.lora_merge import adapter_values, merged_strips
        from blockexport.models.checkpoints.mapped_tensor import strips_of
        from blockexport.models.element_types import BY_SAFETENSORS

        change = self._changes.get(name, TensorChange())

        def before() -> Iterator[torch.Tensor]:
            if change.replaced is None:
                return self._below.strips(name)
            whole = strips_of(change.replaced)
            return whole if change.part is None else iter([change.part.of(torch.cat(list(whole)))])

        if not change.computes:
            return before()
        dtype = BY_SAFETENSORS[self.entries[name].dtype].torch_dtype
        if change.low_rank is not None:
            return (strip.to(dtype) for strip in merged_strips(before, change.low_rank, change.part))
        assert change.bias is not None
        added = adapter_values(change.bias, change.part) * change.scaling
        return ((strip.double() + added).to(dtype) for strip in before())

    def origin(self, name: str) -> str:
        """See `Checkpoint.origin`."""
        is_changed = {EMBEDDING, OUTPUT_HEAD} & self._changes.keys()
        return name if is_changed else self._below.origin(name)

    def read_codes(self, name: str) -> QuantisedMatrix:
        """See `Checkpoint.read_codes`."""
        return self._below.read_codes(name)

    def _entry(self, entry: TensorEntry) -> TensorEntry:
        change = self._changes.get(entry.name, TensorChange())
        if change.computes:
            dtype = "F64" if entry.dtype == "F64" else "F32"
            return replace(entry, dtype=dtype, location=None, codes=None, order=None)
        if change.replaced is None:
            return entry
        if change.part is None:
            return replace(change.replaced, name=entry.name)
        return replace(change.replaced, name=entry.name, shape=entry.shape, location=None)

    def _notes(self, trained_on: str | None, *, parts_ends: bool) -> Iterator[str]:
        count = len(self._changes)
        yield f"the adapter {self._folder} is merged into {count} of {len(self.entries)} tensors"
        ours = self.source.reference
        if trained_on is not None and _last_word(trained_on) != _last_word(ours):
            yield f"the adapter says that it was trained on {trained_on}, and the base model is {ours}"
        if parts_ends:
            yield (
                "embedding and output head share a table in the base model, and the adapter changes one of them, or "
                "each on its own: they are two tables from here on"
            )
        if (self._folder / _TOKENIZER).is_file():
            yield (
                f"the adapter's folder has a {_TOKENIZER} of its own, which is not used: tokenizer and chat template "
                "are those of the base model"
            )


def _last_word(reference: str) -> str:
    return reference.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
