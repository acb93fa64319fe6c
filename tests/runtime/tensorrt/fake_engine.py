"""An engine that computes with eager PyTorch behind TensorRT's interface, on whatever addresses it was given.

It knows nothing of the decoder's tensors but names, shapes and addresses, as TensorRT does: a name bound to the wrong
buffer, a cache that is not aliased or a shape that was not set gives wrong numbers or an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from blockexport.export.bundle.engine_entry import Profile
from blockexport.export.bundle.manifest import Manifest
from blockexport.models import io_names
from blockexport.models.block.decoder_model import DecoderModel


def at_address(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over memory that someone else owns."""
    count = 1
    for size in shape:
        count *= size
    size = count * torch.empty(0, dtype=dtype).element_size()
    raw = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(raw, dtype=dtype, count=count).view(*shape)


class FakeEngine:
    """What `TensorRtDecoder` asks of an ICudaEngine."""

    def __init__(self, manifest: Manifest, model: DecoderModel, profiles: Sequence[Profile]) -> None:
        self.manifest, self.model, self.profiles = manifest, model, profiles
        self.ports = [*manifest.inputs, *manifest.outputs]
        self.contexts: list[FakeContext] = []

    @property
    def num_io_tensors(self) -> int:
        return len(self.ports)

    def get_tensor_name(self, index: int) -> str:
        return self.ports[index].name

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return next(port.aliases for port in self.ports if port.name == name)

    def create_execution_context(self) -> FakeContext:
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]


class FakeContext:
    """What `TensorRtDecoder` asks of an IExecutionContext."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.profile: Profile | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.runs: list[tuple[int, ...]] = []

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = self.engine.profiles[index]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.profile is not None
        port = next(port for port in self.engine.manifest.inputs if port.name == name)
        spans = {
            io_names.BATCH_AXIS: self.profile.batch_size,
            io_names.SEQUENCE_AXIS: self.profile.sequence_length,
        }
        for size, declared in zip(shape, port.shape, strict=True):
            least, _, most = (declared,) * 3 if isinstance(declared, int) else spans[declared]
            if not least <= size <= most:
                return False
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert name in {port.name for port in self.engine.ports}
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        inputs = []
        for port in self.engine.manifest.inputs:
            dtype = getattr(torch, port.dtype)
            inputs.append(at_address(self.addresses[port.name], self.shapes[port.name], dtype))
        with torch.no_grad():
            outputs, present = self.engine.model(inputs[0], inputs[1], inputs[2:])
        for port, value in zip(self.engine.manifest.outputs, [outputs, *present], strict=True):
            at_address(self.addresses[port.name], value.shape, value.dtype).copy_(value)
        self.runs.append(tuple(inputs[1].shape))
        return True
