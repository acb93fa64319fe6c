"""Refuse, before TensorRT sees it, an ONNX file that TensorRT is known to misread, to ignore in part, or to crash on.

Pure ONNX: no TensorRT is needed. Each rule says what TensorRT does with such a graph, as seen with TensorRT for RTX
1.7.1 (`SILENT`: it builds an engine of another meaning without a word; `LOUD`: it stops, later and in its own terms;
`CRASH`: the process dies). Tests build every silent graph to show that the rule is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from blockexport.models.errors import UsageError

_K, _V, _MASK, _PAST_KEY, _NONPAD = 1, 2, 3, 4, 6  # inputs of Attention
_MOVERS = ("Concat", "Slice", "Identity", "Cast", "ScatterElements", "ScatterND")


class Fate(StrEnum):
    """What TensorRT does with a graph that breaks a rule."""

    SILENT = "builds without a word"
    LOUD = "stops with an error"
    CRASH = "crashes"


@dataclass(frozen=True)
class Finding:
    """One broken rule at one node."""

    rule: str
    fate: Fate
    node: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.node}: {self.problem}. TensorRT {self.fate.value}. {self.remedy}"


class GraphView:
    """A graph with the look-ups that rules need."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.inputs = {value.name: value for value in model.graph.input}
        self.outputs = {value.name for value in model.graph.output}
        self.producer = {name: node for node in model.graph.node for name in node.output if name}
        self.initializer_types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}

    def nodes(self, op_type: str) -> Iterator[onnx.NodeProto]:
        """Nodes of an operator in graph order, whatever their domain: TensorRT's parser does not look at it."""
        return (node for node in self.graph.node if node.op_type == op_type)

    def is_cached(self, name: str) -> bool:
        """True for keys or values that come from a static cache: what a cache write made, or an input of that form."""
        made_by = self.producer.get(name)
        if made_by is None:
            return name in self.inputs and _length_is_constant(self.inputs[name], -2)
        return bool(made_by.op_type == "TensorScatter")

    def copied_from(self, name: str) -> str | None:
        """The graph input that `name` is a copy of, in part or with something added; None where it is computed."""
        made_by = self.producer.get(name)
        if made_by is None or made_by.op_type not in _MOVERS:
            return None
        for source in made_by.input:
            if source in self.inputs:
                return str(source)
            if (found := self.copied_from(source)) is not None:
                return found
        return None


Rule = Callable[[GraphView], Iterator[Finding]]


def lint_file(path: Path) -> list[Finding]:
    """Findings on an ONNX file; its external data is not read.

    Raises:
        UsageError: there is no such file, or it is not ONNX.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (DecodeError, ValueError) as error:
        raise UsageError(f"{path} is not an ONNX file ({error}): give a bundle's model.onnx, or any other") from error
    if not model.graph.node:
        raise UsageError(f"{path} holds no graph: give the model.onnx of a bundle, or any .onnx")
    return lint(model)


def lint(model: onnx.ModelProto) -> list[Finding]:
    """Every finding, rule by rule; an empty list means that none of the known traps is in the graph."""
    view = GraphView(model)
    return [finding for rule in RULES for finding in rule(view)]


def require_clean(path: Path) -> None:
    """The preflight of a build.

    Raises:
        UsageError: with every finding.
    """
    findings = lint_file(path)
    if findings:
        lines = "\n".join(f"  [{finding.rule}] {finding}" for finding in findings)
        raise UsageError(f"{path} is not built, because TensorRT would not run it as written:\n{lines}")


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _input(node: onnx.NodeProto, index: int) -> str:
    return node.input[index] if len(node.input) > index else ""


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or 'of ' + next(iter(node.output), '?')}"


def _foreign_domain(view: GraphView) -> Iterator[Finding]:
    for node in view.graph.node:
        if node.domain not in ("", "ai.onnx"):
            yield Finding(
                "foreign-domain", Fate.SILENT, _label(node),
                f"the operator is {node.domain}'s, and TensorRT's parser goes by the bare name, so a namesake with "
                "other inputs or another meaning is taken for the standard operator",
                "Export with standard ONNX operators only",
            )  # fmt: skip


def _kv_lengths(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("Attention"):
        if _input(node, _NONPAD):
            yield Finding(
                "nonpad-kv-seqlen", Fate.SILENT, _label(node),
                "nonpad_kv_seqlen limits how many cached keys count, and TensorRT's parser drops it: "
                "unwritten cache slots would be attended to",
                "Give the limit as a boolean mask made from position_ids",
            )  # fmt: skip


def _window(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("Attention"):
        for name in ("left_window_size", "right_window_size"):
            size = _attribute(node, name, -1)
            if size != -1:
                yield Finding(
                    "attention-window", Fate.SILENT, _label(node),
                    f"{name}={size} is dropped by TensorRT's parser: every query would see the whole cache",
                    "Put the sliding window into the boolean mask",
                )  # fmt: skip


def _causal_over_cache(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("Attention"):
        if _attribute(node, "is_causal", 0) and view.is_cached(_input(node, _K)):
            yield Finding(
                "causal-cache", Fate.LOUD if _input(node, _MASK) else Fate.SILENT, _label(node),
                "is_causal over a static cache anchors the triangle at slot 0, so a decode step would see the first "
                "token only",
                "Leave is_causal out and give a boolean mask made from position_ids",
            )  # fmt: skip


def _scale(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("Attention"):
        scale = _attribute(node, "scale", None)
        if view.is_cached(_input(node, _K)) and scale != 1.0:
            said = "no scale, which means 1/sqrt(head_dim)," if scale is None else f"scale={scale:g}"
            yield Finding(
                "attention-scale", Fate.SILENT, _label(node),
                f"{said} makes TensorRT's parser multiply the query and the whole cached key tensor by its square root "
                "in the graph's type: at every step all slots are rounded anew, and read and written once more",
                "Scale the query before attention and set scale=1.0",
            )  # fmt: skip


def _attention_form(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("Attention"):
        problems = []
        if _input(node, _PAST_KEY) or _input(node, _PAST_KEY + 1):
            problems.append(("past_key and past_value are given", "Write the cache with TensorScatter"))
        if sum(bool(name) for name in node.output) > 1:
            problems.append(("it has more than one output", "Write the cache with TensorScatter"))
        if _attribute(node, "softcap", 0.0) != 0.0:
            problems.append(("softcap is set", "This model cannot be built in TensorRT with the Attention operator"))
        if _attribute(node, "softmax_precision", None) is not None:
            problems.append(("softmax_precision is set", "Leave it out: softmax precision is the backend's own"))
        for problem, remedy in problems:
            yield Finding("attention-form", Fate.LOUD, _label(node), f"{problem}, which TensorRT does not take", remedy)


def _reads_past(view: GraphView) -> Iterator[Finding]:
    written = {_input(node, 0) for node in view.nodes("TensorScatter")}
    for node in view.nodes("Attention"):
        stale = [name for name in (_input(node, _K), _input(node, _V)) if name in written]
        if stale:
            yield Finding(
                "stale-cache", Fate.CRASH, _label(node),
                f"it reads {stale[0]} as it was before this step's write, though the write happens in place",
                "Attend to the output of TensorScatter",
            )  # fmt: skip


def _cache_writes(view: GraphView) -> Iterator[Finding]:
    writers: dict[str, int] = {}
    for node in view.nodes("TensorScatter"):
        past, present = _input(node, 0), node.output[0]
        writers[past] = writers.get(past, 0) + 1
        if _attribute(node, "mode", b"linear") == b"circular":
            yield Finding(
                "circular-cache", Fate.LOUD, _label(node), "mode=circular is not supported",
                "Use mode=linear and a cache as long as the longest sequence",
            )  # fmt: skip
        if not _input(node, 2):
            yield Finding(
                "no-write-indices", Fate.SILENT, _label(node),
                "without write_indices every call writes at slot 0, over the tokens before it",
                "Give the first position of each row as write_indices",
            )  # fmt: skip
        if past in view.inputs and not _length_is_constant(view.inputs[past], _attribute(node, "axis", -2)):
            yield Finding(
                "cache-length", Fate.LOUD, _label(node), f"the number of slots of {past} is not a constant",
                "Declare the cache's length as a number on the graph's inputs and outputs",
            )  # fmt: skip
        if past not in view.inputs:
            yield Finding(
                "cache-not-input", Fate.LOUD, _label(node), f"it writes into {past}, which is not a graph input",
                "Pass the cache in as a graph input and write into that",
            )  # fmt: skip
        if present not in view.outputs:
            yield Finding(
                "cache-not-output", Fate.LOUD, _label(node), f"its output {present} is not a graph output",
                "Make the written cache a graph output as it is, without an Identity or Cast behind it",
            )  # fmt: skip
    for past, count in writers.items():
        if count > 1 and past in view.inputs:
            yield Finding(
                "several-writes", Fate.LOUD, past, f"{count} TensorScatter nodes write into this one cache",
                "Write once: concatenate the updates first",
            )  # fmt: skip


def _length_is_constant(value: onnx.ValueInfoProto, axis: int) -> bool:
    dims = value.type.tensor_type.shape.dim
    return bool(dims) and dims[axis].HasField("dim_value")


def _cache_is_copied(view: GraphView) -> Iterator[Finding]:
    """A cache that is written by anything but a cache write: nothing in place, a copy of the cache at every step."""
    candidates = {name for name in view.outputs if name.startswith("present")}
    candidates |= {_input(node, index) for node in view.nodes("Attention") for index in (_K, _V)}
    for name in sorted(candidates):
        source = view.copied_from(name)
        if source is not None:
            yield Finding(
                "cache-copied", Fate.SILENT, _label(view.producer[name]),
                f"{name} is a copy of {source} with changes, not an update in place: the whole cache is copied at "
                "every step",
                "Write the cache with TensorScatter (opset 24)",
            )  # fmt: skip


def _half_statistics(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("RMSNormalization"):
        stash = _attribute(node, "stash_type", 1)
        if stash != onnx.TensorProto.FLOAT:
            name = onnx.TensorProto.DataType.Name(stash)
            yield Finding(
                "norm-statistics", Fate.SILENT, _label(node),
                f"stash_type={name} takes the mean of squares in {name}, which overflows in half precision",
                "Set stash_type=1 (float32)",
            )  # fmt: skip


def _half_rope(view: GraphView) -> Iterator[Finding]:
    for node in view.nodes("RotaryEmbedding"):
        table = view.initializer_types.get(_input(node, 1), onnx.TensorProto.FLOAT)
        if table != onnx.TensorProto.FLOAT:
            name = onnx.TensorProto.DataType.Name(table)
            yield Finding(
                "rope-tables", Fate.SILENT, _label(node),
                f"its tables are {name}, whose steps are as wide as the angles of late positions",
                "Cast the heads to float32, turn them with float32 tables, and cast back",
            )  # fmt: skip


RULES: tuple[Rule, ...] = (
    _foreign_domain,
    _kv_lengths,
    _window,
    _causal_over_cache,
    _scale,
    _attention_form,
    _reads_past,
    _cache_writes,
    _cache_is_copied,
    _half_statistics,
    _half_rope,
)
"""Every rule, in the order of the report."""
