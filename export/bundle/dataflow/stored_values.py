"""Tensors whose values are in the graph itself, in files that no checker has seen."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

# The attributes by which a Constant gives plain numbers.
_NUMBERS = {
    "value_int": ("i", onnx.TensorProto.INT64),
    "value_ints": ("ints", onnx.TensorProto.INT64),
    "value_float": ("f", onnx.TensorProto.FLOAT),
    "value_floats": ("floats", onnx.TensorProto.FLOAT),
}


def values_of(tensor: onnx.TensorProto) -> npt.NDArray[Any] | None:
    """The values of an initializer; None where they are in another file, or its bytes are not those of its shape and
    type."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        return None


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a Constant node, whichever attribute it is given by; empty where it is no plain tensor."""
    for item in node.attribute:
        if item.name == "value":
            tensor: onnx.TensorProto = item.t
            return tensor
        if item.name in _NUMBERS:
            field, kind = _NUMBERS[item.name]
            value = getattr(item, field)
            is_list = item.name.endswith("s")
            return helper.make_tensor("", kind, [len(value)] if is_list else [], value if is_list else [value])
    return onnx.TensorProto()
