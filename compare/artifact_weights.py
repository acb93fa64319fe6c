"""The weights inside an artifact's file, by name and shape, read without their values where the format allows."""

from __future__ import annotations

from pathlib import Path

from blockexport.compare.context import Shapes
from blockexport.export.manifest import ONNX_FILE, PT2_FILE

_TABLES = ("cos", "sin")  # RoPE tables follow from the config and are no parameters


def artifact_weights(folder: Path, backend: str) -> Shapes | None:
    """Name to shape of every weight in the file that `backend` runs; None where it runs no file of the bundle.

    In the ONNX file these are the floating-point initialisers of one dimension or more: scalars are constants of the
    graph, and integers are indices.
    """
    if backend in ("onnxruntime", "replay"):
        return _onnx_weights(folder / ONNX_FILE)
    if backend == "pt2":
        return _pt2_weights(folder / PT2_FILE)
    return None


def _onnx_weights(path: Path) -> Shapes:
    import onnx

    floating = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    graph = onnx.load(path, load_external_data=False).graph
    return {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.dims and tensor.data_type in floating and tensor.name not in _TABLES
    }


def _pt2_weights(path: Path) -> Shapes:
    import torch

    parameters = torch.export.load(path).state_dict
    return {name: tuple(tensor.shape) for name, tensor in parameters.items() if name not in _TABLES}
