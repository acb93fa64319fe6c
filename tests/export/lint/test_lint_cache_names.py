"""Caches under any name: found by where their entries go. A graph without one is told from one without traps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from blockexport.cli.main import main
from blockexport.export.lint.lint_graph import examine
from tests.export.lint.lint_support import constant, graph_of, node, value

FLOAT = TensorProto.FLOAT
NAMES = {
    "optimum": ("past_key_values.0.{}", "present.0.{}"),
    "numbered": ("past_0_{}", "present_0_{}"),
    "short": ("{}_0", "{}_out_0"),
    "static": ("{}_cache", "{}_cache_out"),
    "DynamicCache": ("past_key_values_{}_cache_0", "cat_{}"),
}
CONSTANTS = [
    constant("two", [2]),
    constant("turned", [0, 2, 1, 3]),
    constant("to slots", [1, 3, 8, 4]),
]
Write = Callable[[str, str, str], list[onnx.NodeProto]]


def _turned(name: str) -> onnx.NodeProto:
    return node("Transpose", [name], [f"{name} turned"], perm=[0, 1, 3, 2])


WRITES: dict[str, Write] = {
    "Concat": lambda past, new, present: [node("Concat", [past, new], [present], axis=2)],
    "ScatterElements": lambda past, new, present: [
        node("ScatterElements", [past, "places", new], [present], axis=2),
    ],
    "ScatterND": lambda past, new, present: [
        node("Transpose", [past], [f"{past} first"], perm=[2, 0, 1, 3]),
        node("Transpose", [new], [f"{new} first"], perm=[2, 0, 1, 3]),
        node("ScatterND", [f"{past} first", "rows", f"{new} first"], [f"{present} first"]),
        node("Transpose", [f"{present} first"], [present], perm=[1, 2, 0, 3]),
    ],
    "Where": lambda past, new, present: [
        node("Expand", [new, "to slots"], [f"{new} wide"]),
        node("Where", ["chosen", f"{new} wide", past], [present]),
    ],
    "blend": lambda past, new, present: [
        node("Mul", [past, "kept"], [f"{past} kept"]),
        node("Expand", [new, "to slots"], [f"{new} wide"]),
        node("Where", ["chosen", f"{new} wide", f"{past} kept"], [present]),
    ],
}


def spelled_out(write: str, names: tuple[str, str], *, attended: bool = True) -> onnx.ModelProto:
    """One layer's attention of single operators over caches written in one of the ways."""
    slots: int | str = "total" if write == "Concat" else 8
    nodes, inputs, outputs = [], [value("query", FLOAT, [1, 3, 1, 4])], []
    for kind in ("key", "value"):
        past, present = (form.format(kind) for form in names)
        inputs += [value(past, FLOAT, [1, 3, "past" if write == "Concat" else 8, 4])]
        inputs += [value(f"new {kind}", FLOAT, [1, 3, 1, 4])]
        outputs += [value(present, FLOAT, [1, 3, slots, 4])]
        nodes += WRITES[write](past, f"new {kind}", present)
    inputs += [value("places", TensorProto.INT64, [1, 3, 1, 4]), value("rows", TensorProto.INT64, [1, 1])]
    inputs += [value("chosen", TensorProto.BOOL, [1, 1, 8, 1]), value("kept", FLOAT, [1])]
    if attended:
        key, values = (names[1].format(kind) for kind in ("key", "value"))
        nodes += [
            _turned(key),
            node("MatMul", ["query", f"{key} turned"], ["scores"]),
            node("Softmax", ["scores"], ["shares"]),
            node("MatMul", ["shares", values], ["mixed"]),
        ]
        outputs += [value("mixed", FLOAT, [1, 3, 1, 4])]
    return graph_of(nodes, inputs, outputs, CONSTANTS)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("write", WRITES)
def test_a_cache_is_recognised_whatever_its_name_and_write(write: str, names: str) -> None:
    found = examine(spelled_out(write, NAMES[names]))
    (finding,) = found.findings
    assert (found.caches, finding.rule) == (2, "cache-copied")
    assert NAMES[names][1].format("key") in finding.problem and NAMES[names][0].format("key") in finding.problem


@pytest.mark.parametrize("names", NAMES)
def test_a_cache_of_a_fused_attention_is_recognised(names: str) -> None:
    pasts, presents = ([form.format(kind) for kind in ("key", "value")] for form in NAMES[names])
    flat = [value(name, FLOAT, [1, 1, 12]) for name in ("q", "k", "v")]
    counts = [value("last", TensorProto.INT32, [1]), value("total", TensorProto.INT32, [])]
    attention = node(
        "GroupQueryAttention",
        ["q", "k", "v", *pasts, "last", "total"],
        ["mixed", *presents],
        domain="com.microsoft",
        num_heads=3,
        kv_num_heads=3,
    )
    caches = [value(name, FLOAT, [1, 3, 8, 4]) for name in (*pasts, *presents)]
    outputs = [value("mixed", FLOAT, [1, 1, 12]), *caches[2:]]
    assert examine(graph_of([attention], [*flat, *caches[:2], *counts], outputs)).caches == 2


def test_what_is_no_cache_is_not_taken_for_one() -> None:
    """Feature maps joined, a masked image, a residual stream, and the new entries of a cache."""
    image = value("image", FLOAT, [1, 3, 8, 8])
    joined = graph_of(
        [node("Concat", ["image", "image"], ["wide"], axis=3)], [image], [value("wide", FLOAT, [1, 3, 8, 16])]
    )
    masked = graph_of(
        [node("Where", ["mask", "image", "nothing"], ["seen"])],
        [image, value("mask", TensorProto.BOOL, [1, 1, 8, 8])],
        [value("seen", FLOAT, [1, 3, 8, 8])],
        [constant("nothing", 0, np.float32)],
    )
    stream = graph_of(
        [node("Softmax", ["inputs_embeds"], ["shares"]), node("Add", ["inputs_embeds", "shares"], ["hidden"])],
        [value("inputs_embeds", FLOAT, [1, 5, 8])],
        [value("hidden", FLOAT, [1, 5, 8])],
    )
    for model in (joined, masked, stream):
        assert examine(model).caches == 0
    assert examine(spelled_out("Concat", NAMES["short"], attended=False)).caches == 0
    assert examine(spelled_out("ScatterElements", NAMES["short"], attended=False)).caches == 2


def test_no_cache_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    product = graph_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, [1, 5, 8])], [value("y", FLOAT, [1, 5, 8])])
    onnx.save(product, path)
    assert main(["lint", str(path)]) == 0
    assert "no cache recognised, so the rules about caches saw nothing; of the others, none" in capsys.readouterr().out
    onnx.save(spelled_out("Where", NAMES["short"]), path)
    assert main(["lint", str(path)]) == 1
    assert "no cache recognised" not in capsys.readouterr().out
