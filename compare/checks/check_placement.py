"""Where a graph runs that was to run on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from blockexport.compare.core.check import Check, Kind, Outcome
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.figures import Figures
from blockexport.models.wording import plural

if TYPE_CHECKING:
    import onnx_ir as ir


_SHOWN = 5
_REMEDY = "a newer onnxruntime-gpu may have kernels for them"


@dataclass(frozen=True)
class PlacementFigures(Figures):
    """The attention kernels of each kind of call, the number of nodes on the GPU, and the labels of all others."""

    kernels: dict[str, list[str]]
    on_gpu: int
    elsewhere: list[str]


def _on_processor(context: CheckContext) -> str | None:
    on_gpu = context.decoder.decoder.device.on_gpu
    return None if on_gpu and context.graph is not None else "no ONNX graph runs on a GPU here"


@partial(
    Check,
    "placement",
    Kind.PLACEMENT,
    inapplicable=_on_processor,
    unlocated="nothing is computed wrongly by that: it is about where, and its message names the nodes",
)
def placement(context: CheckContext) -> Outcome:
    """On the processor are at most the nodes that compute with shapes; and which kernel attention takes."""
    assert context.graph is not None
    placed = context.decoder.decoder.placement()
    if placed is None:
        return Outcome("", 0, doubts=["this ONNX Runtime does not tell where its nodes run: take 1.27 or later"])
    harmless = nodes_of_shapes(context.graph())
    labels = [f"{op_type} ({name})" for op_type, name in placed.elsewhere]
    computing = [label for label, (_, name) in zip(labels, placed.elsewhere, strict=True) if name not in harmless]
    took = [f"attention in {what}: {' and '.join(names) or 'not told'}" for what, names in placed.kernels.items()]
    nodes = f"{placed.on_gpu} of {plural(placed.on_gpu + len(labels), 'node')} on the GPU"
    others = f", the others compute with shapes: {', '.join(labels)}" if labels else ""
    more = f" and {len(computing) - _SHOWN} more" if len(computing) > _SHOWN else ""
    computes = f"on the processor, and computing more than shapes: {', '.join(computing[:_SHOWN])}{more}; {_REMEDY}"
    figures = PlacementFigures(placed.kernels, placed.on_gpu, labels)
    return Outcome(
        f"{'; '.join(took)}; {nodes}{others}", placed.on_gpu, [computes] if computing else [], figures=figures
    )


def nodes_of_shapes(graph: Iterable[ir.Node]) -> set[str]:
    """The names of the nodes that compute with lengths of axes and constants alone."""
    found: set[str] = set()
    lengths: set[ir.Value] = set()
    for node in graph:  # sorted: what a node reads comes before it
        varying = [value for value in node.inputs if value is not None and value.const_value is None]
        if node.op_type == "Shape" or (varying and lengths.issuperset(varying)):
            found.add(str(node.name))
            lengths.update(node.outputs)
    return found
