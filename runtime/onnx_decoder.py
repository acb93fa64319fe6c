"""A bundle's ONNX file in ONNX Runtime, with the cache updated in place.

Past and present of every layer are bound to one buffer, so a step copies nothing but its logits. The buffers are torch
tensors: `cache` gives them as they are.

Attention looks at every slot that is bound, so the buffers begin with few slots and double when a call needs more: a
step costs what its context does, and not what M does. Nothing in the graph depends on how many there are. What is
judged has all M of them from the start, as the file declares; the check `growth` judges the other.
"""

from __future__ import annotations

import re

import onnx
import torch

from blockexport.export.bundle.check_graph import REMEDY, declare_max_sequence_length, leave_slots_open, read_graph
from blockexport.export.bundle.file_check import check_artifact
from blockexport.export.bundle.manifest import NONPAD_FILE
from blockexport.models import io_names
from blockexport.models.block.cache import empty_cache
from blockexport.models.errors import ArtifactError, NotJudgedError
from blockexport.runtime.backends import ONNXRUNTIME, Opening
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.huge_pages import in_huge_pages
from blockexport.runtime.onnx_session import (
    bind,
    lacks_memory,
    open_cuda_session,
    open_session,
    ort,
    require_shapes,
    session_options,
    version,
)

FIRST_SLOTS = 128  # bound at first, or M where that is less

# Said of an output that is bound to a tensor of another size; a later node may fail first where it may take any.
_OTHER_SIZE = re.compile(r"invalid dimensions for output: (\S+) .*?index: (\d+) Got: (\d+) Expected: (\d+)", re.DOTALL)

# A product by quantised weights becomes one kernel, which rounds the activations to 8 bits block by block.
_FAST = ("session.qdq_matmulnbits_accuracy_level", "4")
# Each operator is run as it stands, and what is constant is computed when the file is loaded: the weights are then in
# memory in the declared type.
_EXACT = ("session.disable_quant_qdq", "1")
# The kernel does without the rounding, too, but widens the whole matrix again at every call: the same values for less
# memory, in ten times the processor time of a step.
_EXACT_IN_LITTLE = ("session.qdq_matmulnbits_accuracy_level", "1")


_WITHOUT_MASK = (1, 28)  # the first version whose CUDA provider takes it; on a processor 1.26 does


class OnnxDecoder(Decoder):
    """The decoder of a bundle on ONNX Runtime's CPU provider.

    Args:
        wanted: see `open_decoder`. With `low_memory` the weights are mapped instead of repacked: a fraction of the
            memory and of the start-up time, for steps that take about a fifth longer.
    """

    _bindings: dict[tuple[int, int], ort.IOBinding]

    def __init__(self, wanted: Opening) -> None:
        self.interface, self.device = wanted.interface, wanted.device
        folder, manifest = wanted.folder, wanted.manifest
        graph = read_graph(folder, manifest, wanted.graph)
        check_artifact(folder, manifest, wanted.graph, wanted.verify)
        first = wanted.first_slots or (self.max_sequence_length if wanted.exact else FIRST_SLOTS)
        self._first_slots = min(first, self.max_sequence_length)
        grows = self._first_slots < self.max_sequence_length
        self._session, self._records = _session(wanted, graph, grows=grows)
        self.reset()

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Decoder.cache`: all M slots."""
        self.make_room(self.max_sequence_length)
        return super().cache(layer)

    def held(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Decoder.held`: the slots that are bound."""
        return super().cache(layer)

    def _allocate(self, batch_size: int) -> None:
        self._past = empty_cache(self.config, batch_size, self._first_slots, self.dtype)
        self._bindings = {}

    def make_room(self, slots: int) -> None:
        """See `Decoder.make_room`."""
        held = self._past[0].shape[2]
        if slots <= held:
            return
        wanted = held
        while wanted < slots:
            wanted *= 2
        self._grow(min(wanted, self.max_sequence_length))
        self._bindings = {}

    def _grow(self, slots: int) -> None:
        more = slots - self._past[0].shape[2]
        for i, past_BKMH in enumerate(self._past):  # one by one, so that no more than one is there twice
            self._past[i] = torch.nn.functional.pad(past_BKMH, (0, 0, 0, more))

    def _binding(self) -> ort.IOBinding:
        """With the caches of all rows bound, or of those that are run alone; each made once."""
        rows = (self._past[0].data_ptr(), self.batch_size)
        if rows not in self._bindings:
            self._bindings[rows] = self._bind_caches()
        return self._bindings[rows]

    def _bind_caches(self) -> ort.IOBinding:
        binding = self._session.io_binding()
        layers = self.config.num_hidden_layers
        names = zip(io_names.past_names(layers), io_names.present_names(layers), self._past, strict=True)
        for past, present, buffer in names:
            bind(binding.bind_input, past, buffer, self.device)
            bind(binding.bind_output, present, buffer, self.device)
        return binding

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        self.make_room(int(position_ids_BS[:, 0].max()) + position_ids_BS.shape[1])
        given = inputs.contiguous()
        positions = position_ids_BS.contiguous()
        output = torch.empty(self.interface.output_shape(*position_ids_BS.shape), dtype=self.dtype)
        binding = self._binding()
        bind(binding.bind_input, self.interface.input_name, given)
        bind(binding.bind_input, io_names.POSITION_IDS, positions)
        bind(binding.bind_output, self.interface.output_name, output)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class
            # In the order of their first binding, which a binding keeps.
            names = (*io_names.present_names(self.config.num_hidden_layers), self.interface.output_name)
            wanted = dict(zip(names, (*self._past, output), strict=True))
            require_shapes(self._session, binding, wanted, position_ids_BS)
            raise failed_node(error) from error
        return output


def _session(wanted: Opening, graph: onnx.ModelProto, *, grows: bool) -> tuple[ort.InferenceSession, bool]:
    """The session, and whether it records steps as CUDA graphs."""
    manifest, slots = wanted.manifest, wanted.interface.max_sequence_length
    options = session_options(wanted.threads)
    if wanted.low_memory:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if manifest.quantisation is not None:
        exact = _EXACT_IN_LITTLE if wanted.low_memory else _EXACT
        options.add_session_config_entry(*(exact if wanted.exact else _FAST))
    path = wanted.folder / wanted.graph
    model: str | bytes = str(path)
    if slots != manifest.max_sequence_length:
        declare_max_sequence_length(graph, slots, manifest.rope_table_rows, manifest.config)
    if grows:
        leave_slots_open(graph)
    if slots != manifest.max_sequence_length or grows:
        model = graph.SerializeToString()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(wanted.folder))
    if wanted.device.on_gpu:
        _require_cuda_kernels(wanted)
        return open_cuda_session(model, options, path, f"{REMEDY}.", wanted.device)
    if wanted.exact or wanted.low_memory:
        return open_session(model, options, path, f"{REMEDY}."), False
    with in_huge_pages():
        return open_session(model, options, path, f"{REMEDY}."), False


def _require_cuda_kernels(wanted: Opening) -> None:
    quantisation = wanted.manifest.quantisation
    if quantisation is not None and quantisation.embedding is not None:
        raise NotJudgedError(
            f"ONNX Runtime {ort.__version__} has no CUDA kernel for the rows of an embedding in int8: export with "
            "--embedding float"
        )
    if wanted.graph == NONPAD_FILE and version() < _WITHOUT_MASK:
        raise NotJudgedError(
            f"ONNX Runtime {ort.__version__} does not run attention without a mask on {wanted.device}, which needs "
            f"{'.'.join(map(str, _WITHOUT_MASK))} or later: upgrade onnxruntime-gpu, or take --backend "
            f"{ONNXRUNTIME.name}, which runs {ONNXRUNTIME.file}"
        )


def failed_node(error: Exception) -> Exception:
    """What ONNX Runtime says about a node of the graph, as an ArtifactError; anything else, such as inputs that are not
    the graph's or a lack of memory, as it is."""
    said = str(error)
    if (cut := _OTHER_SIZE.search(said)) is not None:
        name, axis, bound, found = cut.groups()
        return ArtifactError(f"the output {name} has {found} entries along axis {axis} and should have {bound}")
    if "while running" not in said or lacks_memory(said):
        return error
    return ArtifactError(f"ONNX Runtime {ort.__version__} fails in the graph: {said.partition('while running ')[2]}")
