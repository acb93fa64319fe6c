"""The one table of element types: how each library and each file format calls them. Nobody else keeps such a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ElementType:
    """An element type of whole bytes, and its names.

    Attributes:
        name: torch's, Hugging Face configs' and manifests'; NumPy's too (`bfloat16` with ml_dtypes).
        itemsize: bytes per element.
        safetensors: in the header of a safetensors file; GGUF calls its floating-point types likewise.
        onnx: the number in onnx.TensorProto.DataType and onnx_ir.DataType.
        pt2: in the listing of a `.pt2` (torch's ScalarType).
        tensorrt: of tensorrt.DataType; None where TensorRT has no such type.
        precision: how a bundle in this type is asked for; None where there is none.
        gguf_file: `general.file_type` of a GGUF whose matrices have this type; None where there is none.
    """

    name: str
    itemsize: int
    safetensors: str
    onnx: int
    pt2: str
    tensorrt: str | None = None
    precision: str | None = None
    gguf_file: int | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch type (imports torch)."""
        import torch

        dtype: torch.dtype = getattr(torch, self.name)
        return dtype

    @property
    def triton(self) -> str:
        """What a `config.pbtxt` of Triton Inference Server calls it."""
        return f"TYPE_{self.name.replace('bfloat', 'bf').replace('float', 'fp')}".upper()

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return "float" in self.name


ELEMENT_TYPES = (
    ElementType("float32", 4, "F32", 1, "FLOAT", "FLOAT", "fp32", 0),
    ElementType("float16", 2, "F16", 10, "HALF", "HALF", "fp16", 1),
    ElementType("bfloat16", 2, "BF16", 16, "BFLOAT16", "BF16", "bf16", 32),
    ElementType("float64", 8, "F64", 11, "DOUBLE"),
    ElementType("int64", 8, "I64", 7, "LONG", "INT64"),
    ElementType("int32", 4, "I32", 6, "INT", "INT32"),
    ElementType("int16", 2, "I16", 5, "SHORT"),
    ElementType("int8", 1, "I8", 3, "CHAR", "INT8"),
    ElementType("uint64", 8, "U64", 13, "UINT64"),
    ElementType("uint32", 4, "U32", 12, "UINT32"),
    ElementType("uint16", 2, "U16", 4, "UINT16"),
    ElementType("uint8", 1, "U8", 2, "BYTE", "UINT8"),
    ElementType("bool", 1, "BOOL", 9, "BOOL", "BOOL"),
)
BY_NAME: Mapping[str, ElementType] = {one.name: one for one in ELEMENT_TYPES}
BY_SAFETENSORS: Mapping[str, ElementType] = {one.safetensors: one for one in ELEMENT_TYPES}
BY_ONNX: Mapping[int, ElementType] = {one.onnx: one for one in ELEMENT_TYPES}


def element_of(dtype: torch.dtype) -> ElementType:
    """The record of a torch type.

    Raises:
        KeyError: it is none of the table.
    """
    return BY_NAME[str(dtype).removeprefix("torch.")]
