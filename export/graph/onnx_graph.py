"""The ONNX model of a decoder: the traced parts stamped into one graph that points into the weight files.

Nothing inside the graph depends on M, the number of cache slots: only the declared shapes of the cache inputs and
outputs do, and `declare_max_sequence_length` can change those afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from blockexport.export.graph.graph_builder import OPSET, GraphBuilder
from blockexport.export.graph.trace import Parts, trace_parts
from blockexport.export.graph.translate import Stamp
from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.precision import Precision

TensorSource = Callable[[str], ir.TensorProtocol]
"""Gives the tensor behind a parameter's name, usually an ExternalTensor that points into a weights file."""


@dataclass(frozen=True)
class GraphOptions:
    """What is exported: in which type, with how many slots, and which ends."""

    precision: Precision
    max_sequence_length: int  # M
    headless: bool = False
    last_logits_only: bool = False


def build_model(config: ModelConfig, options: GraphOptions, tensor: TensorSource) -> ir.Model:
    """The ONNX model; `tensor` is asked for every parameter and for the RoPE tables `cos` and `sin`."""
    parts = trace_parts(config, options.precision, headless=options.headless, last_logits_only=options.last_logits_only)
    builder = GraphBuilder(_inputs(config, options))
    outputs = _stamp_all(config, options, parts, builder, tensor)
    graph = ir.Graph(
        builder.inputs,
        outputs,
        nodes=builder.nodes,
        initializers=list(builder.initializers.values()),
        opset_imports={"": OPSET},
        name="decoder",
    )
    return ir.Model(graph, ir_version=11, producer_name="blockexport")


def _stamp_all(
    config: ModelConfig, options: GraphOptions, parts: Parts, builder: GraphBuilder, tensor: TensorSource
) -> list[ir.Value]:
    """Entry, L blocks and exit, wired by the residual stream."""

    def parameter(name: str) -> ir.Value:
        # A tied head reads the embedding itself; which parameter that is, the trace already says.
        return builder.initializer(tensor(name), name)

    inputs, position_ids, *past = builder.inputs
    stream, write_indices, *masks = Stamp(builder, parts.enter, [inputs, position_ids, past[0]], parameter, "").run()
    windows = sorted({config.window_of(i) for i in range(config.num_hidden_layers)}, key=lambda w: w or 0)
    present: list[ir.Value] = []
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}"
        mask = masks[windows.index(config.window_of(i))]
        step = [position_ids, write_indices, mask, parameter("cos"), parameter("sin")]
        block = Stamp(
            builder,
            parts.blocks[config.has_rope(i)],
            [stream, *step, past[2 * i], past[2 * i + 1]],
            lambda name, prefix=prefix: parameter(f"{prefix}.{name}"),  # type: ignore[misc]
            prefix,
        )
        stream, key, value = block.run()
        present += [key, value]
    (result,) = Stamp(builder, parts.leave, [stream, position_ids], parameter, "").run()
    return _named_outputs(config, options, result, present)


def _inputs(config: ModelConfig, options: GraphOptions) -> list[ir.Value]:
    axes: list[str | int] = [io_names.BATCH_AXIS, io_names.SEQUENCE_AXIS]
    dtype = ir.DataType(options.precision.element.onnx)
    first = (
        _value(io_names.INPUTS_EMBEDS, dtype, [*axes, config.hidden_size])
        if options.headless
        else _value(io_names.INPUT_IDS, ir.DataType.INT64, axes)
    )
    past = [
        _value(name, dtype, _cache_shape(config, options)) for name in io_names.past_names(config.num_hidden_layers)
    ]
    return [first, _value(io_names.POSITION_IDS, ir.DataType.INT64, axes), *past]


def _named_outputs(
    config: ModelConfig, options: GraphOptions, result: ir.Value, present: list[ir.Value]
) -> list[ir.Value]:
    dtype = ir.DataType(options.precision.element.onnx)
    length: str | int = 1 if options.last_logits_only else io_names.SEQUENCE_AXIS
    width = config.hidden_size if options.headless else config.vocab_size
    result.name = io_names.HIDDEN_STATES if options.headless else io_names.LOGITS
    result.type, result.shape = ir.TensorType(dtype), ir.Shape([io_names.BATCH_AXIS, length, width])
    for value, name in zip(present, io_names.present_names(config.num_hidden_layers), strict=True):
        value.name = name
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(_cache_shape(config, options))
    return [result, *present]


def _cache_shape(config: ModelConfig, options: GraphOptions) -> list[str | int]:
    # One batch symbol for all caches: with a symbol each, TensorRT emits every layer's kernels anew.
    return [io_names.BATCH_AXIS, config.num_key_value_heads, options.max_sequence_length, config.head_dim]


def _value(name: str, dtype: ir.DataType, shape: list[str | int]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
