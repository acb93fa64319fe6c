"""Traps in branches, loops and local functions."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from blockexport.export.bundle.dataflow.flat_graph import FlatGraph
from blockexport.export.lint.lint_finding import Fate
from blockexport.models.errors import UsageError
from tests.export.lint.lint_support import (
    NEW,
    READ,
    WRITES,
    assert_builds,
    constant,
    found,
    function,
    graph_of,
    lint,
    node,
    rules,
    value,
    with_inputs,
)
from tests.export.tensorrt.trt_support import CACHE, HALF, MIXED, attend, build_unchecked, cached_attention

TRAPS = {
    "nonpad-kv-seqlen": attend(*READ, "", "", "count"),
    "attention-window": attend(*READ, left_window_size=4),
    "causal-cache": attend(*READ[:3], is_causal=1),
    "attention-scale": attend(*READ, scale=0.125),
}


def _branch(name: str, inner: onnx.NodeProto, result: onnx.ValueInfoProto) -> onnx.GraphProto:
    """A branch of one node, whose output has the same name in both branches."""
    copy = onnx.NodeProto.FromString(inner.SerializeToString())
    copy.output[0] = "result"
    return helper.make_graph([copy], name, [], [value("result", result.type.tensor_type.elem_type, None)])


def _chosen(inner: onnx.NodeProto, other: onnx.NodeProto, result: onnx.ValueInfoProto) -> onnx.NodeProto:
    branches = {"then_branch": _branch("then", inner, result), "else_branch": _branch("else", other, result)}
    return node("If", ["condition"], [result.name], "choice", **branches)


RESULT = value("mixed", HALF, MIXED)
TRUE, FALSE = constant("condition", True, bool), constant("condition", False, bool)


def _in_if(trap: onnx.NodeProto, *condition: onnx.TensorProto) -> onnx.ModelProto:
    model = cached_attention([*WRITES, _chosen(trap, attend(*READ), RESULT)], initializers=condition, opset=25)
    return with_inputs(model, *trap.input[:1], *trap.input[3:4], *trap.input[6:7], "mask")


def _in_function(trap: onnx.NodeProto) -> onnx.ModelProto:
    names = [name for name in trap.input if name]
    call = node("Mix", names, ["mixed"], domain="local")
    model = cached_attention([*WRITES, call], opset=25, domains=["local"])
    model.functions.append(function("local", "Mix", names, [trap], ["mixed"], 25))
    return model


@pytest.mark.parametrize("rule", TRAPS)
def test_a_trap_in_a_branch_that_is_always_taken_is_found(rule: str, tmp_path: Path) -> None:
    model = _in_if(TRAPS[rule], TRUE)
    assert rules(model) == {rule}
    assert found(model, rule).fate is Fate.SILENT
    assert_builds(model, tmp_path)
    assert lint(_in_if(TRAPS[rule], FALSE)) == []  # the other branch is never run


@pytest.mark.parametrize("rule", TRAPS)
def test_a_trap_in_a_local_function_is_found(rule: str, tmp_path: Path) -> None:
    model = _in_function(TRAPS[rule])
    assert rules(model) == {rule}
    assert_builds(model, tmp_path)


def test_a_local_function_is_no_trap_by_itself(tmp_path: Path) -> None:
    model = _in_function(attend(*READ))
    assert lint(model) == []
    assert_builds(model, tmp_path)


@pytest.mark.parametrize("rule", TRAPS)
def test_attention_in_a_branch_that_is_chosen_at_run_time_is_found(rule: str, tmp_path: Path) -> None:
    model = with_inputs(_in_if(TRAPS[rule]), "condition")
    assert rules(model) == {"attention-form", rule}
    assert found(model, rule).fate is Fate.ERRATIC
    good = with_inputs(_in_if(attend(*READ)), "condition")
    assert rules(good) == {"attention-form"}
    assert len(found(good, "attention-form").nodes) == 2
    path = tmp_path / "graph.onnx"
    onnx.save(good, path)
    onnx.checker.check_model(good)
    assert build_unchecked(path)[0] is None


def test_a_cache_write_in_a_branch(tmp_path: Path) -> None:
    at_zero = node("TensorScatter", ["past_key", "key"], ["present_key"], axis=2)
    write = _chosen(at_zero, at_zero, value("present_key", HALF, CACHE))
    outputs = [value("present_key", HALF, CACHE)] if "present_key" not in write.output else []
    always = with_inputs(
        cached_attention([write, WRITES[1], attend(*READ)], initializers=[TRUE], extra_outputs=outputs),
        "past_key", "key",
    )  # fmt: skip
    assert rules(always) == {"no-write-indices"}
    assert_builds(always, tmp_path)
    at_run_time = with_inputs(cached_attention([write, WRITES[1], attend(*READ)]), "past_key", "key", "condition")
    assert {"cache-not-output", "several-writes"} <= rules(at_run_time)
    path = tmp_path / "at_run_time.onnx"
    onnx.save(at_run_time, path)
    assert build_unchecked(path)[0] is None


def _looped(attention: onnx.NodeProto) -> onnx.ModelProto:
    """The attention in a Loop that carries the keys."""
    body = helper.make_graph(
        [node("Identity", ["going"], ["go_on"]), node("Identity", ["keys"], ["keys_out"]), attention],
        "body",
        [value("step", TensorProto.INT64, []), value("going", TensorProto.BOOL, []), value("keys", HALF, CACHE)],
        [value("go_on", TensorProto.BOOL, []), value("keys_out", HALF, CACHE), value("mixed", HALF, None)],
    )
    loop = node("Loop", ["trips", "condition", "present_key"], ["last_keys", "stacked"], "loop", body=body)
    extra = [value("stacked", HALF, [1, *MIXED]), value("last_keys", HALF, CACHE)]
    model = cached_attention([*WRITES, loop], initializers=[TRUE], extra_outputs=extra)
    return with_inputs(model, "query", "mask", "trips")


def test_the_body_of_a_loop_is_looked_through() -> None:
    """The keys go into the body as what the Loop carries, so they come from the cache."""
    good, scaled = (
        _looped(helper.make_node("Attention", ["query", "keys", "present_value", "mask"], ["mixed"], "inner", scale=s))
        for s in (1.0, 0.5)
    )
    onnx.checker.check_model(scaled)
    assert rules(good) == {"attention-form"}
    finding = found(scaled, "attention-scale")
    assert finding.nodes == ("Attention inner in the body of Loop loop",)
    assert rules(scaled) == {"attention-form", "attention-scale"}
    fresh = helper.make_node("Attention", ["query", "query", "query"], ["mixed"], "inner", is_causal=1)
    assert rules(_looped(fresh)) == {"attention-form"}


def test_a_loop_keeps_apart_what_it_carries() -> None:
    """Keys that go round beside a cache do not come from it."""
    types = [value("step", TensorProto.INT64, []), value("going", TensorProto.BOOL, [])]
    body = helper.make_graph(
        [
            node("Identity", ["going"], ["go_on"]),
            node("Identity", ["cached"], ["cached_out"]),
            node("Identity", ["fresh"], ["fresh_out"]),
            node("Attention", ["query", "fresh", "fresh"], ["result"], is_causal=1),
        ],
        "body",
        [*types, value("cached", HALF, CACHE), value("fresh", HALF, NEW)],
        [types[1], value("cached_out", HALF, CACHE), value("fresh_out", HALF, NEW), value("result", HALF, None)],
    )
    body.output[0].name = "go_on"
    results = ["last_keys", "last_fresh", "mixed"]
    loop = node("Loop", ["trips", "condition", "present_key", "key"], results, "loop", body=body)
    model = with_inputs(cached_attention([WRITES[0], loop], initializers=[TRUE]), "query", "trips")
    assert rules(model) == {"attention-form"}
    last = attend("query", "last_keys", "last_keys", is_causal=1, outputs=("after",))
    model = with_inputs(cached_attention([WRITES[0], loop, last], initializers=[TRUE]), "query", "trips")
    assert rules(model) == {"attention-form", "causal-cache"}


def test_the_body_of_a_scan_is_looked_through() -> None:
    body = helper.make_graph(
        [
            node("Identity", ["keys"], ["keys_out"]),
            node("Attention", ["one_query", "keys", "keys"], ["mixed"], "inner", is_causal=1, scale=1.0),
        ],
        "body",
        [value("keys", HALF, CACHE), value("one_query", HALF, MIXED)],
        [value("keys_out", HALF, CACHE), value("mixed", HALF, MIXED)],
    )
    scan = node("Scan", ["present_key", "queries"], ["last_keys", "stacked"], "scan", body=body, num_scan_inputs=1)
    extra = [value("stacked", HALF, [4, *MIXED]), value("last_keys", HALF, CACHE)]
    model = cached_attention([WRITES[0], scan], extra_outputs=extra)
    model.graph.input.append(value("queries", HALF, [4, *MIXED]))
    onnx.checker.check_model(model)
    assert rules(model) == {"attention-form", "causal-cache"}


def test_a_scan_keeps_apart_what_it_carries_and_what_it_walks_along() -> None:
    body = helper.make_graph(
        [
            node("Identity", ["keys"], ["keys_out"]),
            node("Attention", ["one_query", "one_query", "one_query"], ["mixed"], "inner", is_causal=1),
        ],
        "body",
        [value("keys", HALF, CACHE), value("one_query", HALF, MIXED)],
        [value("keys_out", HALF, CACHE), value("mixed", HALF, MIXED)],
    )
    scan = node("Scan", ["present_key", "queries"], ["last_keys", "stacked"], "scan", body=body, num_scan_inputs=1)
    model = cached_attention([WRITES[0], scan])
    model.graph.input.append(value("queries", HALF, [4, *MIXED]))
    assert rules(model) == {"attention-form"}


def test_deep_bodies_have_names_as_long_as_they_are_deep() -> None:
    """Names that hold their place twice would double at each of the thirty bodies that a file may nest."""
    plain = helper.make_graph([node("Identity", ["x"], ["z"])], "plain", [], [value("z", HALF, None)])
    body = plain
    for _ in range(30):
        chosen = node("If", ["condition"], ["z"], then_branch=body, else_branch=plain)
        body = helper.make_graph([chosen], "body", [], [value("z", HALF, None)])
    inputs = [value("x", HALF, [2]), value("condition", TensorProto.BOOL, [])]
    model = graph_of(body.node, inputs, [value("z", HALF, [2])])
    names = [name for each in FlatGraph(model).nodes for name in each.proto.output]
    assert max(map(len, names)) < 30 * 20


def test_a_function_that_calls_itself_is_refused() -> None:
    again = helper.make_function(
        "local", "Again", ["a"], ["b"], [node("Again", ["a"], ["b"], domain="local")],
        [helper.make_opsetid("", 24), helper.make_opsetid("local", 1)],
    )  # fmt: skip
    shape: list[str | int | None] = [2]
    x, y = value("x", HALF, shape), value("y", HALF, shape)
    model = graph_of([node("Again", ["x"], ["y"], domain="local")], [x], [y], functions=[again])
    with pytest.raises(UsageError, match="local functions of this file cannot be followed"):
        lint(model)


@pytest.mark.parametrize("taken", ["then_branch", "else_branch"])
def test_keys_out_of_either_branch_come_from_its_cache(taken: str) -> None:
    """Both branches name their value alike; one of them gives the cache, after a node or as it is."""
    branches = {}
    for name in ("then_branch", "else_branch"):
        result = node("Identity", ["present_key" if name == taken else "key"], ["keys"])
        branches[name] = helper.make_graph([result], name, [], [value("keys", HALF, None)])
    choice = node("If", ["condition"], ["chosen"], "choice", **branches)
    causal = attend("query", "chosen", "present_value", is_causal=1)
    fresh = attend("query", "chosen", "value", is_causal=1)
    for attention, inputs in ((causal, ("key",)), (fresh, ("key", "value"))):
        model = with_inputs(cached_attention([*WRITES, choice, attention]), "condition", *inputs)
        assert rules(model) == {"causal-cache"}
    branches["then_branch"] = helper.make_graph([], "then_branch", [], [value("present_key", HALF, CACHE)])
    choice = node("If", ["condition"], ["chosen"], "choice", **branches)
    assert rules(cached_attention([*WRITES, choice, fresh], initializers=[TRUE])) == {"causal-cache"}


def test_a_condition_is_constant_as_a_node_and_as_a_default(tmp_path: Path) -> None:
    trap = TRAPS["attention-scale"]
    known = node("Constant", [], ["condition"], value=constant("", True, bool))
    computed = cached_attention([*WRITES, known, _chosen(trap, attend(*READ), RESULT)])
    default = with_inputs(_in_if(trap, TRUE), "condition")
    for model in (with_inputs(computed, "query", "mask"), default):
        assert rules(model) == {"attention-scale"}
        assert_builds(model, tmp_path)
