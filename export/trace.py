"""Trace the three parts of a decoder with `torch.export`, on fake weights: entry, one block, exit.

All blocks of a decoder have the same graph (what differs, the mask of a windowed layer, is an argument), so the time
of a trace depends neither on depth nor on the size of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram

from blockexport.models.cache import empty_cache
from blockexport.models.config import LayerType, ModelConfig
from blockexport.models.decoder_model import DecoderModel
from blockexport.models.precision import Precision
from blockexport.models.step import Step

# Example sizes. torch.export freezes a dimension whose example is 0 or 1, and equal ones could be taken for the same.
_BATCH, _LENGTH, _SLOTS = 3, 5, 17


@dataclass(frozen=True)
class Fragment:
    """A traced part: its aten graph, and the parameter behind each of its placeholders.

    `inputs` are the placeholders to be fed, flattened, in call order; `parameters` maps the others to names relative to
    the part; `symbols` maps each symbolic size to the (input, axis) that it is read from.
    """

    graph: torch.fx.Graph
    inputs: tuple[str, ...]
    parameters: dict[str, str]
    symbols: dict[str, tuple[str, int]]


@dataclass(frozen=True)
class Parts:
    """What `trace_parts` gives: `enter` and `leave` with parameter names of the whole model, `block` with its own."""

    enter: Fragment
    block: Fragment
    leave: Fragment


class _Enter(nn.Module):
    def __init__(self, decoder: DecoderModel) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, inputs: torch.Tensor, position_ids: torch.Tensor, past_key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        return self.decoder.enter(inputs, position_ids, past_key)


class _Leave(nn.Module):
    def __init__(self, decoder: DecoderModel) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.decoder.leave(x, position_ids)


@contextmanager
def fake_model(
    config: ModelConfig, precision: Precision, *, headless: bool, last_logits_only: bool
) -> Iterator[DecoderModel]:
    """A decoder without memory behind its weights, and the fake mode it lives in."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = DecoderModel(config, _SLOTS, headless=headless, last_logits_only=last_logits_only)
        # A fake module cannot be converted with `.to`, and the default type is the whole process's: other threads
        # may be reading weights meanwhile. Parameters of the right type are assigned instead.
        dtype = precision.torch_dtype
        typed = {name: torch.empty(value.shape, dtype=dtype) for name, value in model.named_parameters()}
        model.load_state_dict(typed, assign=True)
        yield model.eval().requires_grad_(False)


def example_inputs(
    config: ModelConfig, precision: Precision, headless: bool
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Inputs, positions and caches of the example sizes (fake ones when called inside a fake mode)."""
    ids = torch.zeros(_BATCH, _LENGTH, dtype=torch.int64)
    embeds = torch.zeros(_BATCH, _LENGTH, config.hidden_size, dtype=precision.torch_dtype)
    positions = torch.zeros(_BATCH, _LENGTH, dtype=torch.int64)
    return embeds if headless else ids, positions, empty_cache(config, _BATCH, _SLOTS, precision.torch_dtype)


def trace_parts(config: ModelConfig, precision: Precision, *, headless: bool, last_logits_only: bool) -> Parts:
    """Trace entry, block and exit of a decoder of `config` in `precision`. Needs no weights and almost no memory."""
    with fake_model(
        _one_layer_per_window(config), precision, headless=headless, last_logits_only=last_logits_only
    ) as model:
        inputs, positions, past = example_inputs(model.config, precision, headless)
        stream = torch.zeros(_BATCH * _LENGTH, config.hidden_size, dtype=precision.torch_dtype)
        mask = torch.zeros(_BATCH, 1, _LENGTH, _SLOTS, dtype=torch.bool)
        step = Step(positions, positions[:, 0], mask, model.cos, model.sin)
        row, sized = {0: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}
        cache = {0: Dim.AUTO, 2: Dim.AUTO}
        step_sizes = Step._make([sized, row, {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}, row, row])
        return Parts(
            enter=_trace(_Enter(model), (inputs, positions, past[0]), (sized, sized, cache)),
            block=_trace(model.model.layers[0], (stream, step, past[0], past[1]), (row, step_sizes, cache, cache)),
            leave=_trace(_Leave(model), (stream, positions), (row, sized)),
        )


def _one_layer_per_window(config: ModelConfig) -> ModelConfig:
    """The smallest config that needs the same masks as `config`."""
    windowed: LayerType
    kinds: list[LayerType] = []
    for windowed in ("full_attention", "sliding_attention"):
        if windowed in (config.layer_types or ("full_attention",)):
            kinds.append(windowed)
    return replace(config, num_hidden_layers=len(kinds), layer_types=tuple(kinds))


def _trace(module: nn.Module, args: tuple[object, ...], sizes: tuple[object, ...]) -> Fragment:
    program = torch.export.export(module, args, dynamic_shapes=sizes, strict=False)
    return fragment_of(program)


def fragment_of(program: ExportedProgram) -> Fragment:
    """The graph of an exported program with its placeholders sorted into inputs and parameters."""
    signature = program.graph_signature
    parameters = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    inputs = [str(name) for name in signature.user_inputs]
    named = {name: target.removeprefix("decoder.") for name, target in parameters.items()}
    return Fragment(program.graph, tuple(inputs), named, _symbols(program.graph, inputs))


def _symbols(graph: torch.fx.Graph, inputs: list[str]) -> dict[str, tuple[str, int]]:
    """Where each symbolic size is read: from position_ids if it can be, for those are shared by all layers."""
    found: dict[str, tuple[str, int]] = {}
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder" and node.name in inputs}
    for name in sorted(placeholders, key=lambda name: "position_ids" not in name):
        for axis, size in enumerate(placeholders[name].meta["val"].shape):
            if isinstance(size, torch.SymInt):
                found.setdefault(str(size), (name, axis))
    return found
