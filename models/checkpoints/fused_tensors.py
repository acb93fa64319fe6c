"""Projections that a checkpoint has stacked in one matrix, taken apart on load.

Their rows follow each other, so each part is a range of the file's own bytes and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from blockexport.models.checkpoints.checkpoint import FileSlice, TensorEntry
from blockexport.models.errors import UsageError

Fused = Mapping[str, tuple[str, ...]]
"""The stacked projection and its parts in order, as names within a layer: `self_attn.qkv_proj`."""


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


def taken_apart(
    found: Mapping[str, TensorEntry], fused: Fused, expected: Mapping[str, tuple[int, ...]], where: str
) -> dict[str, TensorEntry]:
    """The tensors `found` with each part of a stacked one in its place.

    Raises:
        UsageError: a stacked tensor does not have the rows of its parts, or a part is there by itself as well.
    """
    entries: dict[str, TensorEntry] = {}
    for name, entry in found.items():
        parts = parts_of(name, fused, expected) if entry.location is not None else None
        made = [(name, entry)] if parts is None else list(_split(entry, parts, where))
        for part, made_entry in made:
            if part in entries:
                raise UsageError(f"{where} holds {part} by itself and inside of a fused tensor: keep one of them")
            entries[part] = made_entry
    return entries


def _split(entry: TensorEntry, parts: list[tuple[str, slice]], where: str) -> Iterator[tuple[str, TensorEntry]]:
    rows, location = parts[-1][1].stop, entry.location
    assert location is not None
    if not entry.shape or entry.shape[0] != rows:
        raise UsageError(
            f"{entry.stored_name or entry.name} in {where} has shape {list(entry.shape)}; its config calls for {rows} "
            f"rows, those of {', '.join(name for name, _ in parts)} in turn. Config and weights belong to different "
            "models, or one of them was edited"
        )
    width = location.length // rows
    for name, part in parts:
        count = part.stop - part.start
        place = FileSlice(location.path, location.offset + part.start * width, count * width)
        shape = (count, *entry.shape[1:])
        stored = entry.stored_name or entry.name
        yield name, replace(entry, name=name, shape=shape, location=place, stored_name=stored)
