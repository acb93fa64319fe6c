"""How the values of an If, a Loop or a Scan go into its bodies and come out of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

Ends = tuple[list[str], list[str]]
"""The inputs and the outputs of a body."""


def joins(node: onnx.NodeProto, inputs: list[str], outputs: list[str], bodies: Sequence[Ends]) -> list[onnx.NodeProto]:
    """Nodes without attributes that say what each value is made from: a body's inputs, and the outputs of its node.

    Args:
        node: the one with the bodies.
        inputs: the names of its inputs.
        outputs: the names of its outputs.
        bodies: the inputs and outputs of each body: an If has two, the others have one.
    """
    entries, exits = bodies[0]
    if node.op_type == "Loop":
        # Its body begins with the step's number and whether to go on, and ends with the latter before its results.
        pairs = _carried(inputs[2:], outputs, entries[2:], exits[1:], len(entries) - 2)
    elif node.op_type == "Scan":
        scanned = next((int(item.i) for item in node.attribute if item.name == "num_scan_inputs"), 0)
        pairs = _carried(inputs, outputs, entries, exits, len(entries) - scanned)
    else:
        pairs = [(inputs, entry) for entries, _ in bodies for entry in entries]
        for index, name in enumerate(outputs):
            pairs.append(([*inputs[:1], *(name for _, exits in bodies for name in exits[index : index + 1])], name))
    return [
        helper.make_node(node.op_type, [name for name in sources if name], [target], node.name, domain=node.domain)
        for sources, target in pairs
    ]


def _carried(
    inputs: list[str], outputs: list[str], entries: list[str], exits: list[str], states: int
) -> list[tuple[list[str], str]]:
    """The first `states` values go round: each step's come from the step before, and the last step's come out."""
    pairs = []
    for index, entry in enumerate(entries):
        before = exits[index : index + 1] if index < states else []
        pairs.append(([*inputs[index : index + 1], *before], entry))
    for index, name in enumerate(outputs):
        untouched = inputs[index : index + 1] if index < states else []
        pairs.append(([*exits[index : index + 1], *untouched], name))
    return pairs
