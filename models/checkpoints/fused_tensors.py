"""Tensors of a layer that a checkpoint has otherwise than this project: projections stacked in one, and matrices that
lie the other way round.

Rows of a stacked matrix that follow each other are a range of the file's own bytes, and nothing is copied. The rest is
rearranged when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import FileSlice, TensorEntry
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES

if TYPE_CHECKING:
    import torch

Fused = Mapping[str, tuple[str, ...]]
"""The stacked projection and its parts in order, as names within a layer: `self_attn.qkv_proj`."""


@dataclass(frozen=True)
class Storage:
    """How the checkpoints of a family have the tensors of a layer.

    Attributes:
        fused: what is stacked.
        heads: the rows of the parts follow each other head by head, of so many; None: part by part.
        inputs_first: matrices lie [in, out].
    """

    fused: Fused
    heads: int | None = None
    inputs_first: bool = False


@dataclass(frozen=True)
class StackedPart:
    """What of a tensor as the family has it is one of this project's.

    Attributes:
        rows: of its outputs; of each head's outputs where there are heads.
        storage: how the family has it.
    """

    rows: slice
    storage: Storage

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The tensor, from the values of the whole."""
        return self.of_outputs(values.T if self.storage.inputs_first and values.ndim == 2 else values)

    def of_outputs(self, outputs_first: torch.Tensor) -> torch.Tensor:
        """That of something whose first axis is the outputs of the whole."""
        heads = self.storage.heads
        if heads is None:
            return outputs_first[self.rows].contiguous()
        by_head = outputs_first.view(heads, -1, *outputs_first.shape[1:])
        return by_head[:, self.rows].flatten(0, 1)


@dataclass(frozen=True)
class Rearranged:
    """A tensor that is made of one in a file, `whole`."""

    whole: TensorEntry
    part: StackedPart

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """See `StackedPart.of`."""
        return self.part.of(values)


def storage_of(config: ModelConfig) -> Storage:
    """How the checkpoints of a model's family have its layers."""
    family = FAMILIES[config.model_type]
    heads = config.num_attention_heads if family.fused_by_head else None
    return Storage(family.fused, heads, family.inputs_first)


def parts_of(name: str, fused: Fused, expected: Mapping[str, tuple[int, ...]]) -> list[tuple[str, slice]] | None:
    """The tensors that are stacked in the tensor `name`, and the rows of each; None where it is none of `fused`.

    Args:
        name: of a tensor of a layer, with its number: `model.layers.3.self_attn.qkv_proj.weight`.
        fused: what the family stacks.
        expected: shapes of the model's tensors.
    """
    stem, _, kind = name.rpartition(".")
    stacked = next((one for one in fused if stem.endswith(f".{one}")), None)
    if stacked is None:
        return None
    names = [f"{stem.removesuffix(stacked)}{part}.{kind}" for part in fused[stacked]]
    found, start = list[tuple[str, slice]](), 0
    for part in names:
        if part not in expected:
            return None
        found.append((part, slice(start, start + expected[part][0])))
        start = found[-1][1].stop
    return found


def whole_of(name: str, storage: Storage, expected: Mapping[str, tuple[int, ...]]) -> tuple[str, StackedPart] | None:
    """The tensor that holds the tensor `name`, with which part of it that is; None where they are one and the same."""
    stem, _, kind = name.rpartition(".")
    for stacked, parts in storage.fused.items():
        own = next((part for part in parts if stem.endswith(f".{part}")), None)
        if own is not None:
            whole = f"{stem.removesuffix(own)}{stacked}.{kind}"
            rows = dict(parts_of(whole, storage.fused, expected) or ())[name]
            return whole, StackedPart(_of_each_head(rows, storage), storage)
    if storage.inputs_first and ".layers." in name and len(expected[name]) == 2:
        return name, StackedPart(slice(None), replace(storage, heads=None))
    return None


def _of_each_head(rows: slice, storage: Storage) -> slice:
    heads = storage.heads or 1
    return slice(rows.start // heads, rows.stop // heads)


def taken_apart(
    found: Mapping[str, TensorEntry], storage: Storage, expected: Mapping[str, tuple[int, ...]], where: str
) -> tuple[dict[str, TensorEntry], dict[str, Rearranged]]:
    """The tensors `found` with each part of a stacked one in its place; and those that have to be rearranged.

    Raises:
        UsageError: a stacked tensor does not have the rows of its parts, or a part is there by itself as well.
    """
    entries, made = dict[str, TensorEntry](), dict[str, Rearranged]()
    for name, entry in found.items():
        for part, made_entry, rearranged in _parts(name, entry, storage, expected, where):
            if part in entries:
                raise UsageError(f"{where} holds {part} by itself and inside of a fused tensor: keep one of them")
            entries[part] = made_entry
            if rearranged is not None:
                made[part] = rearranged
    return entries, made


def _parts(
    name: str, entry: TensorEntry, storage: Storage, expected: Mapping[str, tuple[int, ...]], where: str
) -> Iterator[tuple[str, TensorEntry, Rearranged | None]]:
    """What a stored tensor holds."""
    parts = parts_of(name, storage.fused, expected) if entry.location is not None else None
    turned = storage.inputs_first and entry.location is not None and ".layers." in name and len(entry.shape) == 2
    shape = entry.shape[::-1] if turned else entry.shape
    stored = entry.stored_name or entry.name
    if parts is None:
        whole = Rearranged(entry, StackedPart(slice(None), replace(storage, heads=None))) if turned else None
        yield name, replace(entry, shape=shape, location=None, stored_name=stored) if turned else entry, whole
        return
    rows = parts[-1][1].stop
    if not shape or shape[0] != rows:
        raise UsageError(
            f"{stored} in {where} has shape {list(entry.shape)}; its config calls for {rows} "
            f"{'columns' if turned else 'rows'}, those of {', '.join(part for part, _ in parts)} in turn. Config and "
            "weights belong to different models, or one of them was edited"
        )
    width = 0 if entry.location is None else entry.location.length // rows
    for part, of in parts:
        own = replace(entry, name=part, shape=(of.stop - of.start, *shape[1:]), location=None, stored_name=stored)
        if turned or storage.heads is not None:
            yield part, own, Rearranged(entry, StackedPart(_of_each_head(of, storage), storage))
        else:
            assert entry.location is not None
            place = FileSlice(entry.location.path, entry.location.offset + of.start * width, own.shape[0] * width)
            yield part, replace(own, location=place), None


def put_together(tensors: Mapping[str, torch.Tensor], storage: Storage) -> dict[str, torch.Tensor]:
    """The tensors of a model as its checkpoints have them: what `taken_apart` and `Rearranged.of` read back.

    Args:
        tensors: each a model's own, [out, in] where it is a matrix.
        storage: of a family that stacks part by part.
    """
    import torch

    assert storage.heads is None
    stored = dict(tensors)
    for whole, parts in storage.fused.items():
        for name in [name for name in stored if f".{parts[0]}." in name]:
            stem, _, kind = name.partition(f".{parts[0]}.")
            rows = [stored.pop(f"{stem}.{part}.{kind}") for part in parts]
            stored[f"{stem}.{whole}.{kind}"] = torch.cat(rows)
    turned = {
        name for name, tensor in stored.items() if storage.inputs_first and ".layers." in name and tensor.ndim == 2
    }
    return {name: tensor.T if name in turned else tensor for name, tensor in stored.items()}
