"""The weights inside an artifact's file: names and shapes at once, values one tensor at a time."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from blockexport.export.bundle.manifest import AOTI_FILE, GRAPHS, PT2_FILE
from blockexport.models.block.rope import TABLES
from blockexport.models.checkpoints.checkpoint import FileSlice
from blockexport.models.checkpoints.mapped_tensor import tensor_of
from blockexport.models.element_types import BY_ONNX, ELEMENT_TYPES
from blockexport.models.errors import UsageError

if TYPE_CHECKING:
    import onnx

_TABLES = tuple(chain(*TABLES))  # RoPE tables follow from the config and are no parameters
_ZIP_HEADER = 30  # bytes of a local file header before the name and the extra field, whose lengths are its last four


@dataclass(frozen=True)
class ArtifactWeights:
    """What an artifact's file holds.

    Attributes:
        shapes: by name, those of a checkpoint in Hugging Face's form.
        read: gives one tensor as it is stored, mapped where the format allows; None where values cannot be read.
        others: what the artifact's other graphs hold, where prompt and steps have one each.
    """

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor] | None = None
    others: tuple[ArtifactWeights, ...] = ()


def artifact_weights(folder: Path, file: str | None) -> Callable[[], ArtifactWeights] | None:
    """Gives the weights in the file that a backend runs; None where it runs none of the bundle that can be read.

    In the ONNX file these are the floating-point initializers of one dimension or more: scalars are constants of the
    graph, and integers are indices.
    """
    readers = {**dict.fromkeys(GRAPHS, _onnx_weights), PT2_FILE: _pt2_weights, AOTI_FILE: _aoti_weights}
    if file is None or file not in readers:
        return None
    return lambda: readers[file](folder / file)


def _onnx_weights(path: Path) -> ArtifactWeights:
    import onnx

    return initializers(onnx.load(path, load_external_data=False), path.parent)


def initializers(model: onnx.ModelProto, folder: Path) -> ArtifactWeights:
    """The floating-point initializers of one dimension or more of a file in `folder`."""

    floating = [one.onnx for one in ELEMENT_TYPES if one.precision]
    tensors = {
        tensor.name: tensor
        for tensor in model.graph.initializer
        if tensor.dims and tensor.data_type in floating and tensor.name not in _TABLES
    }
    shapes = {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    return ArtifactWeights(shapes, lambda name: _onnx_tensor(tensors[name], folder))


def _onnx_tensor(tensor: onnx.TensorProto, folder: Path) -> torch.Tensor:
    """The values of an initializer of a file in `folder`; external data is mapped.

    Raises:
        UsageError: the file with the external data is too short or cannot be read.
    """
    import onnx
    from onnx import numpy_helper

    element, shape = BY_ONNX[tensor.data_type], tuple(tensor.dims)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        where = {entry.key: entry.value for entry in tensor.external_data}
        length = prod(shape) * element.itemsize
        place = FileSlice(folder / where["location"], int(where.get("offset", 0)), length)
        return tensor_of(place, element.safetensors, shape)
    raw = bytearray(numpy_helper.to_array(tensor).tobytes())
    return torch.frombuffer(raw, dtype=element.torch_dtype).view(shape) if raw else torch.empty(shape)


def _pt2_weights(path: Path) -> ArtifactWeights:
    """A `.pt2` is a zip of uncompressed members, one a tensor, and one that says what they are."""
    with zipfile.ZipFile(path) as archive:
        listing = next((n for n in archive.namelist() if n.endswith("data/weights/model_weights_config.json")), None)
        if listing is None:
            raise UsageError(f"{path} does not say what its weights are: export it again")
        entries: dict[str, dict[str, Any]] = json.loads(archive.read(listing))["config"]
        members = {name: archive.getinfo(f"{Path(listing).parent}/{e['path_name']}") for name, e in entries.items()}
    shapes = {
        name: tuple(size["as_int"] for size in entry["tensor_meta"]["sizes"])
        for name, entry in entries.items()
        if name not in _TABLES
    }

    def read(name: str) -> torch.Tensor:
        return tensor_of(_member(path, members[name]), _kind(path, name, entries[name], members[name]), shapes[name])

    return ArtifactWeights(shapes, read)


def _kind(path: Path, name: str, entry: Mapping[str, Any], member: zipfile.ZipInfo) -> str:
    """The safetensors type of a tensor of a `.pt2` whose bytes lie in order."""
    from torch._export.serde.schema import ScalarType

    dtype = ScalarType(entry["tensor_meta"]["dtype"]).name
    kind = next((one.safetensors for one in ELEMENT_TYPES if one.precision and one.pt2 == dtype), None)
    plain = not entry["use_pickle"] and member.compress_type == zipfile.ZIP_STORED
    if kind is None or not plain:
        raise UsageError(f"{path} stores {name} ({dtype}) in a form that is not read here: export it again")
    return kind


def _member(path: Path, member: zipfile.ZipInfo) -> FileSlice:
    """Where the bytes of an uncompressed member lie: after its local header, which pads itself to align them."""
    with path.open("rb") as file:
        file.seek(member.header_offset + _ZIP_HEADER - 4)
        lengths = file.read(4)
    skipped = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    return FileSlice(path, member.header_offset + _ZIP_HEADER + skipped, member.file_size)


def _aoti_weights(path: Path) -> ArtifactWeights:
    """The constants of the compiled library, which PyTorch loads once more to hand them over."""
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        library = next((name for name in archive.namelist() if name.endswith(".so")), None)
        if library is None:
            return ArtifactWeights({})
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cuda = any(name.endswith(".cubin") for name in archive.namelist())
        runners = torch._C._aoti
        runner_class = runners.AOTIModelContainerRunnerCuda if cuda else runners.AOTIModelContainerRunnerCpu
        runner = runner_class(archive.extract(library, folder), 1)
    values = {name.removeprefix("decoder."): value for name, value in runner.extract_constants_map(False).items()}
    tensors = {name: value for name, value in values.items() if name not in _TABLES}

    def read(name: str, _: object = runner) -> torch.Tensor:
        return tensors[name].to("cpu")  # a view of the library's memory, which the runner keeps loaded

    return ArtifactWeights({name: tuple(value.shape) for name, value in tensors.items()}, read)
