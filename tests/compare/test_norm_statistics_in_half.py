"""SmolLM2-135M in fp16: sound in ONNX Runtime and in the replay; with norm statistics in half, only the replay sees it.

The residual stream of this model reaches tens of thousands, whose squares overflow in half precision. ONNX Runtime
widens fp16 norms to float32 on a CPU, so its result cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import bundle_options
from blockexport.compare.report.report import Report
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.conftest import TABLE
from tests.exported import export
from tests.support import smollm2_gguf
from tests.zoo_bench import Bench

pytestmark = pytest.mark.full
SLOTS = 64
CHECKS = ("prefill", "decode", "last-slot", "types")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(str(smollm2_gguf()))


@pytest.fixture(scope="module")
def bundle(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half") / "sound"
    export(checkpoint, folder, Precision.FP16, slots=SLOTS)
    return folder


def verdicts(folder: Path, checkpoint: Checkpoint, backend: str, record: Callable[[str, str], None]) -> Report:
    report = judge(
        open_decoder(folder, backend, verify="nothing"),
        checkpoint,
        bundle_options(folder, backend, JudgeOptions(checks=CHECKS)),
    )
    for result in report.checks:
        if found := result.stretch:
            error = f"rms {found.rms:.2g}, floor {found.rms_floor:.2g}, ratio {found.rms_ratio:.3g}"
            record(TABLE, f"{folder.name:8} {backend:12} {result.name:10} {result.verdict:5} {error}")
    return report


def failed(report: Report) -> set[str]:
    return {result.name for result in report.checks if result.verdict is Verdict.FAIL}


def test_only_the_replay_sees_statistics_in_half(
    bundle: Path, checkpoint: Checkpoint, record_property: Callable[[str, str], None]
) -> None:
    bench = Bench(bundle, checkpoint.config)
    for node in bench.nodes("RMSNormalization", everywhere=True):
        node.attributes["stash_type"] = ir.AttrInt64("stash_type", int(ir.DataType.FLOAT16))
    spoilt = bench.save(bundle.parent / "spoilt", bundle)
    sound = {name: verdicts(bundle, checkpoint, name, record_property) for name in ("onnxruntime", "replay")}
    halved = {name: verdicts(spoilt, checkpoint, name, record_property) for name in ("onnxruntime", "replay")}
    assert failed(sound["onnxruntime"]) == failed(sound["replay"]) == set()
    assert failed(halved["onnxruntime"]) == {"types"}
    assert failed(halved["replay"]) == {"prefill", "decode", "last-slot", "types"}
    assert sound["replay"].artifact.arithmetic.is_target
    assert not sound["onnxruntime"].artifact.arithmetic.is_target
    assert ONNX_FILE in {path.name for path in spoilt.iterdir()}
