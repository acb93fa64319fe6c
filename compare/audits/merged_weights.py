"""What a LoRA adapter makes of a base model's weights, worked out from the adapter's files with numpy.

This shares no code with what merges (`models/checkpoints/merged_checkpoint.py` and its neighbours): the config is read
as plain JSON, the tensors with the safetensors library, a module has a low-rank part where the file has one, and its
rank is the size of that. What is common is that the base model's own tensors are read as they are everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD, expected_tensors
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.regular_file import open_regular

Floats = npt.NDArray[np.float64]

_ROWS = 1 << 21  # values of a piece, about: rows of a matrix that are in memory in float64
_OTHER = 0.01  # away from 1, a factor is another one
_ALIKE = 1e-6  # of a change's square: what is left of it beside a multiple of the right one
_NOISE = 1e-13  # of float64, over the size of the summands


@dataclass(frozen=True)
class _MergedPiece:
    """Some rows of a tensor: the base model's, what they have to be, and how far off a rounding may put them."""

    rows: slice
    before: Floats
    wanted: Floats
    room: Floats


@dataclass(frozen=True)
class _Seen:
    """A tensor as peft sees it.

    Attributes:
        name: that of the tensor which holds it.
        rows: its outputs among that one's; None: all, in order.
        turned: the matrix lies [in, out].
    """

    name: str
    rows: npt.NDArray[np.int64] | None
    turned: bool

    def of(self, values: Floats) -> Floats:
        """The values of its outputs, which are the first axis."""
        return values if self.rows is None else values[self.rows]


class MergedWeights:
    """The weights of `base` with the adapter in `folder`."""

    def __init__(self, base: Checkpoint, folder: Path) -> None:
        self._base = base
        with open_regular(folder / "adapter_config.json") as config:
            self._config: dict[str, Any] = json.load(config)
        file: Any = safe_open(folder / "adapter_model.safetensors", framework="pt")
        self._file = file
        self._names: frozenset[str] = frozenset(file.keys())
        self._seen = {name: _seen(name, base.config) for name in expected_tensors(base.config)}
        self._seen[OUTPUT_HEAD] = _seen(OUTPUT_HEAD, base.config)  # a tied one may be apart with an adapter

    def changes(self, name: str) -> bool:
        """Whether the adapter has a part in the tensor."""
        module, _, part = self._seen[name].name.rpartition(".")
        own = ("lora_A.weight", "lora_embedding_A") if part == "weight" else ("lora_B.bias",)
        return any(f"base_model.model.{module}.{tail}" in self._names for tail in (part, f"base_layer.{part}", *own))

    def fault(self, name: str, found: torch.Tensor) -> str | None:
        """How `found`, of the tensor's shape, is not what base model and adapter make of it in its type: a clause with
        its name. None where it is, to a rounding of that type."""
        off, change, along, found_change, noise = 0, 0.0, 0.0, 0.0, 0.0
        worst: tuple[float, int, float, float] = (-1.0, 0, 0.0, 0.0)
        unmerged = True
        for piece, values in self._against(name, found):
            apart = np.abs(values - piece.wanted)
            wrong = ~(apart <= piece.room)
            off += int(wrong.sum())
            unmerged &= bool((np.abs(values - piece.before) <= piece.room).all())
            wanted_step, step = piece.wanted - piece.before, values - piece.before
            change += float(np.square(wanted_step).sum())
            along += float((wanted_step * step).sum())
            found_change += float(np.square(step).sum())
            noise += float(np.square(_half_units(values, found.dtype)).sum())
            at = int(np.nan_to_num(apart, nan=np.inf).argmax())
            if wrong.any() and not apart.flat[at] <= worst[0]:
                start = piece.rows.start * (values.size // len(values))
                worst = (float(apart.flat[at]), start + at, float(values.flat[at]), float(piece.wanted.flat[at]))
        if not off:
            return None
        if unmerged:
            return f"{name} is the base model's, without the adapter"
        times = along / change if change else 1.0
        if abs(times - 1) > _OTHER and found_change - times * along <= _ALIKE * found_change + 4 * noise:
            return f"{name} has {times:.4g} times the adapter's change"
        where = [int(i) for i in np.unravel_index(worst[1], tuple(found.shape))]
        return (
            f"{name} is not what base model and adapter give in {off:,} of {found.numel():,} values: {where} is "
            f"{worst[2]:.6g} and should be {worst[3]:.6g}"
        )

    def _against(self, name: str, found: torch.Tensor) -> Iterator[tuple[_MergedPiece, Floats]]:
        for piece in self._pieces(name, found.dtype):
            yield piece, found[piece.rows].double().numpy()

    def _pieces(self, name: str, dtype: torch.dtype) -> Iterator[_MergedPiece]:
        there = self._seen[name]
        module, _, part = there.name.rpartition(".")
        base = self._replaced(module, part, there)
        if base is None:
            base = self._base.read(name if name in self._base.entries else EMBEDDING)
        norms: Floats | None = None
        magnitude = self._magnitude(module, there) if part == "weight" else None
        if magnitude is not None and self._has(f"{module}.lora_embedding_A"):
            squares = [np.square(before + step).sum(axis=0) for _, before, step in self._steps(there, base)]
            norms = np.sqrt(np.sum(squares, axis=0))
        for rows, before, step in self._steps(there, base):
            wanted = before + step
            if magnitude is not None and norms is None:
                wanted = wanted * (magnitude[rows] / np.sqrt(np.square(wanted).sum(axis=1)))[:, np.newaxis]
            elif magnitude is not None and norms is not None:
                wanted = wanted * (magnitude / norms)
            room = _half_units(wanted, dtype) + _NOISE * (np.abs(before) + np.abs(step) + np.abs(wanted))
            yield _MergedPiece(rows, before, wanted, room)

    def _steps(self, there: _Seen, base: torch.Tensor) -> Iterator[tuple[slice, Floats, Floats]]:
        """Rows of what the adapter is added to, and what it adds to them."""
        many = max(1, _ROWS // max(1, base[0].numel()))
        for start in range(0, len(base), many):
            rows = slice(start, min(start + many, len(base)))
            before = base[rows].double().numpy()
            yield rows, before, self._step(there, rows, before)

    def _step(self, there: _Seen, rows: slice, before: Floats) -> Floats:
        module, _, part = there.name.rpartition(".")
        if part == "bias":
            if not self._has(f"{module}.lora_B.bias"):
                return np.zeros_like(before)
            rank = self._get(f"{module}.lora_A.weight").shape[0]
            return self._factor(module, rank) * there.of(self._get(f"{module}.lora_B.bias"))[rows]
        if self._has(f"{module}.lora_embedding_A"):
            down, up = self._get(f"{module}.lora_embedding_A"), self._get(f"{module}.lora_embedding_B")
            turned: Floats = np.einsum("rv,dr->vd", down[:, rows], up, optimize=True)
            return self._factor(module, len(down)) * turned
        if self._has(f"{module}.lora_A.weight"):
            down, up = self._get(f"{module}.lora_A.weight"), there.of(self._get(f"{module}.lora_B.weight"))
            product: Floats = np.einsum("or,ri->oi", up[rows], down, optimize=True)
            return self._factor(module, len(down)) * product
        return np.zeros_like(before)

    def _factor(self, module: str, rank: int) -> float:
        alpha = float(self._config["lora_alpha"])
        for pattern, other in (self._config.get("alpha_pattern") or {}).items():
            if re.search(rf"(?:^|\.)(?:{pattern})$", module):
                alpha = float(other)
                break
        return alpha / rank**0.5 if self._config.get("use_rslora") else alpha / rank

    def _replaced(self, module: str, part: str, there: _Seen) -> torch.Tensor | None:
        for name in (f"{module}.base_layer.{part}", f"{module}.{part}"):
            if self._has(name):
                tensor: torch.Tensor = self._file.get_tensor(f"base_model.model.{name}")
                whole = tensor.T if there.turned else tensor
                return whole if there.rows is None else whole[torch.from_numpy(there.rows)]
        return None

    def _magnitude(self, module: str, there: _Seen) -> Floats | None:
        names = [f"{module}.lora_magnitude_vector{tail}" for tail in ("", ".weight")]
        return next((there.of(self._get(name)) for name in names if self._has(name)), None)

    def _has(self, name: str) -> bool:
        return f"base_model.model.{name}" in self._names

    def _get(self, name: str) -> Floats:
        values: Floats = self._file.get_tensor(f"base_model.model.{name}").double().numpy()
        return values


def _seen(name: str, config: ModelConfig) -> _Seen:
    family = FAMILIES[config.model_type]
    module, _, kind = name.rpartition(".")
    rows: npt.NDArray[np.int64] | None = None
    for whole, parts in family.fused.items():
        for number, part in enumerate(parts):
            if module.endswith(f".{part}"):
                module = module[: -len(part)] + whole
                rows = _rows(number, len(parts), config, by_head=family.fused_by_head)
    words = f".{module}."
    for own, usual in family.tensor_names.items():
        words = words.replace(f".{usual}.", f".{own}.", 1)
    turned = family.inputs_first and kind == "weight" and "_proj" in module
    return _Seen(f"{words[1:-1]}.{kind}", rows, turned)


def _rows(number: int, parts: int, config: ModelConfig, *, by_head: bool) -> npt.NDArray[np.int64]:
    """Where the outputs of q, k or v (of three parts), of gate or up (of two) stand in the whole."""
    width, keys = config.head_dim, config.num_key_value_heads * config.head_dim
    if by_head:
        heads = np.arange(config.num_attention_heads)[:, np.newaxis]
        own: npt.NDArray[np.int64] = ((heads * parts + number) * width + np.arange(width)).reshape(-1)
        return own
    inner = config.intermediate_size
    sizes = [config.num_attention_heads * width, keys, keys] if parts == 3 else [inner, inner]
    return np.arange(sum(sizes[:number]), sum(sizes[: number + 1]))


def merged_weights(checkpoint: Checkpoint) -> MergedWeights | None:
    """What holds the weights of a checkpoint with an adapter; None where it has none."""
    return None if checkpoint.adapter is None else MergedWeights(checkpoint.base, checkpoint.adapter)


def _half_units(values: Floats, dtype: torch.dtype) -> Floats:
    """Half a unit in the last place of `values` in a type, and in float32, through which a narrower one is reached."""
    _, exponents = np.frexp(np.abs(values))
    units = [torch.finfo(kind) for kind in {dtype, torch.float32}]
    total = np.zeros_like(values)
    for kind in units:
        total += np.maximum(np.ldexp(kind.eps / 2, exponents - 1), kind.smallest_normal * kind.eps / 2)
    return total
