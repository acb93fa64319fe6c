"""By how much the stored tensors of two bundles differ; codes of quantised matrices are compared as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from blockexport.compare.core.immovable import as_integers, same_bits
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.models.checkpoints.checkpoint import FileSlice
from blockexport.models.checkpoints.mapped_tensor import tensor_of
from blockexport.models.checkpoints.safetensors_header import StoredTensor, read_header
from blockexport.models.element_types import BY_SAFETENSORS

_ELEMENTS = 1 << 22  # compared at a time


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that two bundles both have.

    Attributes:
        name: of the tensor.
        form: its type and shape in either, where these differ.
        unequal: values that differ, of `count`; of codes in 4 bits, bytes.
        largest: the largest difference of a value.
        relative: root mean square of the difference over that of the first bundle's values.
    """

    name: str
    form: str | None = None
    unequal: int = 0
    count: int = 0
    largest: float = 0.0
    relative: float = 0.0


_Stored = tuple[Path, StoredTensor]


def stored_tensors(folder: Path, manifest: Manifest) -> Mapping[str, _Stored]:
    """Where the tensors are that a bundle's graph was made from, RoPE tables included.

    Raises:
        UsageError: a file is damaged or missing.
    """
    files = (folder / name for name in manifest.files[ONNX_FILE].made_from)
    return {name: (path, stored) for path in files for name, stored in read_header(path).items()}


def tensor_difference(name: str, one: _Stored, other: _Stored) -> TensorDifference | None:
    """How two tensors of a name differ; None where they have the same bits."""
    forms = [f"{stored.dtype} {list(stored.shape)}" for _, stored in (one, other)]
    if one[1].shape != other[1].shape:
        return TensorDifference(name, " and ".join(forms))
    form = " and ".join(forms) if forms[0] != forms[1] else None
    unequal = count = 0
    largest = size = apart = 0.0
    for a, b in zip(_pieces(one), _pieces(other), strict=True):
        count += a.numel()
        wide_a, wide_b = a.double(), b.double()
        size += float(wide_a.square().sum())
        if form is None and same_bits(a, b):
            continue
        difference = (wide_a - wide_b).abs().nan_to_num(nan=float("inf"))
        bits = as_integers(a.dtype)
        unequal += int((wide_a != wide_b).sum() if form else (a.view(bits) != b.view(bits)).sum())
        largest = max(largest, float(difference.max()))
        apart += float(difference.square().sum())
    if form is None and not unequal:
        return None
    return TensorDifference(name, form, unequal, count, largest, (apart / size) ** 0.5 if size else float(apart > 0))


def _pieces(stored: _Stored) -> Iterator[torch.Tensor]:
    path, tensor = stored
    item = BY_SAFETENSORS[tensor.dtype].itemsize
    for start in range(0, tensor.length // item, _ELEMENTS):
        count = min(_ELEMENTS, tensor.length // item - start)
        yield tensor_of(FileSlice(path, tensor.offset + start * item, count * item), tensor.dtype, (count,))
