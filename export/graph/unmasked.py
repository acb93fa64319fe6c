"""The second form of attention: how many slots of each row count, and a triangle, in place of a mask.

Every query of a call sees the slots up to its own, which is what `is_causal` means where `nonpad_kv_seqlen` says how
long a row is: with that the row's start plus S, padding included, the two forms compute the same. ONNX Runtime's CUDA
provider takes its Flash kernel for this one alone. It runs it since 1.28, TensorRT not at all, and a window needs the
mask. https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError

_MASK, _NONPAD = 3, 6  # inputs of Attention


def check_unmasked(config: ModelConfig) -> None:
    """Whether a model has a layer that can do without a mask.

    Raises:
        UsageError: every layer has a window.
    """
    if all(config.window_of(layer) is not None for layer in range(config.num_hidden_layers)):
        raise UsageError(
            "every layer of this model has a sliding window, which only a mask can say: leave out --attention"
        )


def take_masks_out(model: ir.Model, config: ModelConfig) -> None:
    """Change every layer without a window of an exported decoder to that form, in place."""
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "Attention"]
    filled = _filled_slots(graph, next(iter(graph)))
    for layer, node in enumerate(attentions):
        if config.window_of(layer) is None:
            node.resize_inputs(_NONPAD + 1)
            node.replace_input_with(_MASK, None)
            node.replace_input_with(_NONPAD, filled)
            node.attributes["is_causal"] = ir.AttrInt64("is_causal", 1)
    RemoveUnusedNodesPass()(model)


def _filled_slots(graph: ir.Graph, first: ir.Node) -> ir.Value:
    """int64 [B]: each row's start, plus S. Where the logits of the last tokens alone come out, the position of a row's
    last column is no measure: padding repeats an earlier one."""
    position_ids = next(value for value in graph.inputs if value.name == io_names.POSITION_IDS)
    names = {name: _constant(graph, name, value) for name, value in (("0", 0), ("1", 1), ("last", -1))}
    made: list[ir.Node] = []

    def node(op_type: str, inputs: list[ir.Value], name: str, **attributes: int) -> ir.Value:
        one = ir.node(op_type, inputs, attributes=attributes, name=f"filled_slots.{name}/{op_type}")
        one.outputs[0].name = f"filled_slots.{name}"
        made.append(one)
        return one.outputs[0]

    start_B = node("Gather", [position_ids, names["0"]], "start", axis=1)
    length = node("Squeeze", [node("Shape", [position_ids], "shape", start=1, end=2)], "length")
    # A count on the device that attention runs on: the length itself is on the host, as all shapes are.
    steps_S = node("Range", [names["1"], node("Add", [length, names["1"]], "end"), names["1"]], "steps")
    filled_B = node("Add", [start_B, node("Gather", [steps_S, names["last"]], "added", axis=0)], "all")
    graph.insert_before(first, made)
    return filled_B


def _constant(graph: ir.Graph, name: str, value: int) -> ir.Value:
    full = f"filled_slots.constant_{name}"
    tensor = ir.tensor(value, dtype=ir.DataType.INT64, name=full)
    made = ir.Value(name=full, type=ir.TensorType(tensor.dtype), shape=ir.Shape(()), const_value=tensor)
    graph.initializers[full] = made
    return made
