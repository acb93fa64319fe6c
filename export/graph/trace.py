"""Trace the parts of a decoder with `torch.export`, on fake weights: entry, one block, exit.

All blocks of a decoder have the same graph (what differs, the mask of a windowed layer, is an argument), or one of two
where some layers have no RoPE. So the time of a trace depends neither on depth nor on the size of the weights.

Batch, sequence length and M are traced as three stand-in numbers that no other size of the model equals: wherever one
appears in the graph, the size it stands for is meant. Symbols would say the same and take five times as long, nearly
all of it in proofs about products of sizes; a test holds the result against a symbolic trace of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.block.layer_inputs import Step
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.interface import Interface


class Sizes(NamedTuple):
    """B, S and M of example inputs."""

    batch: int
    length: int
    slots: int


_TAKES_SIZES = (torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten.arange.default)
_WHOLE_AXIS = 2**63 - 1  # the end of a slice that has none

# torch.export freezes a dimension whose example is 0 or 1, and equal ones could be taken for the same.
SMALL = Sizes(3, 5, 17)


@dataclass(frozen=True)
class Fragment:
    """A traced part: its aten graph, and the parameter behind each of its placeholders.

    `inputs` are the placeholders to be fed, flattened, in call order; `parameters` maps the others to names relative to
    the part; `sizes` maps each size that is not fixed, as it is written in the graph, to the (input, axis) that has it.
    """

    graph: torch.fx.Graph
    inputs: tuple[str, ...]
    parameters: dict[str, str]
    sizes: dict[str, tuple[str, int]]


@dataclass(frozen=True)
class Parts:
    """What `trace_parts` gives: `enter` and `leave` with parameter names of the whole model, and blocks with their own,
    by whether they have RoPE."""

    enter: Fragment
    blocks: dict[bool, Fragment]
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
def fake_model(interface: Interface) -> Iterator[DecoderModel]:
    """A decoder without memory behind its weights, and the fake mode it lives in."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = DecoderModel(interface.config, SMALL.slots, interface.ends)
        # A fake module cannot be converted with `.to`, and the default type is the whole process's: other threads
        # may be reading weights meanwhile. Parameters of the right type are assigned instead.
        typed = {name: torch.empty(value.shape, dtype=interface.dtype) for name, value in model.named_parameters()}
        model.load_state_dict(typed, assign=True)
        yield model.eval().requires_grad_(False)


def example_inputs(interface: Interface, sizes: Sizes = SMALL) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Inputs, positions and caches of the given sizes (fake ones when called inside a fake mode)."""
    batch, length, slots = sizes
    config, positions = interface.config, torch.zeros(batch, length, dtype=torch.int64)
    embeds = torch.zeros(batch, length, config.hidden_size, dtype=interface.dtype)
    inputs = torch.zeros_like(positions) if interface.ends.from_ids else embeds
    return inputs, positions, empty_cache(config, batch, slots, interface.dtype)


def trace_whole(module: nn.Module, interface: Interface) -> ExportedProgram:
    """A decoder, or what calls one as it is called, in one piece; B, S and M stay symbolic."""
    example = example_inputs(interface)
    batch, length, slots = Dim("batch_size"), Dim("sequence_length"), Dim("max_sequence_length", min=2)
    sized = {0: batch, 1: length}
    sizes = (sized, sized, [{0: batch, 2: slots} for _ in example[2]])
    return torch.export.export(module, example, dynamic_shapes=sizes, strict=False)


def trace_parts(interface: Interface) -> Parts:
    """Trace entry, block and exit of a decoder. Needs no weights and almost no memory."""
    config, sizes = interface.config, _stand_ins(interface.config)
    shallow = replace(interface, config=_one_layer_of_each_kind(config))
    with fake_model(shallow) as model:
        inputs, positions, past = example_inputs(shallow, sizes)
        stream = torch.zeros(sizes.batch * sizes.length, config.hidden_size, dtype=interface.dtype)
        mask = torch.zeros(sizes.batch, 1, sizes.length, sizes.slots, dtype=torch.bool)
        step = Step(positions, positions[:, 0], mask, model.cos, model.sin)
        kinds = {model.config.has_rope(i): block for i, block in enumerate(model.model.layers)}
        return Parts(
            enter=_trace(_Enter(model), (inputs, positions, past[0]), sizes),
            blocks={turns: _trace(block, (stream, step, past[0], past[1]), sizes) for turns, block in kinds.items()},
            leave=_trace(_Leave(model), (stream, positions), sizes),
        )


def _stand_ins(config: ModelConfig) -> Sizes:
    """Three primes that divide no size of the model, so that neither they nor their products are mistaken for one."""
    taken = {value for value in vars(config).values() if isinstance(value, int)}
    taken |= {heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)}
    odd = count(1009, 2)
    primes = (n for n in odd if all(n % k for k in range(3, math.isqrt(n) + 1, 2)))
    batch, length, slots = islice((n for n in primes if all(size % n or not size for size in taken)), 3)
    return Sizes(batch, length, slots)


def _one_layer_of_each_kind(config: ModelConfig) -> ModelConfig:
    """The smallest config that has the same masks and kinds of blocks as `config`."""
    layers = range(config.num_hidden_layers)
    kinds = sorted({(config.window_of(i), config.has_rope(i)): i for i in reversed(layers)}.values())
    return replace(
        config,
        num_hidden_layers=len(kinds),
        layer_types=tuple(config.layer_types[i] for i in kinds) if config.layer_types else (),
        layers_without_rope=tuple(new for new, i in enumerate(kinds) if not config.has_rope(i)),
    )


def _trace(module: nn.Module, args: tuple[object, ...], sizes: Sizes) -> Fragment:
    fragment = fragment_of(torch.export.export(module, args, strict=False), sizes)
    _check_sizes(fragment, sizes)
    return fragment


def fragment_of(program: ExportedProgram, stand_ins: tuple[int, ...] = ()) -> Fragment:
    """The graph of an exported program with its placeholders sorted into inputs and parameters.

    Args:
        program: with symbolic sizes, or with `stand_ins`.
        stand_ins: numbers that stand for sizes that are not fixed.
    """
    signature = program.graph_signature
    parameters = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    inputs = [str(name) for name in signature.user_inputs]
    named = {name: target.removeprefix("decoder.") for name, target in parameters.items()}
    return Fragment(program.graph, tuple(inputs), named, _sizes(program.graph, inputs, stand_ins))


def _sizes(graph: torch.fx.Graph, inputs: list[str], stand_ins: tuple[int, ...]) -> dict[str, tuple[str, int]]:
    """Where each size is read: from position_ids if it can be, for those are shared by all layers."""
    found: dict[str, tuple[str, int]] = {}
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder" and node.name in inputs}
    for name in sorted(placeholders, key=lambda name: "position_ids" not in name):
        for axis, size in enumerate(placeholders[name].meta["val"].shape):
            if isinstance(size, torch.SymInt) or size in stand_ins:
                found.setdefault(str(size), (name, axis))
    return found


def _check_sizes(fragment: Fragment, sizes: Sizes) -> None:
    """A stand-in, or a product of some, may only be an element of a shape: anywhere else its meaning would be lost."""
    for node in fragment.graph.nodes:
        for number in pytree.tree_leaves((node.args, node.kwargs)):
            stands = isinstance(number, int) and abs(number) < _WHOLE_AXIS and any(number % n == 0 for n in sizes)
            if stands and number and not (node.target in _TAKES_SIZES and str(number) in fragment.sizes):
                raise AssertionError(f"{node.target} has {number}, which stands for a size, among its arguments")
