"""Foreign files of each convention and family: right ones, and ones that are wrong in a known way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import onnx
from onnx import numpy_helper

from tests.foreign_files import LAYERS, ForeignExports, changed, merge_branches, prompt_alone, with_names
from tests.transformers_models import WINDOW

DYNAMIC_CACHE = {
    "past_key_values.{i}.key": "past_key_values_key_cache_{i}",
    "past_key_values.{i}.value": "past_key_values_value_cache_{i}",
    "present.{i}.key": "cat_{i}3",
    "present.{i}.value": "cat_{i}4",
    "logits": "linear_14",
}
UNKNOWN = {
    "input_ids": "tokens",
    "attention_mask": "valid",
    "position_ids": "where",
    "past_key_values.{i}.key": "layer{i}_in_a",
    "past_key_values.{i}.value": "layer{i}_in_b",
    "present.{i}.key": "layer{i}_out_a",
    "present.{i}.value": "layer{i}_out_b",
    "logits": "scores",
}
MAPS = [part for role, name in UNKNOWN.items() for part in ("--map", f"{role}={name}")]
Files = list[object]
"""Arguments of `compare` that name the files."""


def _growing(made: ForeignExports, family: str, folder: Path) -> Files:
    return ["--onnx", made.growing(family)]


def _genai(made: ForeignExports, family: str, folder: Path) -> Files:
    """onnxruntime-genai 0.18 leaves Mistral's window out, as its config names no kinds of layers: it is put in."""
    if family == "mistral-window" and made.windowed:
        return ["--onnx", changed(made.genai(family), folder / "with-window" / "model.onnx", _with_window)]
    return ["--onnx", made.genai(family)]


def _with_window(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            (size,) = (item for item in node.attribute if item.name == "local_window_size")
            assert size.i == -1
            size.i = WINDOW


def _pair(made: ForeignExports, family: str, folder: Path) -> Files:
    pair = made.pair(family)
    return ["--onnx", pair / "prefill.onnx", "--onnx", pair / "decode.onnx"]


def _static(made: ForeignExports, family: str, folder: Path) -> Files:
    return ["--onnx", made.pair(family, static=True) / "decode.onnx"]


def _old_pair(made: ForeignExports, family: str, folder: Path) -> Files:
    prompt = changed(made.growing(family), folder / "decoder_model.onnx", prompt_alone)
    return ["--onnx", prompt, "--onnx", made.growing(family)]


def _merged(made: ForeignExports, family: str, folder: Path) -> Files:
    return ["--onnx", changed(made.growing(family), folder / "merged.onnx", merge_branches)]


def _named(names: Mapping[str, str], made: ForeignExports, family: str, folder: Path) -> Path:
    return changed(made.growing(family), folder / "named.onnx", lambda model: with_names(model, names))


CONVENTIONS: Mapping[str, Callable[[ForeignExports, str, Path], Files]] = {
    "optimum": _growing,
    "genai": _genai,
    "transformers.exporters": _pair,
    "StaticCache": _static,
    "optimum, two graphs": _old_pair,
    "optimum, merged": _merged,
    "DynamicCache": lambda made, family, folder: ["--onnx", _named(DYNAMIC_CACHE, made, family, folder)],
    "--map": lambda made, family, folder: ["--onnx", _named(UNKNOWN, made, family, folder), *MAPS],
}
"""Each gives the arguments for the right file of a family."""


def with_config(source: Path, folder: Path, **changes: object) -> Path:
    """The same checkpoint under another config."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        where = config["rope_parameters"] if key == "rope_theta" else config
        assert where.get(key) != value
        where[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def one_weight(path: Path, folder: Path) -> Path:
    """A copy of a file, with one value of its second layer's down projection three times as large."""

    def change(model: onnx.ModelProto) -> None:
        shapes = {(76, 42), (42, 76)}
        wide = [tensor for tensor in model.graph.initializer if tuple(tensor.dims) in shapes]
        down = [tensor for tensor in wide if any(_is_down(graph, tensor.name) for graph in _graphs(model))][1]
        values = numpy_helper.to_array(down).copy()
        values[3, 1] = values[3, 1] * 3 + 1
        down.CopyFrom(numpy_helper.from_array(values, down.name))

    return changed(path, folder / path.parent.name / path.name, change)


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph, and the branches of an If in it."""
    return [model.graph, *(item.g for node in model.graph.node if node.op_type == "If" for item in node.attribute)]


def _is_down(graph: onnx.GraphProto, name: str) -> bool:
    """Whether a matrix takes what the activation makes."""
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if name in node.input and node.op_type in ("MatMul", "Gemm"):
            made_by = makers.get(node.input[0])
            return made_by is not None and made_by.op_type == "Mul" and _is_activation(made_by, makers)
    return False


def _is_activation(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> bool:
    return all(value in makers for value in node.input) and any(
        makers[value].op_type in ("Mul", "Sigmoid", "QuickGelu") for value in node.input
    )


def _exchanged(one: int, two: int, path: Path, folder: Path) -> Path:
    """A copy of a file that gives two of its caches (keys and values of layer 0, then of 1) under each other's name."""

    def change(model: onnx.ModelProto) -> None:
        caches = [value for value in model.graph.output if len(value.type.tensor_type.shape.dim) == 4]
        names = sorted(value.name for value in caches)
        assert len(names) == 2 * LAYERS
        other = {names[one]: names[two], names[two]: names[one]}
        for node in model.graph.node:
            node.output[:] = [other.get(name, name) for name in node.output]
            node.input[:] = [other.get(name, name) for name in node.input]

    return changed(path, folder / path.parent.name / path.name, change)


WRONG: Mapping[str, tuple[str, str]] = {
    "theta": ("rope", "wrong theta"),
    "eps": ("norm", "wrong epsilon"),
    "one weight": ("down_proj", "down_proj.weight differs in 1 of"),
    "swapped caches": ("cache_key", "caches are exchanged: layer 1"),
    "swapped layers": ("cache_key", "caches are exchanged: layer 0 reads the keys of layer 1"),
    "window dropped": ("attention", "the sliding window is ignored"),
}
"""What is wrong, where it shows first, and what names it."""


def impossible(convention: str, family: str, wrong: str) -> str:
    """Why a cell of the table cannot be filled; empty where it can. `wrong` is also `right`."""
    if convention == "StaticCache":
        if family in ("mistral-window", "qwen2-mixed"):
            return "transformers gives a static cache under a window a ring of slots, which no convention here has"
        if wrong == "window dropped":
            return "the mask comes from outside, and the window with it"
    if convention == "DynamicCache" and wrong.startswith("swapped"):
        return "its outputs have no names: each is the cache whose entries it holds, so an exchange changes no call"
    return ""


CHANGES: Mapping[str, Callable[[Path, Path], Path]] = {
    "one weight": one_weight,
    "swapped caches": partial(_exchanged, 2, 3),
    "swapped layers": partial(_exchanged, 0, 2),
}
"""What is done to a file."""

WITH_WINDOW: Mapping[str, Mapping[str, object]] = {
    "llama": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 9},
    "qwen3": {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"] * 2},
}
"""What makes the config of a family without a window one with it, for the same weights."""


def wrong_pair(wrong: str, convention: str, family: str, made: ForeignExports, folder: Path) -> tuple[Files, Path]:
    """Files and a checkpoint that differ in one way."""
    files, source = CONVENTIONS[convention](made, family, folder), made.source(family)
    if wrong == "theta":
        return files, with_config(source, folder / "other", rope_theta=500_000.0)
    if wrong == "eps":
        return files, with_config(source, folder / "other", rms_norm_eps=1e-2)
    if wrong == "window dropped":
        if family in WITH_WINDOW:
            return files, with_config(source, folder / "other", **WITH_WINDOW[family])
        return CONVENTIONS[convention](made.windowless, family, folder), source
    paths = [Path(str(entry)) for entry in files if str(entry).endswith(".onnx")]
    steps = next(path for path in paths if "prefill" not in path.name and "decoder_model" not in path.name)
    other = {
        path: CHANGES[wrong](path, folder / f"{at}") if path == steps or wrong == "one weight" else path
        for at, path in enumerate(paths)
    }
    return [other.get(Path(str(entry)), entry) if str(entry).endswith(".onnx") else entry for entry in files], source
