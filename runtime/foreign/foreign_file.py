"""Another tool's ONNX file before anything runs it: is it one, are its weights there, is it of this checkpoint?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx
from onnx import helper

from blockexport.models import io_names
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.runtime.foreign.foreign_convention import ATTENTION, Convention, sizes_of
from blockexport.runtime.foreign.names import USE_CACHE_BRANCH


@dataclass(frozen=True)
class ForeignFile:
    """Another tool's file.

    Attributes:
        path: where it is.
        model: its graph.
        convention: how it is called.
        edited: the model is not as it is in the file, so that the model is what runs.
        watched: outputs beside logits and caches, by the key that they are told under.
    """

    path: Path
    model: onnx.ModelProto
    convention: Convention
    edited: bool = False
    watched: Mapping[str, str] = field(default_factory=dict)

    def branches(self) -> list[ForeignFile]:
        """The graph of the steps and that of the prompt, of a file that holds both; of another, the file alone."""
        condition = self.convention.names.inputs.get(USE_CACHE_BRANCH)
        if condition is None:
            return [self]
        return [replace(self, model=_taken(self.model, condition, name), edited=True) for name in _BRANCHES]


_BRANCHES = ("then_branch", "else_branch")  # with a cache, and without


def _taken(model: onnx.ModelProto, condition: str, branch: str) -> onnx.ModelProto:
    """A copy of a model with one branch in the place of each If that asks for an input."""
    taken = onnx.ModelProto()
    taken.CopyFrom(model)
    del taken.graph.node[:]
    for node in model.graph.node:
        if node.op_type != "If" or node.input[0] != condition:
            taken.graph.node.append(node)
            continue
        body = next(item.g for item in node.attribute if item.name == branch)
        taken.graph.initializer.extend(body.initializer)
        taken.graph.node.extend(_inlined(body, node.output))
    return taken


def _inlined(body: onnx.GraphProto, outputs: Sequence[str]) -> Iterator[onnx.NodeProto]:
    """The nodes of a branch, with the names that its outputs have outside."""
    made = {name for node in body.node for name in node.output}
    pairs = [(value.name, name) for value, name in zip(body.output, outputs, strict=True)]
    names = {inner: name for inner, name in pairs if inner in made}
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        yield copy
    for inner, name in pairs:
        if names.get(inner) != name:  # from outside the branch, or one value for two outputs
            yield helper.make_node("Identity", [names.get(inner, inner)], [name])


def check_architecture(model: onnx.ModelProto, convention: Convention, config: ModelConfig, path: Path) -> None:
    """Compare what the file's shapes say with the checkpoint's dimensions.

    Raises:
        UsageError: they are of different models; the first dimension that differs is named.
    """
    found: list[tuple[str, int | str | None, int]] = [
        ("num_hidden_layers", convention.layers, config.num_hidden_layers),
        ("num_key_value_heads", convention.cache_shape[1], config.num_key_value_heads),
        ("head_dim", convention.cache_shape[3], config.head_dim),
    ]
    for node in model.graph.node:
        if node.op_type == ATTENTION:
            heads = {attribute.name: attribute.i for attribute in node.attribute}
            found.append(("num_attention_heads", heads.get("num_heads"), config.num_attention_heads))
            found.append(("num_key_value_heads", heads.get("kv_num_heads"), config.num_key_value_heads))
    name = convention.names.outputs[io_names.LOGITS]
    shape = sizes_of(next(value for value in model.graph.output if value.name == name))
    found.append(("vocab_size", shape[-1] if shape else None, config.vocab_size))
    for name, theirs, ours in found:
        if isinstance(theirs, int) and theirs != ours:
            raise UsageError(
                f"{path} is another architecture than the checkpoint: {name} is {theirs} in the file and {ours} in the "
                "checkpoint. Name the checkpoint that it was exported from"
            )
    _check_widths(model, config, path)


def _check_widths(model: onnx.ModelProto, config: ModelConfig, path: Path) -> None:
    """Some weight must have each of the widths that inputs and outputs do not show."""
    matrices = [tuple(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) == 2]
    constants = [
        a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")
    ]
    dims = {dim for shape in matrices + [tuple(t.dims) for t in constants] for dim in shape}
    wanted = {"hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size}
    for name, size in wanted.items():
        if size not in dims:
            raise UsageError(
                f"{path} is another architecture than the checkpoint: {name} is {size} in the checkpoint, and no "
                "weight of the file is that wide. Name the checkpoint that it was exported from"
            )
