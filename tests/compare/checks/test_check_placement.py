"""Which nodes of a graph may run on the processor, and what ONNX Runtime's log says of attention."""

from __future__ import annotations

import os
import sys

import onnx_ir as ir
import pytest
import torch

from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.runtime.compute_device import ComputeDevice
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.onnx_placement import Placement, attention_kernels, log_of
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import TINY, eager_model, random_checkpoint

ids, table = ir.val("ids", ir.DataType.INT64, [2, 5]), ir.val("table", const_value=ir.tensor([1.0, 2.0]))
shape = ir.node("Shape", [ids], name="shape")
squeeze = ir.node("Squeeze", [shape.outputs[0]], name="length")
gather = ir.node("Gather", [table, ids], name="rows")
widened = ir.node("DequantizeLinear", [table, table], name="widened")
reshape = ir.node("Reshape", [gather.outputs[0], squeeze.outputs[0]], name="reshape")
GRAPH = ir.Graph([ids], reshape.outputs, nodes=[shape, squeeze, gather, widened, reshape], opset_imports={"": 24})


class Placed(EagerDecoder):
    """What says that it runs on a GPU, and where its nodes are."""

    found: Placement | None

    def placement(self) -> Placement | None:
        return self.found


def judged(*elsewhere: tuple[str, str], told: bool = True, device: str = "cuda") -> tuple[Verdict, str]:
    checkpoint = random_checkpoint(TINY)
    decoder = Placed(eager_model(checkpoint, torch.float32), 16)
    decoder.device = ComputeDevice(device)
    decoder.found = Placement({"a step": ["Flash"], "a prompt": []}, 7, list(elsewhere)) if told else None
    (result,) = judge(decoder, checkpoint, JudgeOptions(checks=("placement",), graph=lambda: GRAPH)).checks
    return result.verdict, result.message


def test_what_computes_with_lengths_alone_may_run_on_the_processor() -> None:
    verdict, said = judged(("Shape", "shape"), ("Squeeze", "length"))
    assert verdict is Verdict.PASS
    assert said == (
        "attention in a step: Flash; attention in a prompt: not told; 7 of 9 nodes on the GPU, the others compute with "
        "shapes: Shape (shape), Squeeze (length)"
    )
    assert judged()[1].endswith("7 of 7 nodes on the GPU")


@pytest.mark.parametrize("name", ["rows", "widened", "reshape", "made by the runtime"])
def test_everything_else_is_a_finding(name: str) -> None:
    verdict, said = judged(("Squeeze", "length"), ("Operator", name))
    assert verdict is Verdict.FAIL
    assert said.startswith(f"on the processor, and computing more than shapes: Operator ({name}); a newer")
    assert " and 2 more; a newer" in judged(*[("Operator", name)] * 7)[1]


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert judged(told=False)[0] is Verdict.NOT_JUDGED
    verdict, said = judged(("Operator", "rows"), device="cpu")
    assert verdict is Verdict.NOT_JUDGED and "no ONNX graph runs on a GPU here" in said


def test_the_log_names_kernels(capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        "ONNX Attention: using Flash Attention (batch=1, q_seq=5)",
        "ONNX Attention: using cuDNN SDPA (batch=1)",
        "Attention: using unified unfused path (is_gqa=1)",
        "ONNX Attention: using Memory Efficient Attention (batch=1)",
    ]
    log = log_of(lambda: os.write(2, "\n".join(lines * 2).encode()))
    assert attention_kernels(log) == ["Flash", "Memory Efficient", "cuDNN SDPA", "unified unfused"]
    sys.stderr.write("heard again")
    sys.stderr.flush()
    assert capfd.readouterr().err == "heard again"
