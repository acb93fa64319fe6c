"""Each replayed operator against the onnx package's own reference evaluator, an implementation of the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from blockexport.models.errors import NotJudgedError
from blockexport.runtime.replay.replay_call import Call
from blockexport.runtime.replay.replay_operators import OPERATORS

Arrays = list[np.ndarray[Any, Any]]
random = np.random.default_rng(3)


def floats(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return (random.standard_normal(shape) * 1.5).astype(dtype)


POSITIONS = np.array([[0, 1, 2, 3], [7, 8, 9, 10]])
MASK = np.arange(9) <= POSITIONS[:, None, :, None]
CASES: list[tuple[str, Arrays, dict[str, Any]]] = [
    ("Gemm", [floats(5, 7), floats(3, 7), floats(3)], {"transB": 1}),
    ("Gemm", [floats(7, 5), floats(7, 3), floats(5, 3)], {"transA": 1, "alpha": 0.5, "beta": -2.0}),
    ("MatMul", [floats(2, 5, 7), floats(7, 3)], {}),
    ("RMSNormalization", [floats(4, 6, 10), floats(10)], {"epsilon": 0.01}),
    ("RMSNormalization", [floats(4, 6, 10), floats(6, 10)], {"axis": 1, "epsilon": 1e-6}),
    ("RotaryEmbedding", [floats(2, 3, 4, 10), floats(12, 5), floats(12, 5), POSITIONS], {}),
    ("RotaryEmbedding", [floats(2, 3, 4, 10), floats(12, 5), floats(12, 5), POSITIONS], {"interleaved": 1}),
    ("TensorScatter", [floats(2, 3, 9, 5), floats(2, 3, 4, 5), np.array([1, 5])], {"axis": 2}),
    ("Attention", [floats(2, 6, 4, 10), floats(2, 2, 9, 10), floats(2, 2, 9, 10), MASK], {"scale": 0.7}),
    ("Attention", [floats(2, 6, 4, 10), floats(2, 2, 9, 10), floats(2, 2, 9, 10)], {}),
    ("Softmax", [floats(4, 9)], {"axis": -1}),
    ("ReduceMean", [floats(4, 6, 10), np.array([1])], {"keepdims": 0}),
    ("ReduceMax", [floats(4, 6, 10), np.array([1])], {"keepdims": 0}),
    ("ReduceSum", [floats(4, 6, 10), np.array([1, -1])], {"keepdims": 0}),
    ("ReduceL2", [floats(4, 6, 10), np.array([-1])], {}),
    ("Gelu", [floats(4, 9)], {"approximate": "tanh"}),
    ("Gelu", [floats(4, 9)], {}),
    ("Cast", [floats(4, 9)], {"to": onnx.TensorProto.FLOAT16}),
    ("Concat", [floats(2, 3), floats(2, 5)], {"axis": 1}),
    ("Reshape", [floats(4, 6), np.array([0, 2, -1])], {}),
    ("Transpose", [floats(2, 3, 4)], {"perm": [2, 0, 1]}),
    ("Transpose", [floats(2, 3, 4)], {}),
    ("Gather", [floats(9, 5), np.array([[1, -1], [8, 0]])], {"axis": 0}),
    ("Gather", [floats(4, 9, 5), np.array(-2)], {"axis": 1}),
    ("Shape", [floats(2, 3, 4)], {"start": 1, "end": 3}),
    ("Shape", [floats(2, 3, 4)], {"start": -1}),
    ("Squeeze", [floats(1, 3, 1), np.array([2])], {}),
    ("Unsqueeze", [floats(3, 4), np.array([0, 3])], {}),
    ("Range", [np.array(2), np.array(11), np.array(3)], {}),
    ("Where", [MASK, floats(9), floats(1)], {}),
    ("Expand", [floats(3, 1), np.array([2, 1, 4])], {}),
    ("Tile", [floats(3, 2), np.array([2, 3])], {}),
    ("Slice", [floats(5, 9), np.array([1, -4]), np.array([4, 2**63 - 1]), np.array([0, 1])], {}),
    ("Div", [np.array([7, -7]), np.array([2, 2])], {}),
    ("Div", [floats(3, 4), floats(4)], {}),
    ("LessOrEqual", [np.arange(9), POSITIONS[:, :, None]], {}),
    ("Greater", [np.arange(9), POSITIONS[:, :, None]], {}),
    ("Sigmoid", [floats(9)], {}),
    ("Neg", [floats(9)], {}),
    ("Erf", [floats(9)], {}),
    ("And", [MASK, ~MASK], {}),
]


def by_reference(op_type: str, inputs: Arrays, attributes: dict[str, Any]) -> np.ndarray[Any, Any]:
    names = [f"x{i}" for i in range(len(inputs))]
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    graph = helper.make_graph([node], "one", declared, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    (result,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(result)


def by_replay(op_type: str, inputs: Arrays, attributes: dict[str, Any]) -> np.ndarray[Any, Any]:
    call = Call(op_type, "one", [torch.from_numpy(np.array(x)) for x in inputs], attributes)
    return np.asarray(OPERATORS[op_type](call).numpy())


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_equals_the_specification(op_type: str, inputs: Arrays, attributes: dict[str, Any]) -> None:
    want, got = by_reference(op_type, inputs, attributes), by_replay(op_type, inputs, attributes)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


HALF_CASES = [case for case in CASES if case[0] in ("Gemm", "MatMul", "RMSNormalization", "Sigmoid", "Gelu")]


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), HALF_CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_half_precision_is_rounded_at_the_node(op_type: str, inputs: Arrays, attributes: dict[str, Any]) -> None:
    halves = [x.astype(np.float16) for x in inputs]
    exact = by_replay(op_type, [x.astype(np.float64) for x in halves], attributes)
    got = by_replay(op_type, halves, attributes)
    assert got.dtype == np.float16
    # One rounding, and for a norm a second one before the gain.
    np.testing.assert_allclose(got, exact, rtol=2**-10, atol=2**-12)
    assert np.abs(got - exact).max() > 0


def test_products_accumulate_wide() -> None:
    # In half precision the running sum would stop at 2048, where 1 is less than half a unit in the last place.
    ones = np.ones((1, 4096), np.float16)
    assert by_replay("Gemm", [ones, ones], {"transB": 1}).item() == 4096


def test_norm_statistics_follow_stash_type() -> None:
    x, gain = torch.full((1, 8), 300.0, dtype=torch.float16), torch.ones(8, dtype=torch.float16)
    run = OPERATORS["RMSNormalization"]
    single = run(Call("RMSNormalization", "n", [x, gain], {"stash_type": 1, "epsilon": 1e-5}))
    half = run(Call("RMSNormalization", "n", [x, gain], {"stash_type": 10, "epsilon": 1e-5}))
    assert torch.allclose(single, torch.ones_like(single), atol=1e-3)
    # The square of 300 overflows in half precision.
    assert torch.equal(half, torch.zeros_like(half))


def test_a_row_that_sees_nothing_gives_zero() -> None:
    mask = MASK.copy()
    mask[1, 0, 2] = False
    inputs = [floats(2, 6, 4, 10), floats(2, 2, 9, 10), floats(2, 2, 9, 10), mask]
    out = by_replay("Attention", inputs, {"scale": 1.0})
    assert (out[1, :, 2] == 0).all() and (out[1, :, 1] != 0).any() and np.isfinite(out).all()


def test_softmax_precision_is_obeyed() -> None:
    inputs = [floats(2, 6, 4, 10) * 4, floats(2, 2, 9, 10), floats(2, 2, 9, 10), MASK]
    single = by_replay("Attention", inputs, {"scale": 1.0, "softmax_precision": onnx.TensorProto.FLOAT})
    half = by_replay("Attention", inputs, {"scale": 1.0, "softmax_precision": onnx.TensorProto.FLOAT16})
    assert 1e-5 < np.abs(single - half).max() < 0.1


REFUSED: list[tuple[str, Arrays, dict[str, Any], str]] = [
    ("Add", [floats(3), floats(3, dtype="float16")], {}, "differ in type"),
    ("TensorScatter", [floats(1, 3, 9, 5), floats(1, 3, 4, 5), np.array([6])], {"axis": 2}, "leaves the cache of 9"),
    ("RotaryEmbedding", [floats(2, 3, 4, 10), floats(8, 5), floats(8, 5), POSITIONS], {}, "leave its table of 8 rows"),
    ("Gather", [floats(9, 5), np.array([9])], {}, "leave an axis of 9"),
    ("Attention", [floats(2, 6, 4, 10), floats(2, 2, 9, 10), floats(2, 2, 9, 10)], {"is_causal": 1}, "is_causal=1"),
    ("RotaryEmbedding", [floats(1, 3, 4, 10), floats(12, 5), floats(12, 5), POSITIONS[:1]],
     {"rotary_embedding_dim": 4}, "rotary_embedding_dim=4"),
    ("Cast", [floats(3)], {"to": 8}, "to=8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "words"), REFUSED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_what_it_cannot_run_is_refused_by_name(
    op_type: str, inputs: Arrays, attributes: dict[str, Any], words: str
) -> None:
    with pytest.raises(NotJudgedError, match=words) as caught:
        by_replay(op_type, inputs, attributes)
    assert op_type in str(caught.value) and "'one'" in str(caught.value)
