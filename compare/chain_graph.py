"""The graphs of a model's stages as one graph, to be looked into: it is not what is run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.external_data import set_base_dir

from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models import io_names
from blockexport.models.block.rope import TABLES

_LAYER = re.compile(r"^(model\.layers\.|past_key_values\.|present\.)(\d+)(?=\.)")


def joined_graph(folders: Sequence[Path], starts: Sequence[int]) -> tuple[onnx.ModelProto, Path]:
    """One graph from token ids to logits whose layers are counted through, and the folder that its weights lie below.

    Args:
        folders: of the stages, in their order.
        starts: the number of each one's first layer in the whole model.
    """
    real = [Path(os.path.realpath(folder)) for folder in folders]
    base = Path(os.path.commonpath(real))
    models = [onnx.load(folder / ONNX_FILE, load_external_data=False) for folder in real]
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    for field in ("node", "input", "output", "initializer", "value_info"):
        whole.graph.ClearField(field)
    there: dict[str, onnx.TensorProto] = {}
    streams: list[str] = []
    for number, (folder, model, start) in enumerate(zip(real, models, starts, strict=True)):
        names = _names(model.graph, number, start, there, {value for node in whole.graph.node for value in node.output})
        if streams:
            names[io_names.HIDDEN_STATES_IN] = streams[-1]
        _add(whole.graph, model.graph, names, there, os.path.relpath(folder, base))
        streams.append(names.get(io_names.HIDDEN_STATES, ""))
    outputs = sorted(whole.graph.output, key=lambda value: value.name != io_names.LOGITS)
    whole.graph.ClearField("output")
    whole.graph.output.extend(value for value in outputs if value.name not in streams)
    _leave_out_views(whole.graph, streams[:-1])
    return whole, base


def opened_graph(joined: onnx.ModelProto, folder: Path) -> ir.Model:
    """The same with its weights where they lie, below `folder`."""
    model = ir.serde.deserialize_model(joined)
    set_base_dir(model.graph, folder)
    return model


def _names(
    stage: onnx.GraphProto, number: int, start: int, there: Mapping[str, onnx.TensorProto], taken: set[str]
) -> dict[str, str]:
    """What each value of a stage is called in the whole."""
    names = {value.name: _counted_through(value.name, start) for value in stage.input}
    for tensor in stage.initializer:
        wanted = _counted_through(tensor.name, start)
        same = wanted not in there or wanted in chain(*TABLES) or _content(tensor) == _content(there[wanted])
        names[tensor.name] = wanted if same else f"stage{number}.{wanted}"
    for value in chain.from_iterable(node.output for node in stage.node):
        wanted = _counted_through(value, start)
        names[value] = f"stage{number}.{wanted}" if wanted in taken else wanted
    return names


def _counted_through(name: str, start: int) -> str:
    return _LAYER.sub(lambda found: f"{found[1]}{int(found[2]) + start}", name)


def _content(tensor: onnx.TensorProto) -> bytes:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = ""
    return bytes(copy.SerializeToString(deterministic=True))


def _add(
    whole: onnx.GraphProto,
    stage: onnx.GraphProto,
    names: Mapping[str, str],
    there: dict[str, onnx.TensorProto],
    folder: str,
) -> None:
    inputs = {value.name for value in whole.input}
    for value in stage.input:
        if value.name != io_names.HIDDEN_STATES_IN and names[value.name] not in inputs:
            whole.input.add().CopyFrom(value)
            whole.input[-1].name = names[value.name]
    for tensor in stage.initializer:
        name = names[tensor.name]
        if name not in there:
            there[name] = whole.initializer.add()
            there[name].CopyFrom(tensor)
            there[name].name = name
            for entry in there[name].external_data:
                if entry.key == "location":
                    entry.value = f"{folder}/{entry.value}"
    for node in stage.node:
        copy = whole.node.add()
        copy.CopyFrom(node)
        for values in (copy.input, copy.output):
            values[:] = [names.get(value, value) for value in values]
        copy.name = f"{copy.output[0]}/{copy.op_type}"
    for value in stage.output:
        whole.output.add().CopyFrom(value)
        whole.output[-1].name = names[value.name]


def _leave_out_views(graph: onnx.GraphProto, streams: Sequence[str]) -> None:
    """Have no views between stages: [T, D] becomes [B, S, D] there, and [T, D] again."""
    makers = {value: node for node in graph.node for value in node.output}
    straight: dict[str, str] = {}
    for stream in streams:
        readers = [node for node in graph.node if stream in node.input]
        if makers[stream].op_type == "Reshape" and all(node.op_type == "Reshape" for node in readers):
            straight |= {node.output[0]: makers[stream].input[0] for node in readers}
    needed, kept = {value.name for value in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        node.input[:] = [straight.get(value, value) for value in node.input]
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    graph.ClearField("node")
    graph.node.extend(reversed(kept))
