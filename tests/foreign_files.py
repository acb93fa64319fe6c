"""ONNX decoders the way other tools export them, of small models made by transformers.

onnxruntime-genai's builder is run as it is. optimum-onnx wants an older transformers than the other tests, so its
convention is exported here from a transformers model with its growing cache; `BLOCKEXPORT_OPTIMUM`, the path of an
`optimum-cli` in an environment of its own, lets a longer test use the tool itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import DynamicCache

from tests.transformers_models import make_model, save_model

LAYERS, HEADS, WIDTH = 2, 3, 16  # of every model of transformers_models


def write_source(folder: Path, family: str = "llama", *, tied: bool = False) -> Path:
    """A checkpoint with a tokenizer, which the builder insists on."""
    save_model(make_model(family, tied=tied), folder)
    # A token for each character: with one for everything no position could be told from another.
    vocabulary = {chr(i) if 32 < i < 127 else f"t{i}": i for i in range(131)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def with_theta(source: Path, folder: Path, theta: float) -> Path:
    """The same checkpoint with another `rope_theta` in its config."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] != theta
    config["rope_parameters"]["rope_theta"] = theta
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def build_with_genai(source: Path, folder: Path) -> Path:
    """onnxruntime-genai's own export, fp32 for the CPU."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder]
    command += ["-p", "fp32", "-e", "cpu", "-c", folder.parent / "cache"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, cwd=folder.parent)
    return folder / "model.onnx"


class _Growing(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        cache = DynamicCache([(past[2 * i], past[2 * i + 1]) for i in range(len(past) // 2)])
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
        )
        layers: list[Any] = cache.layers
        return outputs.logits, [tensor for layer in layers for tensor in (layer.keys, layer.values)]


def export_growing(path: Path, family: str = "llama", *, tied: bool = False) -> Path:
    """A transformers model with optimum's inputs and outputs."""
    model = _Growing(make_model(family, tied=tied)).eval()
    rows, length, past = 2, 3, 5
    ids_BS = torch.zeros(rows, length, dtype=torch.int64)
    mask_BT = torch.ones(rows, past + length, dtype=torch.int64)
    positions_BS = torch.arange(past, past + length).repeat(rows, 1)
    caches = [torch.zeros(rows, HEADS, past, WIDTH) for _ in range(2 * LAYERS)]
    names = [f"{{}}.{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
    free = torch.export.Dim.DYNAMIC
    torch.onnx.export(
        model,
        (ids_BS, mask_BT, positions_BS, caches),
        path,
        dynamo=True,
        verbose=False,
        external_data=False,
        dynamic_shapes=[{0: free, 1: free}] * 3 + [[{0: free, 2: free}] * (2 * LAYERS)],
        input_names=["input_ids", "attention_mask", "position_ids", *(n.format("past_key_values") for n in names)],
        output_names=["logits", *(n.format("present") for n in names)],
    )
    return path


def changed(path: Path, target: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    """A copy of an ONNX file, and of what it keeps outside, with `change(model)` applied."""
    model = onnx.load(path)
    change(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, target)
    return target


def take_int32(model: onnx.ModelProto) -> None:
    """Integer inputs of 32 bits, as exports for browsers have them."""
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.INT64:
            _rename(model, value.name, value.name + "_wide")
            model.graph.node.insert(
                0, helper.make_node("Cast", [value.name], [value.name + "_wide"], to=TensorProto.INT64)
            )
            value.type.tensor_type.elem_type = TensorProto.INT32


def count_positions_inside(model: onnx.ModelProto) -> None:
    """No `position_ids`: the graph counts columns from the length of its cache on, padding included."""
    _rename(model, "position_ids", "counted")
    inputs = [value for value in model.graph.input if value.name != "position_ids"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    constants = [("two", [2]), ("one", [1]), ("three", [3]), ("zero_axis", [0]), ("two_axis", [2])]
    for name, values in constants:
        model.graph.initializer.append(helper.make_tensor(f"count.{name}", TensorProto.INT64, [1], values))
    model.graph.initializer.append(helper.make_tensor("count.step", TensorProto.INT64, [], [1]))
    nodes = [
        helper.make_node("Shape", ["past_key_values.0.key"], ["count.past"], start=2, end=3),
        helper.make_node("Shape", ["input_ids"], ["count.new"], start=1, end=2),
        helper.make_node("Add", ["count.past", "count.new"], ["count.end"]),
        helper.make_node("Squeeze", ["count.past"], ["count.from"]),
        helper.make_node("Squeeze", ["count.end"], ["count.to"]),
        helper.make_node("Range", ["count.from", "count.to", "count.step"], ["count.range"]),
        helper.make_node("Shape", ["input_ids"], ["count.shape"]),
        helper.make_node("Expand", ["count.range", "count.shape"], ["counted"]),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def keep_some_logits(model: onnx.ModelProto) -> None:
    """`num_logits_to_keep`, a scalar, as transformers.js has it: so many of the last positions."""
    model.graph.input.append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []))
    _cut_logits(model, "num_logits_to_keep")


def give_last_logits(model: onnx.ModelProto) -> None:
    """Logits of the last position only, as the builder's `prune_lm_head` gives them."""
    model.graph.initializer.append(helper.make_tensor("keep.one", TensorProto.INT64, [], [1]))
    _cut_logits(model, "keep.one")


def _cut_logits(model: onnx.ModelProto, count: str) -> None:
    _rename(model, "logits", "all_logits")
    for name, value in (("keep.axis", 1), ("keep.end", 2**62)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], [value]))
    model.graph.initializer.append(helper.make_tensor("keep.shape", TensorProto.INT64, [1], [1]))
    model.graph.node.extend(
        [
            helper.make_node("Neg", [count], ["keep.minus"]),
            helper.make_node("Reshape", ["keep.minus", "keep.shape"], ["keep.start"]),
            helper.make_node("Slice", ["all_logits", "keep.start", "keep.end", "keep.axis"], ["logits"]),
        ]
    )
    logits = next(value for value in model.graph.output if value.name == "logits")
    logits.type.tensor_type.shape.dim[1].dim_param = "kept"


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Another name inside the graph for an input or output that keeps its own."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
