"""Problems that every layer has are told once."""

from __future__ import annotations

import pytest

from blockexport.export.lint.layer_groups import layers_of, told_once


def test_problems_that_differ_by_names_alone_are_one() -> None:
    problems = [(f"{{}} updates {{}}, not {kind}", (f"present.{i}.{kind}", "x")) for i in range(3) for kind in "kv"]
    assert told_once([*problems, ("2 layers, not 3", ())]) == [
        "layers 0..2: present.0.k updates x, not k (and the same at 2 more)",
        "layers 0..2: present.0.v updates x, not v (and the same at 2 more)",
        "2 layers, not 3",
    ]


def test_one_problem_is_told_as_it_is() -> None:
    assert told_once([("{} is float16", ("model.layers.3.norm",))]) == ["model.layers.3.norm is float16"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([f"model.layers.{i}.mlp/Gemm" for i in range(30)], "layers 0..29: "),
        (["/model/layers.7/attn", "/model/layers.7/mlp"], "layer 7: "),
        (["Attention transformer.h.2.attn", "h.4.attn", "h.5.attn"], "layers 2, 4..5: "),
        (["past_key_values.1.key", "present.0.key"], "layers 0..1: "),
        (["node_12", "depth.3.conv", "layers.3x", "blackbox"], ""),
        ([f"layers.{'9' * 5000}.mlp"], ""),
        ([], ""),
    ],
)
def test_layers_by_the_names_of_nodes_and_values(names: list[str], said: str) -> None:
    assert layers_of(names) == said
