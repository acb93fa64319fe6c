"""Matrices of a quantised bundle by themselves, where others lie beside them in its file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import torch

from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.quantised_matrix import packed_as_stored, unpacked

Change = Callable[[torch.Tensor], torch.Tensor]
SIDE_BY_SIDE = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def place_of(folder: Path, name: str, stored: Collection[str]) -> tuple[str, slice]:
    """Where a matrix is in a bundle that has the tensors `stored`: under which name, and which outputs are its own."""
    shapes = expected_tensors(read_manifest(folder).config)
    for together, parts in SIDE_BY_SIDE.items():
        module, _, end = name.rpartition(".weight")[0].rpartition(".")
        whole = f"{module}.{together}.weight"
        if end in parts and f"{whole}.codes" in stored:
            sizes = [shapes[f"{module}.{part}.weight"][0] for part in parts]
            start = sum(sizes[: parts.index(end)])
            return whole, slice(start, start + sizes[parts.index(end)])
    return name, slice(None)


def on_its_own(folder: Path, part: str, change: Change, outputs: slice) -> Change:
    """A change of the codes or scales of one matrix, as they would lie in the file by themselves, made where they lie.

    Args:
        folder: of the bundle.
        part: their name.
        change: of them.
        outputs: those of the matrix.
    """
    name, _, what = part.rpartition(".")
    manifest = read_manifest(folder)
    assert manifest.quantisation is not None
    scheme, width = manifest.quantisation.scheme_of(name), expected_tensors(manifest.config)[name][1]
    assert scheme is not None
    bits, rows = scheme.bits, width if what == "codes" else scheme.blocks(width)

    def changed(whole: torch.Tensor) -> torch.Tensor:
        if what == "scales":
            whole[:, outputs] = change(whole[:, outputs].clone())
            return whole
        flat = whole.reshape(-1).view(torch.uint8)
        codes = unpacked(flat, bits, flat.numel() * 8 // bits // rows * rows).reshape(rows, -1).clone()
        own = codes[:, outputs]
        alone = packed_as_stored(own, bits).clone()
        given = change(alone.view(torch.int8).view(own.shape) if bits == 8 else alone)
        codes[:, outputs] = unpacked(given.reshape(-1).view(torch.uint8), bits, own.numel()).view(own.shape)
        return packed_as_stored(codes, bits).view(whole.dtype)

    return changed
