"""Checkpoints as compressed-tensors, GPTQModel and AutoAWQ write them, packed here bit by bit from known numbers.

Every scale and zero point is another, so that one from a neighbour shows. What the folders stand for is worked out
from the same numbers, value by value, and never by unpacking them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.formats.config_hf_write import config_to_hf
from tests.small_models import Weights, small_config, small_weights

Integers = npt.NDArray[np.int64]

SIZES: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4, "head_dim": 16}
_AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs each half byte of a word has, from the lowest


@dataclass(frozen=True)
class Pack:
    """How the matrices of a folder are packed.

    Attributes:
        tool: `compressed-tensors`, `gptq` or `awq`.
        bits: of a code.
        group: inputs that share a scale; None: all.
        order: whether inputs were quantised in another order.
        symmetric: every zero point is the middle.
        scales: their type.
        form: GPTQ's `checkpoint_format`.
        config: keys more, or others, in `quantization_config`.
    """

    tool: str = "gptq"
    bits: int = 4
    group: int | None = 32
    order: bool = False
    symmetric: bool = True
    scales: torch.dtype = torch.float16
    form: str = "gptq"
    config: Mapping[str, Any] = field(default_factory=dict)


class PackedFolder(NamedTuple):
    """A folder, and what it stands for."""

    path: Path
    config: ModelConfig
    values: Weights
    packed: list[str]


class _Numbers(NamedTuple):
    """Of one matrix: codes [N, K] and zero points [N, G] from 0 up, scales [N, G], the group of each input [K]."""

    codes: Integers
    zeros: Integers
    scales: torch.Tensor
    groups: Integers

    @property
    def values(self) -> torch.Tensor:
        steps = self.codes - self.zeros[:, self.groups]
        return torch.from_numpy(steps.astype(np.float32)) * self.scales.float()[:, torch.from_numpy(self.groups)]


def write_packed(
    folder: Path, pack: Pack, family: str = "llama", names: tuple[str, ...] = ("_proj.weight",), **changes: Any
) -> PackedFolder:
    """A folder whose tensors that end with one of `names` are packed."""
    config = small_config(family, **{**SIZES, **changes})
    weights = small_weights(config)
    random = np.random.default_rng(7)
    orders: dict[tuple[str, int], Integers] = {}
    stored: dict[str, torch.Tensor] = {}
    values = dict(weights)
    packed = [name for name in weights if name.endswith(names)]
    for name, tensor in weights.items():
        if name not in packed:
            stored[name] = tensor
            continue
        # Inputs of one kind were looked at once: q, k and v have one order, and so have gate and up.
        kind = name.replace("k_proj", "q_proj").replace("v_proj", "q_proj").replace("up_proj", "gate_proj")
        groups = orders.setdefault((kind, tensor.shape[1]), _groups(pack, tensor.shape[1], random))
        outputs, width = tensor.shape
        numbers = _numbers(pack, outputs, width, groups, random)
        values[name] = numbers.values
        stored |= {f"{name.removesuffix('.weight')}.{part}": value for part, value in _parts(pack, numbers).items()}
    folder.mkdir(parents=True, exist_ok=True)
    data = config_to_hf(config)
    assert data is not None
    data["quantization_config"] = {**_described(pack), **pack.config}
    (folder / "config.json").write_text(json.dumps(data))
    save_file({name: value.contiguous() for name, value in stored.items()}, folder / "model.safetensors")
    return PackedFolder(folder, config, values, packed)


def _groups(pack: Pack, width: int, random: np.random.Generator) -> Integers:
    groups = np.arange(width) // (pack.group or width)
    return random.permutation(groups) if pack.order else groups


def _numbers(pack: Pack, outputs: int, width: int, groups: Integers, random: np.random.Generator) -> _Numbers:
    count = int(groups.max()) + 1
    middle = 1 << (pack.bits - 1)
    codes = random.integers(0, 2 * middle, (outputs, width))
    zeros = np.full((outputs, count), middle)
    if not pack.symmetric:
        zeros = random.integers(middle // 2, middle + middle // 2, (outputs, count))
    scales = torch.from_numpy(0.3 / middle * (0.5 + random.random((outputs, count)))).to(pack.scales)
    return _Numbers(codes, zeros, scales, groups)


def _words(fields: Integers, bits: int) -> torch.Tensor:
    """Rows of fields in words of 32 bits, the lowest bits first; the last word is filled up with zeros."""
    rows = (fields[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(len(fields), -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))
    return torch.from_numpy(np.packbits(rows, axis=1, bitorder="little").view("<i4").astype(np.int32))


def _parts(pack: Pack, numbers: _Numbers) -> dict[str, torch.Tensor]:
    codes, zeros, scales, groups = numbers
    order = {"g_idx": torch.from_numpy(groups.astype(np.int32))}
    if pack.tool == "gptq":
        less = int(pack.form == "gptq")
        parts = {"qweight": _words(codes, pack.bits).T, "qzeros": _words((zeros - less).T, pack.bits)}
        return {**parts, "scales": scales.T, **order}
    if pack.tool == "awq":
        words = [_words(_in_awq_places(fields.T), 4) for fields in (codes, zeros)]
        return {"qweight": words[0], "qzeros": words[1], "scales": scales.T}
    parts = {
        "weight_packed": _words(codes, pack.bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(codes.shape),
    }
    if pack.order:
        parts["weight_g_idx"] = order["g_idx"]
    if not pack.symmetric:
        parts["weight_zero_point"] = _words(zeros.T, pack.bits).T
    return parts


def _in_awq_places(fields: Integers) -> Integers:
    placed: Integers = fields.reshape(len(fields), -1, 8)[:, :, _AWQ_PLACES].reshape(fields.shape)
    return placed


def _described(pack: Pack) -> dict[str, Any]:
    group = pack.group or -1
    if pack.tool == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    if pack.tool == "gptq":
        content = {"quant_method": "gptq", "bits": pack.bits, "group_size": group, "desc_act": pack.order}
        return content | {"sym": pack.symmetric, "checkpoint_format": pack.form, "meta": {"quantizer": ["x"]}}
    weights = {"num_bits": pack.bits, "type": "int", "symmetric": pack.symmetric, "dynamic": False}
    weights |= {"strategy": "group" if pack.group else "channel", "group_size": pack.group, "observer": "minmax"}
    weights |= {"actorder": "group" if pack.order else None}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    content = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    return content | {"quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None}
