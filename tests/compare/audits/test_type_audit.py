"""The audit of types: silent on what the exporter writes, and one sentence for each thing that is not as asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from blockexport.compare.audits.type_audit import TypeAudit, audit_types
from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import bundle_options
from blockexport.compare.report.report import Report
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.compare.static_judge import figures_of
from tests.exported import EVERYTHING, export, random_model
from tests.zoo_bench import Bench
from tests.zoo_edits_block import norm_half

LAYERS = EVERYTHING.num_hidden_layers


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    folder = tmp_path_factory.mktemp("audit")
    for precision in Precision:
        export(random_model(), folder / precision, precision)
    return {precision: folder / precision for precision in Precision}


@pytest.mark.parametrize("precision", Precision)
def test_exported_files_are_what_they_were_asked_to_be(bundles: dict[Precision, Path], precision: Precision) -> None:
    audit = audit_types(ir.load(bundles[precision] / ONNX_FILE).graph, precision, LAYERS)
    assert audit.problems == []
    rows = {row.role: row.found for row in audit.rows}
    own = {"fp32": "FLOAT", "fp16": "FLOAT16", "bf16": "BFLOAT16"}[precision]
    assert rows["residual stream"] == {own: LAYERS + 1}
    assert rows["norm statistics"] == {"FLOAT": 4 * LAYERS + 1}
    assert rows["RoPE"] == {"FLOAT": 2 * LAYERS}
    assert rows["attention inputs and output"] == {own: 4 * LAYERS}
    assert rows["cache"] == {own: 4 * LAYERS}
    # Two casts around each RotaryEmbedding and around the scaling of q, none elsewhere.
    assert audit.casts == (0 if precision is Precision.FP32 else 6 * LAYERS)


def test_fp32_in_the_place_of_fp16_is_named(bundles: dict[Precision, Path]) -> None:
    problems = audit_types(ir.load(bundles[Precision.FP32] / ONNX_FILE).graph, Precision.FP16, LAYERS).problems
    assert any(p.startswith("weights: ") and p.endswith("in FLOAT, wanted FLOAT16") for p in problems)
    assert any(p.startswith("residual stream: 4 in FLOAT") for p in problems)


def half_statistics(bench: Bench) -> None:
    node = bench.node("model.layers.1.input_layernorm.rms_norm")
    node.attributes["stash_type"] = ir.AttrInt64("stash_type", int(ir.DataType.FLOAT16))


def half_rope(bench: Bench) -> None:
    for node in list(bench.named("self_attn.rotary_embedding.widened")):
        bench.put(node.outputs[0], node.inputs[0])  # type: ignore[arg-type]


def half_softmax(bench: Bench) -> None:
    for node in bench.nodes("Attention"):
        node.attributes["softmax_precision"] = ir.AttrInt64("softmax_precision", int(ir.DataType.FLOAT16))


def wide_stream(bench: Bench) -> None:
    node = bench.node("model.layers.1.add_1")
    bench.become(node, bench.add("Cast", node.outputs[0], to=int(ir.DataType.FLOAT)))


SPOILT: list[tuple[Callable[[Bench], None], Precision, str]] = [
    (half_statistics, Precision.FP16, "norm statistics: 12 in FLOAT, 1 in FLOAT16, wanted FLOAT"),
    (norm_half, Precision.FP32, "norm statistics: 13 in FLOAT16, wanted FLOAT"),
    (half_rope, Precision.FP16, "RoPE: 3 in FLOAT16, 3 in FLOAT, wanted FLOAT"),
    (half_softmax, Precision.FP16, "softmax: 3 in FLOAT16, wanted FLOAT"),
    (wide_stream, Precision.FP16, "residual stream: 2 in FLOAT16, 2 in FLOAT, wanted FLOAT16"),
]


@pytest.mark.parametrize(("spoil", "precision", "sentence"), SPOILT, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_not_as_asked_is_one_sentence(
    bundles: dict[Precision, Path], spoil: Callable[[Bench], None], precision: Precision, sentence: str
) -> None:
    bench = Bench(bundles[precision], EVERYTHING)
    spoil(bench)
    bench.graph.sort()
    assert sentence in audit_types(bench.graph, precision, LAYERS).problems


def judged(folder: Path) -> Report:
    options = bundle_options(folder, "replay", JudgeOptions(checks=("types",)))
    return judge(open_decoder(folder, "replay", verify="nothing"), random_model(), options)


def test_the_audit_is_a_check(bundles: dict[Precision, Path], tmp_path: Path) -> None:
    (sound,) = judged(bundles[Precision.FP16]).checks
    assert sound.verdict is Verdict.PASS and "attention and cache in float16" in sound.message
    bench = Bench(bundles[Precision.FP16], EVERYTHING)
    half_statistics(bench)
    (spoilt,) = judged(bench.save(tmp_path / "spoilt", bundles[Precision.FP16])).checks
    assert spoilt.verdict is Verdict.FAIL
    assert spoilt.message == "norm statistics: 12 in FLOAT, 1 in FLOAT16, wanted FLOAT"
    assert figures_of(spoilt, TypeAudit).found["norm statistics"] == {"FLOAT": 12, "FLOAT16": 1}
