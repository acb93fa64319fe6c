"""Files that give embeddings, judged: what is right passes in every precision, and what is wrong is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from blockexport.compare.core.check import Verdict
from blockexport.compare.explain.defects import title_of
from blockexport.compare.explain.defects_pooling import pooling_defects
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import judge_bundle
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint
from blockexport.models.interface import Ends
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from tests.exported import export, random_model
from tests.zoo_bench import Bench, Spoil

SLOTS = 37
MODEL = random_model(num_hidden_layers=2, layer_types=("full_attention", "sliding_attention"))
LAST, MEAN = Ends.LAST_EMBEDDING, Ends.MEAN_EMBEDDING
full = pytest.mark.full


def judged(bundle: Path, *checks: str, model: RandomCheckpoint = MODEL, backend: str = "onnxruntime") -> Report:
    """The whole report."""
    options = JudgeOptions(checks=checks, prefill=16, decode_steps=13)
    return judge_bundle(bundle, options, backend=backend, made_of=model).explained()


@pytest.mark.parametrize(
    ("ends", "precision", "quantize", "backend"),
    [
        (MEAN, Precision.FP32, None, "onnxruntime"),
        pytest.param(LAST, Precision.FP32, None, "onnxruntime", marks=full),
        pytest.param(Ends.LAST_STATE, Precision.FP16, None, "onnxruntime", marks=full),
        pytest.param(MEAN, Precision.FP16, None, "onnxruntime", marks=full),
        pytest.param(MEAN, Precision.BF16, None, "replay", marks=full),
        pytest.param(LAST, Precision.FP32, "int4", "onnxruntime", marks=full),
        pytest.param(Ends.MEAN_STATE, Precision.FP16, "int8", "onnxruntime", marks=full),
    ],
)
def test_a_sound_file_passes_every_check_that_applies(
    tmp_path: Path, ends: Ends, precision: Precision, quantize: str | None, backend: str
) -> None:
    quantisation = None if quantize is None else quantisation_of(quantize)
    export(MODEL, tmp_path, precision, SLOTS, ends=ends, quantisation=quantisation)
    report = judged(tmp_path, backend=backend)
    assert report.verdict is Verdict.PASS
    skipped = {one.name for one in report.skipped} & {"greedy", "integers"}
    assert skipped == ({"greedy"} if quantize else {"greedy", "integers"})
    assert report.golden is not None and report.golden.output == "embeddings"
    (result,) = judged(tmp_path, "serving", backend=backend).checks
    assert result.verdict is Verdict.NOT_JUDGED and "an embedding is one call" in result.message


def spoilt(ends: Ends, folder: Path, spoil: Spoil) -> Path:
    """A bundle with something wrong after its last norm."""
    export(MODEL, folder / "sound", slots=SLOTS, ends=ends)
    bench = Bench(folder / "sound", MODEL.config)
    spoil(bench)
    return bench.save(folder / "spoilt", folder / "sound")


def at(column: Callable[[Bench], ir.Value]) -> Spoil:
    """Another column in the place of the last token's."""
    return lambda bench: bench.put(bench.value("sub_1"), column(bench))


def last_column(bench: Bench) -> ir.Value:
    """What stands there in a short row is padding."""
    size = bench.add("Shape", "position_ids", start=1, end=2)
    return bench.add("Sub", bench.add("Expand", size, bench.add("Shape", "select")), bench.constant(1))


def token_before(bench: Bench) -> ir.Value:
    return bench.add("Max", bench.add("Sub", "sub_1", bench.constant(1)), bench.constant(0))


def first_token(bench: Bench) -> ir.Value:
    return bench.add("Mul", "sub_1", bench.constant(0))


def by_one(bench: Bench) -> None:
    """Divided by 1 and not by the length."""
    bench.put(bench.value("clamp"), bench.add("Div", "clamp", "clamp"))


CASES: list[tuple[Ends, Spoil, str]] = [
    (MEAN, at(token_before), "mean_without_last"),
    (MEAN, at(first_token), "pool_first"),
    (MEAN, by_one, "normalize_missing"),
    (LAST, at(token_before), "pool_before_last"),
    (LAST, at(first_token), "pool_first"),
    (LAST, by_one, "normalize_missing"),
]


@pytest.mark.parametrize(
    ("ends", "spoil", "defect"),
    [pytest.param(*case, id=f"{case[2]}-{case[0].name}", marks=full if i else ()) for i, case in enumerate(CASES)],
)
def test_wrong_pooling_is_located_and_named(tmp_path: Path, ends: Ends, spoil: Spoil, defect: str) -> None:
    report = judged(spoilt(ends, tmp_path, spoil), "prefill", "decode")
    assert report.verdict is Verdict.FAIL
    found = report.explanation
    assert found is not None and found.search is not None and found.search.location is not None
    assert found.search.location.site == "embeddings" and found.search.reproduced
    assert found.diagnosis is not None and found.diagnosis.findings[0].name == defect


@full
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (LAST, "the embedding is of the last column, which is padding"),
        (MEAN, "the mean is taken over the padding, too"),
    ],
)
def test_padding_that_counts_is_named(tmp_path: Path, ends: Ends, said: str) -> None:
    """A prompt by itself is right: only rows with padding show it."""
    bundle = spoilt(ends, tmp_path, at(last_column))
    results = {one.name: one for one in judged(bundle, "prefill", "padding", "batch").checks}
    verdicts = {name: one.verdict for name, one in results.items()}
    assert verdicts == {"prefill": Verdict.PASS, "batch": Verdict.FAIL, "padding": Verdict.FAIL}
    assert said in results["padding"].message


@full
def test_a_wrong_weight_is_located(tmp_path: Path) -> None:
    export(MODEL, tmp_path, slots=SLOTS, ends=MEAN)
    other = random_model(num_hidden_layers=2, layer_types=("full_attention", "sliding_attention"))
    wrong = "model.layers.1.mlp.up_proj.weight"
    read = other.read
    other.read = lambda name: read(name) * (1.5 if name == wrong else 1)  # type: ignore[method-assign]
    report = judged(tmp_path, model=other)
    assert report.verdict is Verdict.FAIL
    found = report.explanation
    assert found is not None and found.search is not None and found.search.location is not None
    assert (found.search.location.layer, found.search.location.site) == (1, "up_proj")
    assert any(wrong in said for said in found.file)


@pytest.mark.parametrize("ends", [ends for ends in Ends if ends.pooling is not None], ids=lambda ends: ends.name)
def test_every_defect_of_pooling_has_a_title(ends: Ends) -> None:
    names = [defect.name for defect in pooling_defects(ends)]
    assert len(set(names)) == len(names) >= 4
    assert all(title_of(name) for name in names)
    assert pooling_defects(Ends.LOGITS) == []
