"""Every trap: found by `lint`, and shown to be one by handing the same graph to TensorRT for RTX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from blockexport.export.lint.lint_finding import Fate
from blockexport.export.lint.lint_graph import Examination, lint_file, require_clean
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from tests.export.lint.lint_support import READ, WRITES, lint
from tests.export.tensorrt.trt_support import (
    BATCH,
    CACHE,
    HALF,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LENGTH,
    MIXED,
    SLOTS,
    attend,
    build_unchecked,
    cached_attention,
    rtx,
    write_cache,
)
from tests.exported import EVERYTHING, export

VALUE = helper.make_tensor_value_info


def _norm(stash_type: int, domain: str = "") -> onnx.ModelProto:
    node = helper.make_node(
        "RMSNormalization", ["x", "gain"], ["y"], "norm", domain=domain, axis=-1, stash_type=stash_type
    )
    shape: list[str | int | None] = [BATCH, LENGTH, HEAD_DIM]
    gain = numpy_helper.from_array(np.ones(HEAD_DIM, np.float16), "gain")
    graph = helper.make_graph([node], "norm", [VALUE("x", HALF, shape)], [VALUE("y", HALF, shape)], [gain])
    opsets = [helper.make_opsetid("", 24), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def _rope(table: type, domain: str = "") -> onnx.ModelProto:
    """RotaryEmbedding; onnxruntime's own operator of that name takes the positions second."""
    inputs = ["x", "position_ids", "cos", "sin"] if domain else ["x", "cos", "sin", "position_ids"]
    node = helper.make_node("RotaryEmbedding", inputs, ["y"], "rope", domain=domain)
    tables = [numpy_helper.from_array(np.ones((99, HEAD_DIM // 2), table), name) for name in ("cos", "sin")]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(table))
    values = [VALUE("x", element, MIXED), VALUE("position_ids", TensorProto.INT64, [BATCH, LENGTH])]
    graph = helper.make_graph([node], "rope", values, [VALUE("y", element, MIXED)], tables)
    opsets = [helper.make_opsetid("", 24), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def _concatenated() -> onnx.ModelProto:
    bounds = [numpy_helper.from_array(np.array([n]), f"n{n}") for n in (0, SLOTS, 2)]
    nodes = [
        helper.make_node("Concat", ["past_key", "key"], ["longer"], "append", axis=2),
        helper.make_node("Slice", ["longer", "n0", f"n{SLOTS}", "n2"], ["present_key"], "cut"),
        WRITES[1],
        attend(*READ),
    ]
    return cached_attention(nodes, initializers=bounds)


SILENT = {
    "nonpad-kv-seqlen": cached_attention([*WRITES, attend(*READ, "", "", "count")]),
    "nonpad-kv-seqlen without a mask": cached_attention([*WRITES, attend(*READ[:3], "", "", "", "count")]),
    "attention-window left": cached_attention([*WRITES, attend(*READ, left_window_size=4)], opset=25),
    "attention-window right": cached_attention([*WRITES, attend(*READ, right_window_size=0)], opset=25),
    "causal-cache": cached_attention([*WRITES, attend(*READ[:3], is_causal=1)]),
    "attention-scale": cached_attention([*WRITES, attend(*READ, scale=0.125)]),
    "attention-scale by default": cached_attention([*WRITES, helper.make_node("Attention", READ, ["mixed"])]),
    "no-write-indices": cached_attention(
        [
            helper.make_node("TensorScatter", ["past_key", "key"], ["present_key"], "write", axis=2),
            WRITES[1],
            attend(*READ),
        ]
    ),
    "cache-copied": _concatenated(),
    "norm-statistics": _norm(HALF),
    "rope-tables": _rope(np.float16),
    "foreign-domain norm": _norm(TensorProto.FLOAT, "com.example"),
    "foreign-domain rope": _rope(np.float32, "com.microsoft"),
}

LOUD = {
    "causal-cache under a mask": cached_attention([*WRITES, attend(*READ, is_causal=1)]),
    "circular-cache": cached_attention(
        [write_cache("past_key", "key", "present_key", mode="circular"), WRITES[1], attend(*READ)]
    ),
    "cache-length": cached_attention(slots="slots"),
    "several-writes": cached_attention(
        [*WRITES, write_cache("past_key", "value", "other"), attend(*READ)],
        extra_outputs=[VALUE("other", HALF, CACHE)],
    ),
    "cache-not-input": cached_attention(
        [
            helper.make_node("Identity", ["past_key"], ["copy"], "copy"),
            write_cache("copy", "key", "present_key"),
            WRITES[1],
            attend(*READ),
        ]
    ),
    "cache-not-output": cached_attention(
        [
            write_cache("past_key", "key", "written"),
            helper.make_node("Identity", ["written"], ["present_key"], "copy"),
            WRITES[1],
            attend("query", "written", "present_value", "mask"),
        ]
    ),
    "attention-form softcap": cached_attention([*WRITES, attend(*READ, softcap=30.0)]),
    "attention-form softmax_precision": cached_attention([*WRITES, attend(*READ, softmax_precision=1)]),
    "attention-form outputs": cached_attention(
        [*WRITES, attend(*READ, outputs=("mixed", "", "", "scores"))],
        extra_outputs=[VALUE("scores", HALF, [BATCH, HEADS, LENGTH, SLOTS])],
    ),
    "attention-form past": cached_attention(
        [
            attend(
                "query", "key", "value", "", "past_key", "past_value", outputs=("mixed", "present_key", "present_value")
            )
        ],
        slots=LENGTH + "_past",
    ),
}

STALE = cached_attention([*WRITES, attend("query", "past_key", "past_value", "mask")])


def _rules(model: onnx.ModelProto) -> set[str]:
    return {finding.rule for finding in lint(model)}


@pytest.mark.parametrize("trap", SILENT)
def test_a_silent_trap_is_found(trap: str) -> None:
    findings = [finding for finding in lint(SILENT[trap]) if finding.rule == trap.split()[0]]
    assert findings
    assert all(finding.fate is Fate.SILENT for finding in findings)


@pytest.mark.parametrize("trap", SILENT)
def test_a_silent_trap_builds_without_lint(trap: str, tmp_path: Path) -> None:
    """Why the rule exists: TensorRT takes the graph and says nothing."""
    path = tmp_path / "trap.onnx"
    onnx.save(SILENT[trap], path)
    onnx.checker.check_model(SILENT[trap])
    engine, error = build_unchecked(path)
    assert (engine is not None, error) == (True, "")
    with pytest.raises(UsageError, match="TensorRT builds without a word"):
        require_clean(path)


def test_the_dropped_lengths_and_windows_leave_no_trace_in_the_network(tmp_path: Path) -> None:
    """An engine with the dropped input has the layers of one that never had it."""
    adapter = rtx()
    kinds = []
    traps = (SILENT["nonpad-kv-seqlen"], SILENT["attention-window left"], cached_attention())
    for index, model in enumerate(traps):
        path = tmp_path / f"{index}.onnx"
        onnx.save(model, path)
        network = adapter.network(adapter.builder())
        parser = adapter.trt.OnnxParser(network, adapter.log)
        assert parser.parse_from_file(str(path))
        kinds.append([network.get_layer(i).type for i in range(network.num_layers)])
    assert kinds[0] == kinds[1] == kinds[2]


@pytest.mark.parametrize("trap", LOUD)
def test_a_loud_trap_is_found_and_rejected_by_tensorrt(trap: str, tmp_path: Path) -> None:
    assert trap.split()[0] in _rules(LOUD[trap])
    path = tmp_path / "trap.onnx"
    onnx.save(LOUD[trap], path)
    engine, error = build_unchecked(path)
    assert engine is None
    assert error


def test_reading_the_cache_before_its_write_is_found_and_kills_tensorrt(tmp_path: Path) -> None:
    assert _rules(STALE) == {"stale-cache"}
    rtx()
    path = tmp_path / "trap.onnx"
    onnx.save(STALE, path)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "from pathlib import Path; from tests.export.tensorrt.trt_support import build_unchecked\n"
        f"print(build_unchecked(Path({str(path)!r}))[0] is None)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    # A segmentation fault as a rule, and now and then a build that comes to nothing; never an engine.
    assert done.returncode < 0 or done.stdout == "True\n"


def test_good_graphs_are_clean(tmp_path: Path) -> None:
    assert lint(cached_attention()) == []
    path = tmp_path / "good.onnx"
    onnx.save(cached_attention(), path)
    assert build_unchecked(path)[0] is not None
    # Causal attention without a cache is what it says, and keys made by a projection need no cache write.
    new: list[str | int | None] = [BATCH, KV_HEADS, LENGTH, HEAD_DIM]
    graph = helper.make_graph(
        [attend("query", "key", "value", is_causal=1)],
        "whole",
        [VALUE("query", HALF, MIXED), VALUE("key", HALF, new), VALUE("value", HALF, new)],
        [VALUE("mixed", HALF, MIXED)],
    )
    assert lint(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])) == []


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("options", [{}, {"headless": True}, {"last_logits_only": True}])
def test_our_own_exports_are_clean(precision: Precision, options: dict[str, bool], tmp_path: Path) -> None:
    config: ModelConfig = EVERYTHING
    export(RandomCheckpoint(config, 3, "tests", std=0.2), tmp_path / "bundle", precision, **options)
    assert lint_file(tmp_path / "bundle" / "model.onnx") == Examination([], 6)


@pytest.mark.parametrize("content", [b"", b"not onnx at all", bytes(range(256)) * 9])
def test_what_is_not_onnx_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a readable ONNX file"):
        lint_file(path)
    with pytest.raises(UsageError, match="No such file"):
        lint_file(tmp_path / "absent.onnx")
