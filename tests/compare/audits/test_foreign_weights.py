"""Another tool's file: its weights are found by content or name and held against the checkpoint's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from blockexport.compare.audits.artifact_weights import ArtifactWeights, initializers
from blockexport.compare.audits.foreign_weights import Held, hold_foreign
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.compare.memory_checkpoint import TINY, MemoryCheckpoint
from tests.foreign_files import ForeignExports

Values = np.ndarray[Any, Any]
Edit = Callable[[Values], Values]
DOWN = "model.layers.1.mlp.down_proj.weight"
KEYS = "model.layers.0.self_attn.k_proj.weight"


@pytest.fixture(scope="module")
def made(foreign: ForeignExports, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign-weights")
    shutil.copytree(foreign.source("qwen3"), folder / "source")
    shutil.copytree(foreign.genai("qwen3").parent, folder / "genai")
    shutil.copy(foreign.growing("qwen3"), folder / "growing.onnx")
    return folder


@pytest.fixture(scope="module")
def checkpoint(made: Path) -> Checkpoint:
    return open_checkpoint(str(made / "source"))


def held(path: Path, checkpoint: Checkpoint, name: str = "", edit: Edit | None = None) -> Held:
    """With the values of one initializer changed."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if edit is not None and tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(edit(numpy_helper.to_array(tensor).copy()), name))
    return hold_foreign(initializers(model, path.parent), checkpoint)


def nameless(path: Path, checkpoint: Checkpoint, name: str) -> str:
    """What a growing file calls the transpose of a tensor."""
    values = checkpoint.read(name).T.numpy()
    graph = onnx.load(path).graph
    return next(str(t.name) for t in graph.initializer if np.array_equal(numpy_helper.to_array(t), values))


def one(values: Values) -> Values:
    values[3, 1] *= 2
    return values


def test_sound_files_have_all_of_them(made: Path, checkpoint: Checkpoint) -> None:
    for path in (made / "genai" / "model.onnx", made / "growing.onnx"):
        assert held(path, checkpoint) == Held(same=len(checkpoint.entries)), path


@pytest.mark.parametrize("tool", ["genai/model.onnx", "growing.onnx"])
def test_one_wrong_value_is_said(made: Path, checkpoint: Checkpoint, tool: str) -> None:
    path = made / tool
    name = "model.layers.1.mlp.down_proj.MatMul.weight" if "genai" in tool else nameless(path, checkpoint, DOWN)
    found = held(path, checkpoint, name, one)
    assert found.differing == [DOWN] and found.not_compared == []
    assert found.said[0].startswith(f"{DOWN} differs in 1 of 3,192 values: [1, 3] is ")


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("name", ["self_attn.q_proj.weight", "any.other"])
def test_a_square_matrix_is_compared_as_it_lies(name: str, is_turned: bool) -> None:
    """Its shape does not tell whether it is transposed."""
    wanted = torch.randn(24, 24, generator=torch.Generator().manual_seed(3))
    query = "model.layers.0.self_attn.q_proj.weight"
    stored = wanted.clone()
    stored[3, 5] += 2.5
    file = stored.T.contiguous() if is_turned else stored
    checkpoint = MemoryCheckpoint(replace(TINY, head_dim=4), {query: wanted})
    name = query if name.startswith("self_attn") else name
    found = hold_foreign(ArtifactWeights({name: (24, 24)}, {name: file}.__getitem__), checkpoint)
    assert found.said[0].startswith(f"{query} differs in 1 of 576 values: [3, 5] is "), found


def test_a_wrong_key_in_a_fused_matrix(made: Path, checkpoint: Checkpoint) -> None:
    queries = checkpoint.config.num_attention_heads * checkpoint.config.head_dim

    def edit(values: Values) -> Values:
        values[2, queries + 5] = 0
        return values

    found = held(made / "genai" / "model.onnx", checkpoint, "model.layers.0.attn.qkv_proj.MatMul.weight", edit)
    assert found.differing == [KEYS] and "differs in 1 of 2,016 values: [5, 2] is 0" in found.said[0]


def test_what_a_tool_may_mean_is_not_compared(made: Path, checkpoint: Checkpoint) -> None:
    """A scale folded into a matrix; and two missing of a shape, of which neither can be told."""
    folded = held(
        made / "genai" / "model.onnx", checkpoint, "model.layers.1.mlp.down_proj.MatMul.weight", lambda x: x * 0.25
    )
    assert (folded.differing, folded.not_compared) == ([], [DOWN])
    both = onnx.load(made / "growing.onnx")
    names = {nameless(made / "growing.onnx", checkpoint, name) for name in (DOWN, DOWN.replace("1", "0"))}
    for tensor in both.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(one(numpy_helper.to_array(tensor).copy()), tensor.name))
    found = hold_foreign(initializers(both, made), checkpoint)
    assert found.differing == [] and len(found.not_compared) == 2


def test_a_wrong_value_in_one_of_two_graphs(made: Path, checkpoint: Checkpoint) -> None:
    right = onnx.load(made / "growing.onnx")
    wrong = onnx.load(made / "growing.onnx")
    name = nameless(made / "growing.onnx", checkpoint, DOWN)
    for tensor in wrong.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(one(numpy_helper.to_array(tensor).copy()), name))
    for first, second in ((right, wrong), (wrong, right)):
        weights = replace(initializers(first, made), others=(initializers(second, made),))
        found = hold_foreign(weights, checkpoint)
        assert (found.differing, found.same, len(found.said)) == ([DOWN], len(checkpoint.entries) - 1, 1)
