"""`compare --cost`: what it measures, when it decides, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.cli.main import main
from blockexport.compare.core.chapter import CHAPTER
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_cost import LEAST_TOKENS, MOST_TOKENS, CostQuestion, cost_question
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.runtime.eager import EagerDecoder
from tests.compare.memory_checkpoint import MemoryCheckpoint, eager_model
from tests.foreign_files import ForeignExports
from tests.small_models import small_config, small_weights, write_folder

IDS = torch.randint(0, 97, (2_050,), generator=torch.Generator().manual_seed(2)).tolist()
TOKENS = ",".join(map(str, IDS))
COST = ("--check", "parameters", "--no-explain", "--tokens", TOKENS, "--json")
PARTS = ("q", "k", "v", "o", "gate", "up", "down")
DEVIATION = 0.06  # of weights whose predictions four bits do not turn over


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in int4 and in int8."""
    folder = tmp_path_factory.mktemp("cost")
    config = small_config("llama", max_position_embeddings=64)
    model = write_folder(folder / "model", config, small_weights(config, std=DEVIATION))
    for bits in ("int4", "int8"):
        out = ["-o", str(folder / bits), "--quantize", bits, "--quiet", "--no-compare"]
        assert main(["onnx", str(model), *out]) == 0
    return folder


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["compare", *arguments]) == code
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_both_ways_to_run_a_bundle_are_measured_and_neither_decides(
    bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = {}
    for bits in ("int4", "int8"):
        report = report_of(capsys, str(bundles / bits), "--cost", *COST)
        assert report["verdict"] == "pass"
        costs[bits] = report["quantising_cost"]
        assert (costs[bits]["tokens"], costs[bits]["window"]) == (2_049, 64)
        assert costs[bits]["origin"] == "given token ids" and "max_kl" not in costs[bits]
        assert [run["run"] for run in costs[bits]["runs"]] == ["exact", "integer activations (level 4)"]
    exact, integers = ({bits: cost["runs"][i]["kl_mean"] for bits, cost in costs.items()} for i in (0, 1))
    assert 0 < 20 * exact["int8"] < exact["int4"]
    assert integers["int8"] > 1.3 * exact["int8"]  # activations of 8 bits cost what weights of 8 bits do not
    assert costs["int4"]["perplexity"] == costs["int8"]["perplexity"]


def test_a_limit_decides_alone(bundles: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = report_of(capsys, str(bundles / "int4"), "--max-kl", "0", *COST, "--report", str(tmp_path / "r"), code=1)
    assert {check["verdict"] for check in report["checks"]} == {"pass"}
    assert report["quantising_cost"]["max_kl"] == 0
    assert re.search(
        r"too far from the checkpoint: quantising costs a mean KL of \S+ nats .*and 0 were", report["summary"]
    )
    for page in ("report.md", "report.html"):
        written = (tmp_path / "r" / page).read_text()
        assert "What quantising costs" in written and "integer activations (level 4)" in written
        assert "over the first 64\u00a0tokens of the text" in written
    kinds = {kind["kind"]: kind for kind in report["quantising_cost"]["kinds"]}
    assert list(kinds) == ["embed_tokens", *(f"{part}_proj" for part in PARTS), "lm_head"]
    assert [error["layer"] for error in kinds["q_proj"]["errors"]] == [0, 1, 2]
    assert all(0.05 < error["error"] < 0.12 for part in PARTS for error in kinds[f"{part}_proj"]["errors"])
    assert all(0.001 < kinds[end]["errors"][0]["error"] < 0.01 for end in ("embed_tokens", "lm_head"))  # 8 bits
    assert 0 < kinds["lm_head"]["kl_mean"] < kinds["down_proj"]["kl_mean"]
    page = (tmp_path / "r" / "report.html").read_text()
    assert 'title="down_proj, layer 2: ' in page and page.count('<td class="cell e') == 7 * 3 + 2
    assert report_of(capsys, str(bundles / "int4"), "--max-kl", "50", *COST)["verdict"] == "pass"


def test_eager_runs_the_weights_of_the_bundle(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In floats, as the file does exactly: it loses the same."""
    costs = {
        backend: report_of(
            capsys, str(bundles / "int4"), "--cost", *COST[2:], "--backend", backend, "--check", "decode"
        )
        for backend in ("eager", "onnxruntime")
    }
    (eager,), (exact, _) = (report["quantising_cost"]["runs"] for report in costs.values())
    assert costs["eager"]["verdict"] == "pass"
    assert eager["run"] == exact["run"] == "exact"
    assert eager["kl_mean"] == pytest.approx(exact["kl_mean"], rel=1e-4) and exact["kl_mean"] > 1e-4


def test_another_backend_has_one_way_to_run_it(bundles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(bundles / "int8"), "--cost", *COST[:-1], "--backend", "replay"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "exact" in said and "level 4" not in said
    assert "a measurement, no verdict" in said and "in 33 windows of at most 64 tokens" in said


def test_another_tools_file_is_measured_as_it_is_judged_and_as_it_is_shipped(
    foreign: ForeignExports, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ("--onnx", str(foreign.genai("llama", "int4")), "--model", str(foreign.source()), "-M", "40")
    exact, shipped = report_of(capsys, *file, "--cost", *COST)["quantising_cost"]["runs"]
    assert (exact["run"], shipped["run"]) == ("exact", "integer activations (as the file says)")
    assert exact["kl_mean"] > 0 and shipped["kl_mean"] != exact["kl_mean"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--cost",), 3, "there is no tokenizer to read one with: give token ids with --tokens"),
        (("--cost", "--tokens", "1,2,3"), 2, "--cost needs 2,000 tokens, and there are 3 (given token ids): give"),
        (("--max-kl", "nan"), 2, "--max-kl nan: a limit on the mean KL is a number of nats"),
        (("--max-kl", "-1"), 2, "--max-kl -1: a limit on the mean KL is a number of nats"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_judged(
    options: tuple[str, ...], code: int, said: str, bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(bundles / "int4"), *options]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and said in " ".join(captured.err.split())


def asked(checkpoint: MemoryCheckpoint, not_quantised: str = "", **options: Any) -> CostQuestion | None:
    decoder = EagerDecoder(eager_model(checkpoint, headless=bool(options.pop("headless", False))), 8)
    return cost_question(checkpoint, decoder, JudgeOptions(**{"cost": True, **options}), not_quantised)


def words(text: str) -> list[int]:
    """Fewer tokens than any model's own tokenizer makes."""
    return [len(word) for word in text.split()]


def test_the_built_in_chapter_is_long_enough_and_a_long_text_is_cut(tiny: MemoryCheckpoint) -> None:
    found = asked(tiny, encode=words)
    assert found is not None and len(found.ids_S) == len(words(CHAPTER)) >= LEAST_TOKENS
    assert "Alice" in found.origin
    found = asked(tiny, encode=words, text="one two three " * 3_000)
    assert found is not None and len(found.ids_S) == MOST_TOKENS
    assert found.origin == "first 8,192 tokens of the given text"


def test_nothing_is_asked_by_default_and_no_cost_is_made_up(tiny: MemoryCheckpoint) -> None:
    assert asked(tiny, cost=False) is None
    with pytest.raises(UsageError, match="the bundle's weights are not quantised: leave it away"):
        asked(tiny, "the bundle's weights are not quantised", encode=words)
    with pytest.raises(NotJudgedError, match="a bundle without logits makes none"):
        asked(tiny, encode=words, headless=True)
