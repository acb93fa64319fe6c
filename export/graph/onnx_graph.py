"""The ONNX model of a decoder: the traced parts stamped into one graph that points into the weight files.

Nothing inside the graph depends on M, the number of cache slots: only the declared shapes of the cache inputs and
outputs do, and `declare_max_sequence_length` can change those afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from blockexport.export.graph.graph_builder import OPSET, GraphBuilder
from blockexport.export.graph.graph_parameters import GraphParameters, TensorSource
from blockexport.export.graph.stamp import Stamp
from blockexport.export.graph.trace import Parts, trace_parts
from blockexport.export.graph.translate import translate
from blockexport.models.block.rope import table_names
from blockexport.models.element_types import BY_NAME
from blockexport.models.interface import Interface, Port
from blockexport.models.quantisation import Quantisation
from blockexport.models.side_by_side import SideBySide


def build_model(
    interface: Interface,
    tensor: TensorSource,
    quantisation: Quantisation | None = None,
    beside: Mapping[str, SideBySide] | None = None,
    orders: Mapping[str, str] | None = None,
) -> ir.Model:
    """The ONNX model.

    Args:
        interface: of the decoder.
        tensor: asked for every parameter, codes and scales instead where it is quantised, and for the RoPE tables
            `cos` and `sin`.
        quantisation: which matrices are quantised.
        beside: see `GraphParameters`.
        orders: see `GraphParameters`.
    """
    if quantisation is not None:
        interface = replace(interface, config=quantisation.stored_config(interface.config))
    builder = GraphBuilder([_value(port) for port in interface.inputs])
    parameters = GraphParameters(builder, tensor, quantisation, beside, orders)
    outputs = _stamp_all(interface, trace_parts(interface), builder, parameters)
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
    interface: Interface, parts: Parts, builder: GraphBuilder, parameters: GraphParameters
) -> list[ir.Value]:
    """Entry, L blocks and exit, wired by the residual stream."""
    config = interface.config
    inputs, position_ids, *past = builder.inputs
    enter = Stamp(builder, parts.enter, [inputs, position_ids, past[0]], parameters, "")
    stream, write_indices, *masks = translate(enter)
    windows = sorted({config.window_of(i) for i in range(config.num_hidden_layers)}, key=lambda w: w or 0)
    present: list[ir.Value] = []
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}"
        mask = masks[windows.index(config.window_of(i))]
        # A block without RoPE reads no tables.
        tables = [parameters.value(n) for n in table_names(config, i)] if config.has_rope(i) else [position_ids] * 2
        step = [position_ids, write_indices, mask, *tables]
        block = Stamp(
            builder,
            parts.blocks[config.has_rope(i)],
            [stream, *step, past[2 * i], past[2 * i + 1]],
            parameters.under(f"{prefix}."),
            prefix,
        )
        stream, key, value = translate(block)
        present += [key, value]
    # A tied head reads the embedding itself; which parameter that is, the trace already says.
    (result,) = translate(Stamp(builder, parts.leave, [stream, position_ids], parameters, ""))
    return _named_outputs(interface, [result, *present])


def _named_outputs(interface: Interface, values: list[ir.Value]) -> list[ir.Value]:
    for value, port in zip(values, interface.outputs, strict=True):
        value.name = port.name
        value.type, value.shape = ir.TensorType(_type(port)), ir.Shape(port.shape)
    return values


def _value(port: Port) -> ir.Value:
    return ir.Value(name=port.name, type=ir.TensorType(_type(port)), shape=ir.Shape(port.shape))


def _type(port: Port) -> ir.DataType:
    return ir.DataType(BY_NAME[port.dtype].onnx)
