"""ONNX decoders the way other tools export them, of small models made by transformers.

onnxruntime-genai's builder is run as it is. optimum-onnx wants an older transformers than the other tests, so its
convention is exported here from a transformers model with its growing cache; `BLOCKEXPORT_OPTIMUM`, the path of an
`optimum-cli` in an environment of its own, lets a longer test use the tool itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import DynamicCache

from tests.made_once import MadeOnce
from tests.transformers_models import make_model, save_model

FAMILIES = ("llama", "mistral-window", "qwen2-mixed", "qwen3")
LAYERS, HEADS, WIDTH = 2, 3, 16  # of every model of transformers_models


def write_source(folder: Path, family: str = "llama", *, tied: bool = False, windowed: bool = True) -> Path:
    """A checkpoint with a tokenizer, which the builder insists on."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(make_model(family, tied=tied, windowed=windowed), folder)
    return write_words(folder)


def write_words(folder: Path, count: int = 131) -> Path:
    """A tokenizer beside a checkpoint."""
    # A token for each character: with one for everything no position could be told from another.
    vocabulary = {chr(i) if 32 < i < 127 else f"t{i}": i for i in range(count)}
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


def build_with_genai(source: Path, folder: Path, precision: str = "fp32", provider: str = "cpu") -> Path:
    """onnxruntime-genai's own export."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder]
    command += ["-p", precision, "-e", provider, "-c", folder.parent / "cache"]
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


def export_growing(path: Path, family: str = "llama", *, tied: bool = False, windowed: bool = True) -> Path:
    """A transformers model with optimum's inputs and outputs."""
    model = _Growing(make_model(family, tied=tied, windowed=windowed)).eval()
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


def export_pair(folder: Path, family: str = "llama", *, static: bool = False, windowed: bool = True) -> Path:
    """transformers' own exporter: `prefill.onnx` and `decode.onnx`."""
    from transformers import GenerationConfig
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    ids = torch.randint(3, 100, (2, 7))
    how = GenerationConfig(cache_implementation="static", max_cache_len=40) if static else None
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    made = OnnxExporter().export_for_generation(
        make_model(family, windowed=windowed), inputs, OnnxConfig(dynamic=True), generation_config=how
    )
    made.save_pretrained(folder)
    return folder


class ForeignExports:
    """Each kind of file of each family, made when it is first asked for; without the family's window where not
    `windowed`."""

    def __init__(self, made_once: MadeOnce, *, windowed: bool = True) -> None:
        self.made_once, self.windowed = made_once, windowed

    @cached_property
    def windowless(self) -> ForeignExports:
        """The same weights without the family's window."""
        return ForeignExports(self.made_once, windowed=False)

    def source(self, family: str = "llama") -> Path:
        """The checkpoint."""
        return self._once(f"source-{family}", lambda path: write_source(path, family, windowed=self.windowed))

    def growing(self, family: str = "llama") -> Path:
        """By optimum's convention."""
        return self._once(f"growing-{family}.onnx", lambda path: export_growing(path, family, windowed=self.windowed))

    def genai(self, family: str = "llama", *arguments: str) -> Path:
        """By onnxruntime-genai's builder."""
        source = self.source(family)
        made = self._once("-".join(["genai", family, *arguments]), lambda to: build_with_genai(source, to, *arguments))
        return made / "model.onnx"

    def pair(self, family: str = "llama", *, static: bool = False) -> Path:
        """By transformers' exporter: a folder."""
        name = f"{'static' if static else 'pair'}-{family}"
        return self._once(name, lambda path: export_pair(path, family, static=static, windowed=self.windowed))

    def _once(self, name: str, make: Callable[[Path], Path]) -> Path:
        with contextlib.redirect_stdout(io.StringIO()):
            return self.made_once.path(f"{'foreign' if self.windowed else 'foreign-windowless'}/{name}", make)


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


def with_names(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Other names for inputs and outputs, templates with `{i}` for the layer."""
    for template, other in names.items():
        for i in range(LAYERS):
            old, new = template.format(i=i), other.format(i=i)
            _rename(model, old, new)
            for value in [*model.graph.input, *model.graph.output]:
                value.name = new if value.name == old else value.name


def prompt_alone(model: onnx.ModelProto) -> None:
    """No cache inputs: those of a growing file are empty, so that it is optimum's decoder_model.onnx."""
    caches = [value.name for value in model.graph.input if value.name.startswith("past_key_values.")]
    kept = [value for value in model.graph.input if value.name not in caches]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.append(helper.make_tensor("prompt.sizes", TensorProto.INT64, [3], [HEADS, 0, WIDTH]))
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["prompt.rows"], start=0, end=1),
        helper.make_node("Concat", ["prompt.rows", "prompt.sizes"], ["prompt.shape"], axis=0),
        *(helper.make_node("ConstantOfShape", ["prompt.shape"], [name]) for name in caches),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def merge_branches(model: onnx.ModelProto) -> None:
    """Both graphs behind one `use_cache_branch`, as optimum's decoder_model_merged.onnx has them."""
    prompt = onnx.ModelProto()
    prompt.CopyFrom(model)
    prompt_alone(prompt)
    shared = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(tensor for tensor in prompt.graph.initializer if tensor.name not in shared)
    branches = {}
    for name, graph in (("then_branch", model.graph), ("else_branch", prompt.graph)):
        made = {output for node in graph.node for output in node.output if output}
        branch = helper.make_graph([], name, [], [])
        for node in graph.node:
            copy = branch.node.add()
            copy.CopyFrom(node)
            copy.input[:] = [f"{name}/{value}" if value in made else value for value in node.input]
            copy.output[:] = [f"{name}/{value}" if value else "" for value in node.output]
        for value in graph.output:
            output = branch.output.add()
            output.CopyFrom(value)
            output.name = f"{name}/{value.name}"
        branches[name] = branch
    names = [value.name for value in model.graph.output]
    del model.graph.node[:]
    del model.graph.value_info[:]
    model.graph.node.append(helper.make_node("If", ["use_cache_branch"], names, "either", **branches))
    model.graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Another name inside the graph for an input or output that keeps its own."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
