"""The table of element types against the libraries whose names it lists."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from gguf import GGMLQuantizationType, LlamaFileType
from safetensors.torch import load, save
from torch._export.serde.schema import ScalarType
from torch._export.serde.serialize import _TORCH_TO_SERIALIZE_DTYPE

from blockexport.models.element_types import BY_NAME, BY_ONNX, BY_SAFETENSORS, ELEMENT_TYPES, ElementType, element_of
from blockexport.models.precision import Precision

every_type = pytest.mark.parametrize("one", ELEMENT_TYPES, ids=lambda one: one.name)


@every_type
def test_torch_and_numpy_know_it_by_its_name(one: ElementType) -> None:
    assert element_of(one.torch_dtype) is one
    numpy = ml_dtypes.bfloat16 if one.name == "bfloat16" else one.name
    assert one.itemsize == one.torch_dtype.itemsize == np.dtype(numpy).itemsize


@every_type
def test_onnx_has_it_under_its_number(one: ElementType) -> None:
    numpy = ir.DataType(one.onnx).numpy()
    assert numpy.name == one.name and ir.DataType(one.onnx).itemsize == one.itemsize
    assert onnx.TensorProto.DataType.Name(one.onnx) == ir.DataType(one.onnx).name


@every_type
def test_safetensors_writes_its_name(one: ElementType) -> None:
    content = save({"x": torch.zeros(2, dtype=one.torch_dtype)})
    assert f'"dtype":"{one.safetensors}"'.encode() in content
    assert load(content)["x"].dtype == one.torch_dtype


@every_type
def test_a_pt2_lists_it_under_its_name(one: ElementType) -> None:
    assert ScalarType[one.pt2] == _TORCH_TO_SERIALIZE_DTYPE[one.torch_dtype]


@pytest.mark.parametrize("one", [one for one in ELEMENT_TYPES if one.tensorrt is not None], ids=lambda one: one.name)
def test_tensorrt_has_it_under_its_name(one: ElementType) -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    assert getattr(trt.DataType, str(one.tensorrt)).itemsize == one.itemsize


def test_a_gguf_of_a_precision_says_so() -> None:
    wanted = {
        "float32": LlamaFileType.ALL_F32,
        "float16": LlamaFileType.MOSTLY_F16,
        "bfloat16": LlamaFileType.MOSTLY_BF16,
    }
    assert {one.name: one.gguf_file for one in ELEMENT_TYPES if one.gguf_file is not None} == wanted


def test_gguf_names_its_floating_types_as_safetensors_does() -> None:
    assert {GGMLQuantizationType[one.safetensors].name for one in ELEMENT_TYPES if one.is_float} == {
        "F32", "F16", "BF16", "F64",
    }  # fmt: skip


def test_no_name_stands_for_two_types() -> None:
    assert len(BY_NAME) == len(BY_ONNX) == len(BY_SAFETENSORS) == len(ELEMENT_TYPES)


def test_each_precision_has_its_element_type() -> None:
    assert [one.element.name for one in Precision] == ["float32", "float16", "bfloat16"]
    assert [Precision.of(one.torch_dtype) for one in Precision] == list(Precision)
