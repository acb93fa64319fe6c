"""Mistakes with a whole tensor of a foreign file, or a row or column of one, in any convention.

The tensor is found by its values, so that a file may call it what it likes and lay it out as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file

from tests.foreign_files import changed

Values = np.ndarray[Any, Any]
Tensors = dict[str, Values]
_LAYER = "model.layers.{}.{}.weight"


@dataclass(frozen=True)
class WeightMistake:
    """What is done to tensors of a checkpoint [out, in], where it shows first, and what names it."""

    change: Callable[[Tensors], Tensors]
    sites: tuple[str, ...]
    named: str


def _times(name: str, factor: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: (tensors[name].astype(np.float64) * factor).astype(np.float32)}


def _part_times(name: str, at: tuple[Any, ...], factor: float) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        values = tensors[name].copy()
        values[at] *= np.float32(factor)
        return {name: values}

    return change


def _of(taken: Mapping[str, str]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensors[other] for name, other in taken.items()}


def _weight(layer: int, name: str) -> str:
    return _LAYER.format(layer, name)


_ALL = slice(None)
_QUERY, _KEY, _VALUE, _OUT = (_weight(1, f"self_attn.{kind}_proj") for kind in "qkvo")
_UPS, _OUTS = ([_weight(layer, name) for layer in (0, 1)] for name in ("mlp.up_proj", "self_attn.o_proj"))
_NORM = _weight(1, "post_attention_layernorm")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "q_heads", "q_rope", "cache_key", "cache_value", "merged")
"""Where a fused attention shows a wrong projection."""

MISTAKES: dict[str, WeightMistake] = {
    "final norm x 1.05": WeightMistake(
        _times("model.norm.weight", 1.05), ("final_norm",), "model.norm.weight is 1.05 times the checkpoint's"
    ),
    "norm x 0.97": WeightMistake(
        _times(_NORM, 0.97), ("post_attention_layernorm",), f"{_NORM} is 0.97 times the checkpoint's"
    ),
    "down_proj x 1.00003": WeightMistake(
        _times(_weight(1, "mlp.down_proj"), 1 + 3e-5),
        ("down_proj",),
        f"{_weight(1, 'mlp.down_proj')} is 1.00003 times the checkpoint's",
    ),
    "q_proj x 1.1": WeightMistake(_times(_QUERY, 1.1), _ATTENTION, f"{_QUERY} is 1.1 times the checkpoint's"),
    "embedding x 1.01": WeightMistake(
        _times("model.embed_tokens.weight", 1.01),
        ("embedding",),
        "model.embed_tokens.weight is 1.01 times the checkpoint's",
    ),
    "head row x 1.1": WeightMistake(
        _part_times("lm_head.weight", (17,), 1.1), ("head",), "row 17 of lm_head.weight is 1.1 times the checkpoint's"
    ),
    "of another layer": WeightMistake(
        _of({_UPS[1]: _UPS[0]}), ("up_proj",), f"{_UPS[1]} holds the values of {_UPS[0]}"
    ),
    "two exchanged": WeightMistake(
        _of(dict(zip(_OUTS, _OUTS[::-1], strict=True))), ("o_proj",), f"{_OUTS[0]} holds the values of {_OUTS[1]}"
    ),
    "column halved": WeightMistake(
        _part_times(_weight(0, "mlp.gate_proj"), (_ALL, 5), 0.5),
        ("gate_proj",),
        f"column 5 of {_weight(0, 'mlp.gate_proj')} is 0.5 times the checkpoint's",
    ),
    "row halved": WeightMistake(
        _part_times(_VALUE, (3,), 0.5), _ATTENTION, f"row 3 of {_VALUE} is 0.5 times the checkpoint's"
    ),
    "sign flipped": WeightMistake(_times(_OUT, -1.0), ("o_proj",), f"{_OUT} is -1 times the checkpoint's"),
}

TURNED: dict[str, WeightMistake] = {
    "transposed": WeightMistake(
        lambda tensors: {_OUT: tensors[_OUT].T}, ("o_proj",), f"{_OUT} holds the checkpoint's values transposed"
    )
}
"""What only a model with a square matrix can have."""


def invisible(family: str, mistake: str) -> str:
    """Why no output shows a mistake in a family; empty where one does."""
    return (
        "the norm of the queries takes any factor out again" if (family, mistake) == ("qwen3", "q_proj x 1.1") else ""
    )


def with_mistake(path: Path, target: Path, source: Path, mistake: WeightMistake) -> Path:
    """A copy of a foreign file of the checkpoint `source` that makes the mistake."""
    tensors = load_file(source / "model.safetensors")

    def change(model: onnx.ModelProto) -> None:
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for name, values in mistake.change(tensors).items():
            found, turned, start = _place(held, tensors[name])
            tensor = next(tensor for tensor in model.graph.initializer if tensor.name == found)
            whole = numpy_helper.to_array(tensor).copy()
            if turned:
                whole[..., start : start + len(values)] = values.T
            else:
                whole[:] = values
            tensor.CopyFrom(numpy_helper.from_array(whole, found))

    return changed(path, target, change)


def _place(held: Mapping[str, Values], values: Values) -> tuple[str, bool, int]:
    """Which initializer has the values, whether turned over, and from which column on."""
    found = []
    for name, whole in held.items():
        if np.array_equal(whole, values):
            found.append((name, False, 0))
        elif whole.ndim == values.ndim and whole.shape[:-1] == values.T.shape[:-1]:
            starts = range(whole.shape[-1] - len(values) + 1)
            found += [(name, True, at) for at in starts if np.array_equal(whole[..., at : at + len(values)], values.T)]
    (one,) = found
    return one
