"""ONNX files whose outputs, when they run, are of another shape than they declare: slices put after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

Cut = Callable[[onnx.ModelProto], None]


def cut_output(model: onnx.ModelProto, name: str, axis: int, start: int, end: int) -> None:
    """Leave of an output its part from `start` to `end` along an axis; what it declares stays."""
    graph, whole = model.graph, f"{name}.whole"
    for node in graph.node:
        node.output[:] = [whole if value == name else value for value in node.output]
        node.input[:] = [whole if value == name else value for value in node.input]
    for part, value in (("start", start), ("end", end), ("axis", axis)):
        graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), f"{name}.{part}"))
    parts = [f"{name}.{part}" for part in ("start", "end", "axis")]
    graph.node.append(helper.make_node("Slice", [whole, *parts], [name], f"cut {name}"))


def logits_cut(axis: int, start: int, end: int) -> Cut:
    """Cuts the logits."""
    return lambda model: cut_output(model, "logits", axis, start, end)


def cache_cut(axis: int, size: int, name: str = "present.1.key") -> Cut:
    """Cuts a cache after its first `size` entries along an axis."""
    return lambda model: cut_output(model, name, axis, 0, size)


def flat_logits(model: onnx.ModelProto) -> None:
    """Logits in one row."""
    for node in model.graph.node:
        node.output[:] = ["logits.whole" if value == "logits" else value for value in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), "logits.flat"))
    model.graph.node.append(helper.make_node("Reshape", ["logits.whole", "logits.flat"], ["logits"]))


LAST = 2**40
CUTS: Mapping[str, tuple[Cut, str]] = {
    "one row": (logits_cut(0, 0, 1), "logits"),
    "no row": (logits_cut(0, 0, 0), "logits"),
    "last position": (logits_cut(1, -1, LAST), "logits"),
    "no position": (logits_cut(1, 0, 0), "logits"),
    "one column": (logits_cut(2, 0, 1), "logits"),
    "all columns but one": (logits_cut(2, 0, -1), "logits"),
    "no column": (logits_cut(2, 0, 0), "logits"),
    "flat": (flat_logits, "logits"),
    "a cache of eight slots": (cache_cut(2, 8), "present.1.key"),
    "a cache of one head": (cache_cut(1, 1, "present.0.value"), "present.0.value"),
    "a cache of one row": (cache_cut(0, 1), "present.1.key"),
}
"""What is cut, and the output that has another shape then."""


def write_cut(source: Path, target: Path, cut: Cut) -> Path:
    """A copy of a file beside `source`'s weights with a cut in it."""
    model = onnx.load(source, load_external_data=False)
    cut(model)
    onnx.save(model, target)
    return target
