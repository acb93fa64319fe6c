"""A bundle's TensorRT engine behind the Decoder interface, on PyTorch's CUDA tensors.

Past and present of a layer are one buffer: the engine updates the cache in place. Each optimisation profile has an
execution context of its own, so that going from prefill to decode switches nothing, and decode steps are replayed as a
CUDA graph. TensorRT silently drops writes past the last slot; `Decoder.forward` refuses them before they get here.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from blockexport.export.bundle.engine_entry import EngineEntry, Profile
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest
from blockexport.export.bundle.trt_library import TrtLibrary, load_library
from blockexport.models import io_names
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.native_output import captured_stderr
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.tensorrt.trt_engine_file import fitting_engines, targets_of, whole_engines


@dataclass
class _Step:
    """The buffers of one step shape, and its recorded graph: None until recorded, False where it cannot be."""

    inputs: torch.Tensor
    position_ids_BS: torch.Tensor
    output: torch.Tensor
    graph: torch.cuda.CUDAGraph | bool | None = None


class TensorRtDecoder(Decoder):
    """An engine with its cache.

    Args:
        manifest: of the bundle that holds the engine.
        engine: a deserialised `ICudaEngine`.
        profiles: the engine's optimisation profiles, in its order.
        device: where the engine runs.
        cuda_graph: record decode steps and replay them.
    """

    def __init__(
        self,
        manifest: Manifest,
        engine: Any,
        profiles: Sequence[Profile],
        device: torch.device,
        *,
        cuda_graph: bool = True,
    ) -> None:
        self.interface = manifest.interface
        self.profiles = tuple(profiles)
        self._device = device
        self._cuda_graph = cuda_graph and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        _check_ports(engine, manifest)
        self._engine = engine
        self._contexts = [self._context(index) for index in range(len(profiles))]
        self.reset()

    @classmethod
    def open(cls, folder: Path, manifest: Manifest, backend: str, *, cuda_graph: bool = True) -> TensorRtDecoder:
        """The decoder of the bundle's engine that fits this machine.

        Raises:
            UsageError: no engine fits, or its file is not what the manifest says.
            NotJudgedError: the backend or a GPU is missing.
        """
        has_gpu = torch.cuda.is_available()
        capability = ".".join(map(str, torch.cuda.get_device_capability())) if has_gpu else None
        fitting = fitting_engines(folder, manifest, backend, capability)
        library = load_library(backend)
        whole = whole_engines(folder, manifest, fitting, library.version)
        if not has_gpu:
            raise _no_gpu(dict(whole))
        path, entry = next(whole)
        engine = _deserialise(library, path, entry.compute_capabilities)
        if entry.options.get("strip_weights"):
            _refit(library, engine, folder)
        device = torch.device("cuda", torch.cuda.current_device())
        return cls(manifest, engine, entry.profiles, device, cuda_graph=cuda_graph)

    def _context(self, index: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise NotJudgedError("TensorRT has no memory for an execution context: rebuild with smaller profiles")
        with self._on_stream():
            context.set_optimization_profile_async(index, self._handle())
        if self._stream is not None:
            self._stream.synchronize()
        return context

    def _allocate(self, batch_size: int) -> None:
        most = max(profile.batch_size[2] for profile in self.profiles)
        if batch_size > most:
            raise UsageError(
                f"{batch_size} rows were asked of an engine built for at most {most}: "
                f"build it again with --max-batch-size {batch_size}"
            )
        super()._allocate(batch_size)
        self._past = [tensor.to(self._device) for tensor in self._past]
        self._steps: dict[tuple[int, int, int], _Step] = {}  # recorded graphs hold the old buffers' addresses

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        length = position_ids_BS.shape[1]
        most = max(profile.sequence_length[2] for profile in self.profiles)
        pieces = [slice(start, min(start + most, length)) for start in range(0, length, most)]
        if len(pieces) == 1:
            return self._run_piece(inputs, position_ids_BS)
        # A piece is written from its first position on, so one that begins in a row's padding counts on there.
        counted_BS = position_ids_BS[:, :1] + torch.arange(length)[None, :]
        last_B = position_ids_BS.amax(1) - position_ids_BS[:, 0]
        outputs = []
        for piece in pieces:
            begun_B1 = (piece.start <= last_B)[:, None]
            positions = torch.where(begun_B1, position_ids_BS[:, piece], counted_BS[:, piece])
            outputs.append(self._run_piece(inputs[:, piece], positions))
        if not self.one_a_row:
            return torch.cat(outputs, dim=1)
        return torch.cat(outputs, dim=1)[torch.arange(len(last_B)), last_B // most][:, None]

    def _run_piece(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        batch_size, length = position_ids_BS.shape
        # The last fitting profile is the narrowest: decode for single tokens, prefill for everything else.
        index = max(i for i, profile in enumerate(self.profiles) if profile.takes(batch_size, length))
        step = self._step(batch_size, length)
        with self._on_stream():
            step.inputs.copy_(inputs)
            step.position_ids_BS.copy_(position_ids_BS)
            if isinstance(step.graph, torch.cuda.CUDAGraph):
                step.graph.replay()
            else:
                self._bind(self._contexts[index], step)
                self._enqueue(self._contexts[index])
            result = step.output.to("cpu", copy=True)  # waits for the stream
        if self._cuda_graph and length == 1 and step.graph is None:
            # The first step warmed the kernels up; recording runs nothing.
            step.graph = self._record(self._contexts[index])
        if step.graph is not None:
            self._steps[self._past[0].data_ptr(), batch_size, length] = step
        return result

    def _step(self, batch_size: int, length: int) -> _Step:
        made = self._steps.get(
            (self._past[0].data_ptr(), batch_size, length)
        )  # some rows alone have a cache of their own
        if made is not None:
            return made
        first = (self.config.hidden_size,) if self.headless else ()
        output = self.interface.output_shape(batch_size, length)
        return _Step(
            inputs=torch.empty(
                batch_size, length, *first, dtype=self.dtype if self.headless else torch.int64, device=self._device
            ),
            position_ids_BS=torch.empty(batch_size, length, dtype=torch.int64, device=self._device),
            output=torch.empty(output, dtype=self.dtype, device=self._device),
        )

    def _bind(self, context: Any, step: _Step) -> None:
        """Tell the context shapes and addresses; it holds no references, so the buffers are ours to keep alive."""
        layers = self.config.num_hidden_layers
        inputs = {self.interface.input_name: step.inputs, io_names.POSITION_IDS: step.position_ids_BS}
        inputs |= dict(zip(io_names.past_names(layers), self._past, strict=True))
        outputs = {
            self.interface.output_name: step.output,
            **dict(zip(io_names.present_names(layers), self._past, strict=True)),
        }
        for name, tensor in inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"TensorRT refuses shape {list(tensor.shape)} of {name}")
        for name, tensor in (inputs | outputs).items():
            if not context.set_tensor_address(name, tensor.data_ptr()):
                raise RuntimeError(f"TensorRT refuses the buffer of {name}")

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._handle()):
            raise RuntimeError("TensorRT did not run the step: see its messages above")

    def _record(self, context: Any) -> torch.cuda.CUDAGraph | bool:
        """The step just bound, as a CUDA graph; False where the engine's kernels cannot be recorded."""
        capturable = getattr(context, "is_stream_capturable", None)  # TensorRT for RTX alone can tell
        if capturable is not None and not capturable(self._handle()):
            return False
        graph = torch.cuda.CUDAGraph()
        try:
            # TensorRT for RTX compiles on threads of its own, whose calls must not end the recording.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._enqueue(context)
        except RuntimeError:
            return False
        return graph

    def _handle(self) -> int:
        return 0 if self._stream is None else self._stream.cuda_stream

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Our stream waits for what the caller has enqueued, and the caller's stream for ours."""
        if self._stream is None:
            yield
            return
        outer = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)


def _no_gpu(engines: dict[Path, EngineEntry]) -> NotJudgedError:
    several = len(engines) > 1
    return NotJudgedError(
        f"{', '.join(map(str, engines))} {'are' if several else 'is'} whole, but there is no GPU here that PyTorch can "
        f"use to run {'one' if several else 'it'}: run this on a machine with an NVIDIA GPU of compute capability "
        f"{' or '.join(targets_of(engines.values()))} and a CUDA build of PyTorch, or use --backend onnxruntime"
    )


def _deserialise(library: TrtLibrary, path: Path, capabilities: Sequence[str]) -> Any:
    with captured_stderr(), path.open("rb") as file:
        runtime = library.trt.Runtime(library.log)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = runtime.deserialize_cuda_engine(content)
    if engine is None:
        raise UsageError(
            f"{library.name} {library.version} does not load {path}: {library.log.drain() or 'it gives no reason'}. "
            f"It was built for compute capability {', '.join(capabilities)}; build it again on or for this GPU"
        )
    return engine


def _refit(library: TrtLibrary, engine: Any, folder: Path) -> None:
    """Give an engine that was built without weights those of the bundle."""
    refitter = library.trt.Refitter(engine, library.log)
    parser = library.trt.OnnxParserRefitter(refitter, library.log)
    if not (parser.refit_from_file(str(folder / ONNX_FILE)) and refitter.refit_cuda_engine()):
        raise UsageError(
            f"{library.name} {library.version} does not take the weights of {folder}: {library.log.drain()}. "
            "Build the engine again, or without --strip-weights"
        )


def _check_ports(engine: Any, manifest: Manifest) -> None:
    """Names and in-place updates of a loaded engine against the manifest; what is loaded decides, not the file name."""
    found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    expected = {port.name for port in (*manifest.inputs, *manifest.outputs)}
    if found != expected:
        raise UsageError(
            f"the engine has inputs and outputs that the manifest does not list, or lacks some: "
            f"{', '.join(sorted(found ^ expected))}. Build it again"
        )
    for port in manifest.outputs:
        if port.aliases is not None and engine.get_aliased_input_tensor(port.name) != port.aliases:
            raise UsageError(f"the engine does not update {port.aliases} in place: build it again")


def open_bundle(wanted: Opening) -> TensorRtDecoder:
    """The decoder of a bundle's engine.

    Raises:
        UsageError: another number of cache slots than the engine was built with.
    """
    slots, built = wanted.max_sequence_length, wanted.manifest.max_sequence_length
    if slots not in (None, built):
        beyond = slots > wanted.manifest.config.max_position_embeddings
        raise UsageError(
            f"an engine's cache has the {built} slots it was built with, not {slots}: export and build again with "
            f"--max-sequence-length {slots}{' --beyond-trained-range' if beyond else ''}"
        )
    return TensorRtDecoder.open(wanted.folder, wanted.manifest, wanted.backend)
