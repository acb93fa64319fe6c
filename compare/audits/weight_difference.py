"""A tensor of an artifact against the checkpoint's, bit for bit, and where they differ, how in the plainest words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from blockexport.compare.audits.expected_values import expected_pieces
from blockexport.compare.core.immovable import as_integers, same_bits
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.wording import told_apart


def same_values(found: torch.Tensor, checkpoint: Checkpoint, name: str) -> bool:
    """Whether `found` holds the bits that an export in its type writes for the checkpoint's tensor `name` of its shape.

    Read and converted a piece at a time: beside the file's pages only the tensor of the checkpoint is in memory.
    """
    flat, done = found.reshape(-1), 0
    for wanted in expected_pieces(checkpoint, name, found.dtype):
        if not same_bits(flat[done : done + len(wanted)], wanted):
            return False
        done += len(wanted)
    return True


def describe_difference(
    found: torch.Tensor, checkpoint: Checkpoint, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """How `found`, which has the shape of the checkpoint's tensor `name`, differs from it: a clause with its name.

    Args:
        found: the tensor of the file.
        checkpoint: the source.
        name: of the tensor.
        shapes: of the model's tensors by name: those of the same shape may have been mistaken for this one.
    """
    wanted = converted(checkpoint, name, found.dtype)
    whole = _other(found, checkpoint, name, shapes) or rearranged(found, wanted, checkpoint.config.head_dim)
    whole = whole or scaled(found, wanted) or _wrongly_split(found, checkpoint, name)
    if whole is not None:
        return f"{name} {whole}"
    bits = as_integers(found.dtype)
    unequal = found.contiguous().view(bits) != wanted.view(bits)
    line = _scaled_line(found, wanted, unequal)
    if line is not None:
        return f"{line[0]} of {name} {line[1]}"
    where, count = _largest(found, wanted, unequal), int(unequal.sum())
    said = (
        f"{name} differs in {count:,} of {found.numel():,} values{_pattern(found, unequal)}"
        f": {list(where)} is {_apart(found[where], wanted[where])}"
    )
    return said + ("" if count == 1 else ", the largest difference")


def converted(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the checkpoint as an export in `dtype` writes it."""
    return torch.cat(list(expected_pieces(checkpoint, name, dtype))).view(checkpoint.entries[name].shape)


def _largest(found: torch.Tensor, wanted: torch.Tensor, unequal: torch.Tensor) -> tuple[int, ...]:
    """Where the largest difference is; what is not a number differs most."""
    apart = (found.float() - wanted.float()).abs().nan_to_num(nan=float("inf")).masked_fill(~unequal, -1.0)
    index = int(apart.argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(index), apart.shape))


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> str:
    one, other = told_apart(float(found), float(wanted))
    return f"{one} and the checkpoint's {other if one != other else 'the same in other bits'}"


def _pattern(found: torch.Tensor, unequal: torch.Tensor) -> str:
    """What the differing values have in common."""
    said = []
    if int(unequal.sum()) > 1 and unequal.ndim > 1:
        rows = unequal.flatten(1).any(1).nonzero().flatten().tolist()
        said.append(f" in row {rows[0]}" if len(rows) == 1 else f" in {len(rows):,} of {len(unequal):,} rows")
    if not bool(found[unequal].any()):
        said.append(", all 0 in the file" if int(unequal.sum()) > 1 else "")
    return "".join(said)


def _other(found: torch.Tensor, checkpoint: Checkpoint, name: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first other tensor of the same shape that has these values."""
    for other in _alike(name, shapes):
        if same_values(found, checkpoint, other):
            return f"holds the values of {other}"
    return None


def _alike(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Tensors that could stand in for `name`, those of the same role first."""
    role = name.rpartition("layers.")[2].partition(".")[2] or name
    others = [other for other, shape in shapes.items() if other != name and shape == shapes[name]]
    yield from sorted(others, key=lambda other: not other.endswith(role))


def rearranged(found: torch.Tensor, wanted: torch.Tensor, head_dim: int) -> str | None:
    """The checkpoint's own values in another order."""
    if found.ndim != 2:
        return None
    rows, columns = found.shape
    if same_bits(found.reshape(columns, rows).T.contiguous(), wanted):
        return "holds the checkpoint's values transposed"
    half = head_dim // 2
    paired = rows % (2 * half) == 0
    if paired and same_bits(found, wanted.view(-1, 2, half, columns).transpose(1, 2).reshape(found.shape)):
        return "holds the checkpoint's rows with the two of each RoPE pair side by side, as llama.cpp orders them"
    return None


def _wrongly_split(found: torch.Tensor, checkpoint: Checkpoint, name: str) -> str | None:
    """The rows of q, k or v that a matrix which stacks the three gives when it is taken apart in the wrong order."""
    stem, _, kind = name.rpartition(".")
    parts = [f"{stem.removesuffix(stem[-6:])}{one}_proj.{kind}" for one in "qkv"]
    entries = checkpoint.entries
    if name not in parts or any(one not in entries or entries[one].shape != found.shape for one in parts):
        return None
    config, place = checkpoint.config, parts.index(name)
    heads, width = config.num_attention_heads, config.head_dim
    three = torch.stack([converted(checkpoint, one, found.dtype) for one in parts])
    by_head = three.view(3, heads, width, -1).transpose(0, 1).reshape(three.shape)[place]
    if same_bits(found, by_head):
        return "holds rows of q, k and v: a matrix that has the three head by head was split in three"
    by_part = three.view(heads, 3, width, -1)[:, place].reshape(found.shape)
    if same_bits(found, by_part):
        return "holds rows of q, k and v: a matrix that has the three one after the other was split head by head"
    return None


def scaled(found: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """One factor for all values, within a rounding of the type before and after."""
    wide_found, wide_wanted = found.double(), wanted.double()
    square = float(wide_wanted.square().sum())
    factor = float((wide_found * wide_wanted).sum()) / square if square > 0 else float("nan")
    kind = torch.finfo(found.dtype)
    room = 2 * kind.eps * wide_found.abs() + kind.smallest_normal * kind.eps * max(1.0, abs(factor))
    other = factor and abs(factor - 1) > 2 * kind.eps and found.numel() > 1
    if other and bool(((wide_found - factor * wide_wanted).abs() <= room).all()):
        return f"is {told_apart(factor, 1.0, digits=4)[0]} times the checkpoint's"
    return None


def _scaled_line(found: torch.Tensor, wanted: torch.Tensor, unequal: torch.Tensor) -> tuple[str, str] | None:
    """The one row or column in which a matrix differs, and its factor; None where that is not what differs."""
    for axis, what in enumerate(("row", "column") if found.ndim == 2 else ()):
        lines = unequal.any(1 - axis).nonzero().flatten().tolist()
        factor = scaled(found.select(axis, lines[0]), wanted.select(axis, lines[0])) if len(lines) == 1 else None
        if factor is not None:
            return f"{what} {lines[0]}", factor
    return None
