"""Judging the bug zoo for quantisation with `compare`, in bundles and in MatMulNBits files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from onnx import helper, numpy_helper

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation, scale_dtype
from blockexport.models.quantised_matrix import QuantisationScheme, QuantisedMatrix
from tests.coded_zoo import Build, Coded, CodedExhibit, Making
from tests.compare.static_judge import spoilt
from tests.exported import export
from tests.stored_codes import Change
from tests.zoo_judge import SLOTS, Cage, Data


class CodedCage(NamedTuple):
    """A sound quantised bundle, and how it was quantised."""

    cage: Cage
    quantisation: Quantisation

    def matrices(self, exhibit: CodedExhibit) -> list[str]:
        """Those in which a mistake can be made without anybody noticing, in the order of the forward pass."""
        names = [EMBEDDING, *(n for n in self.cage.checkpoint.entries if n.startswith("model.layers.")), OUTPUT_HEAD]
        return [name for name in names if self._fits(name, exhibit)]

    def _fits(self, name: str, exhibit: CodedExhibit) -> bool:
        scheme = self.quantisation.scheme_of(name)
        if (
            scheme is None
            or scheme.bits not in exhibit.bits
            or (exhibit.in_layers and name in (EMBEDDING, OUTPUT_HEAD))
        ):
            return False
        outputs, inputs = source_of(self.cage.checkpoint, name).shape
        return exhibit.fits(outputs, inputs, scheme.block_size)

    def spoilt(self, folder: Path, names: Iterable[str], build: Build) -> Path:
        """A copy with some matrices made anew."""
        changes: dict[str, Change] = {}
        for name in names:
            scheme = self.quantisation.scheme_of(name)
            assert scheme is not None
            making = Making(scheme, scale_dtype(Precision.FP32), bytes_along_inputs=name == EMBEDDING)
            made = build(source_of(self.cage.checkpoint, name), making)
            matrix = QuantisedMatrix(name, scheme, made.codes_KN, made.scales_GN)
            rows = name == EMBEDDING
            packed = torch.cat(list(matrix.packed(outputs_first=rows)))
            scales = made.scales_GN.T if rows else made.scales_GN
            codes = packed.view(torch.int8) if scheme.bits == 8 else packed
            changes |= {f"{name}.codes": _replaced_by(codes), f"{name}.scales": _replaced_by(scales)}
        return spoilt(self.cage.folder, folder, "model.safetensors", changes)


def _replaced_by(values: torch.Tensor) -> Change:
    return lambda _: values


def coded_cage(checkpoint: Checkpoint, folder: Path, quantisation: Quantisation) -> CodedCage:
    """Export a sound bundle."""
    export(checkpoint, folder, slots=SLOTS, quantisation=quantisation)
    return CodedCage(Cage(folder, checkpoint), quantisation)


def source_of(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The weight that a matrix is made of; a tied head is the embedding."""
    return checkpoint.read(name if name in checkpoint.entries else EMBEDDING)


def found_in(report: Data, names: list[str], mistake: str) -> None:
    """That a report locates some matrices, all that are wrong and no others, and names the mistake, and no other."""
    failed = [check["name"] for check in report["checks"] if check["verdict"] == "fail"]
    assert failed == ["parameters"], failed
    found: Mapping[str, Any] | None = report["explanation"]["weights"]
    assert found is not None
    assert found["wrong"] == names
    first = names[0].split(".")
    layer, site = (None, "head") if names[0] == OUTPUT_HEAD else (None, "embedding")
    if names[0].startswith("model.layers."):
        layer, site = int(first[2]), first[4]
    assert (found["first"]["tensor"], found["first"]["layer"], found["first"]["site"]) == (names[0], layer, site)
    causes = {cause["name"]: cause["tensors"] for cause in found["causes"]}
    assert causes == {mistake: names}, [n for n in names if n not in causes.get(mistake, [])] or causes.keys()
    assert report["explanation"]["sentences"][-2:] == found["sentences"]
    assert found["sentences"][1].startswith("likely cause, which undone leaves nothing wrong: ")


def put(model: onnx.ModelProto, name: str, coded: Coded, scheme: QuantisationScheme) -> None:
    """Give the MatMulNBits of a matrix, called as onnxruntime-genai calls it, other codes, scales and zero points."""
    theirs = name.replace(".self_attn.", ".attn.").removesuffix(".weight") + ".MatMul.weight_"
    (node,) = (n for n in model.graph.node if n.op_type == "MatMulNBits" and n.input[1].startswith(theirs))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    half, block = -scheme.lowest, scheme.block_size
    codes_NK = torch.nn.functional.pad(coded.codes_KN.T.int() + half, (0, -coded.codes_KN.shape[0] % block), value=half)
    stored = {node.input[1]: _packed(codes_NK, scheme).view(len(codes_NK), -1, block * scheme.bits // 8)}
    kind = helper.tensor_dtype_to_np_dtype(tensors[node.input[2]].data_type)
    scales = coded.scales_GN.T.float().numpy().astype(kind)
    if coded.zeros_GN is not None:
        del node.input[3:]
        node.input.append(f"{theirs}zeros")
        stored[node.input[3]] = _packed(coded.zeros_GN.T.int() + half, scheme).reshape(-1)
    for attribute in node.attribute:
        attribute.i = {"bits": scheme.bits, "block_size": block}.get(attribute.name, attribute.i)
    arrays = {**{key: value.numpy() for key, value in stored.items()}, node.input[2]: scales.reshape(-1)}
    for key, array in arrays.items():
        tensor = tensors.get(key) or model.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(array, key))


def _packed(values_NX: torch.Tensor, scheme: QuantisationScheme) -> torch.Tensor:
    """Rows of numbers from 0 up as bytes, the earlier of two in the lower half."""
    values = values_NX.to(torch.uint8)
    if scheme.bits == 8:
        return values
    values = torch.nn.functional.pad(values, (0, values.shape[1] % 2))
    return values[:, 0::2] | (values[:, 1::2] << 4)


def edits(
    weights: Mapping[str, torch.Tensor], names: Iterable[str], build: Build, scheme: QuantisationScheme
) -> Callable[[onnx.ModelProto], None]:
    """Make some matrices of a file anew."""

    def edit(model: onnx.ModelProto) -> None:
        for name in names:
            put(model, name, build(weights[name], Making(scheme, torch.float16, bytes_along_inputs=True)), scheme)

    return edit
