"""What `compare` says about a file that fails, `--locate`, and what a crash of its own is."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.cli.main import main
from blockexport.compare.core.cached_path import CachedPath, Case
from blockexport.compare.core.defect import NOTHING_WRONG
from blockexport.compare.report.report_text import capital, full_stop
from blockexport.library import compare_bundle
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import ArtifactError
from blockexport.runtime.onnx_decoder import OnnxDecoder, failed_node
from tests.exported import export
from tests.small_models import small_config, small_weights, write_folder
from tests.zoo_bench import Bench
from tests.zoo_edits_block import gelu
from tests.zoo_edits_position import decode_position

CONFIG = small_config("qwen3")


def crash(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a mistake of ours")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    write_folder(folder / "source", CONFIG, small_weights(CONFIG))
    export(open_checkpoint(str(folder / "source")), folder / "sound", slots=32)
    return folder / "sound"


@pytest.fixture(scope="module")
def spoilt(sound: Path) -> Path:
    """GELU for SiLU in layer 1."""
    return spoil(sound, CONFIG, "spoilt", gelu("none"))


def spoil(sound: Path, config: ModelConfig, name: str, edit: Callable[[Bench], None]) -> Path:
    bench = Bench(sound, config, [1])
    edit(bench)
    return bench.save(sound.parent / name, sound)


def compare(*arguments: object) -> int:
    return main(["compare", *map(str, arguments)])


def test_the_verdict_comes_first_then_place_and_cause(spoilt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(spoilt, "--check", "prefill") == 1
    said = capsys.readouterr()
    order = ("FAIL: ", "prefill fail", "First difference at position 0", "Likely cause")
    places = [said.out.index(words) for words in order]
    assert places == sorted(places)
    assert "looking for the place and the cause of the difference (--no-explain leaves this out)" in said.err


def test_no_explain_gives_the_verdict_alone(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockexport.compare.explain.explain.locate", crash)
    assert compare(spoilt, "--no-explain", "--report", tmp_path) == 1
    said = capsys.readouterr()
    assert said.out.startswith("FAIL: ") and "First difference" not in said.out and said.err == ""
    assert json.loads((tmp_path / "report.json").read_text())["explanation"] is None
    assert compare(spoilt, "--no-explain", "--locate") == 2
    assert "--locate and --no-explain contradict each other" in capsys.readouterr().err


def test_quiet_is_the_verdict_the_place_and_the_cause(
    sound: Path, spoilt: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert compare(sound, "--check", "prefill", "-q") == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["PASS:"]
    assert compare(spoilt, "--check", "prefill", "-q") == 1
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["FAIL:", "Note:", "First", "Likely"]
    assert said.err == ""


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_interrupt_leaves_the_verdict_and_no_report(
    spoilt: Path,
    tmp_path: Path,
    form: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blockexport.compare.explain.explain.locate", interrupt)
    assert compare(spoilt, "--report", tmp_path / "report", *form) == 130
    said = capsys.readouterr()
    # With --json stdout holds one document or nothing, so the verdict is on stderr.
    assert said.out.startswith("FAIL: ") if form == () else said.out == ""
    assert form == () or said.err.startswith("FAIL: ")
    assert "the explanation was interrupted; the verdict stands: FAIL. No report was written" in said.err
    assert not (tmp_path / "report").exists()


def test_place_and_cause_are_in_every_form(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert compare(spoilt, "--report", tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    said = json.loads((tmp_path / "report.json").read_text())["explanation"]["sentences"]
    assert said[0].startswith("first difference at position 0: layer 1, activation of the MLP")
    assert said[1].startswith("likely cause, reproduced to ") and said[1].endswith("(only in layer 1)")
    assert lines[0].startswith("FAIL: ") and lines[-len(said) :] == [full_stop(capital(sentence)) for sentence in said]
    markdown = (tmp_path / "report.md").read_text().splitlines()
    assert markdown[4] == "## First difference and likely cause"
    assert markdown[6 : 6 + len(said)] == [f"- {full_stop(capital(sentence))}" for sentence in said]
    page = (tmp_path / "report.html").read_text()
    assert page.index("First difference") < page.index("Likely cause") < page.index("Error against the noise floor")


def test_a_failure_of_the_file_alone_is_its_own_cause(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A weight that is in the file twice: outputs are right, so there is no first difference."""

    def copy_one(bench: Bench) -> None:
        value = bench.value("model.norm.weight")
        assert value.const_value is not None
        bench.constant(value.const_value.numpy(), "float32")

    twice = spoil(sound, CONFIG, "twice", copy_one)
    assert compare(twice, "--report", tmp_path) == 1
    assert "first difference" not in capsys.readouterr().out.lower()
    report = json.loads((tmp_path / "report.json").read_text())
    failed = [check for check in report["checks"] if check["verdict"] == "fail"]
    assert [check["name"] for check in failed] == ["parameters"]
    assert report["explanation"]["sentences"] == [f"likely cause: {failed[0]['message']}"]


def one_wrong_weight(bench: Bench) -> None:
    value = bench.value("model.layers.1.mlp.down_proj.weight")
    assert value.const_value is not None
    weights = value.const_value.numpy().copy()
    weights[3, 5] += 1.0
    wrong = bench.constant(weights, "float32")
    for node in bench.named("mlp.down_proj.linear"):
        node.replace_input_with(1, wrong)


def test_defects_are_tried_on_the_layer_that_differs(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that layer excludes, nearly all of the catalogue, is not run through the model."""
    tried: list[Case] = []
    run = CachedPath.run

    def counted(self: CachedPath, cases: Sequence[Case], *rest: Any, **options: Any) -> list[torch.Tensor]:
        tried.extend(case for case in cases if case.defect is not NOTHING_WRONG)
        return run(self, cases, *rest, **options)

    monkeypatch.setattr(CachedPath, "run", counted)
    assert compare(spoil(sound, CONFIG, "weight", one_wrong_weight), "--check", "prefill", "--report", tmp_path) == 1
    found = json.loads((tmp_path / "report.json").read_text())["explanation"]
    assert (found["located"]["layer"], found["located"]["site"]) == (1, "down_proj")
    assert found["causes"] == [] and found["tried"] > 40
    # Those that do next to nothing to that layer in that call are run, to be told from what is excluded.
    decode_only = {"position_ahead", "position_behind", "slot_early", "slot_zero"}
    assert {name for case in tried if not (name := case.defect.name).startswith("eps_")} <= decode_only


def set_weight(folder: Path, name: str, index: int, value: float) -> None:
    """Write one value of a tensor in model.safetensors."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    start = 8 + length + json.loads(content[8 : 8 + length])[name]["data_offsets"][0] + 4 * index
    content[start : start + 4] = struct.pack("<f", value)
    path.write_bytes(content)


def test_a_wrong_weight_is_named_whatever_checks_were_asked_for(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Path(shutil.copytree(sound, sound.parent / "wrong-weight"))
    name = "model.layers.1.self_attn.k_proj.weight"
    set_weight(wrong, name, 100, 7.5)
    likely = f"likely cause: {name} differs in 1 of "
    report = compare_bundle(wrong, checks=["decode"])
    assert report.explanation is not None and "is 7.5 and the checkpoint's" in report.explanation.cause_sentences[0]
    assert [sentence.startswith(likely) for sentence in report.explanation.cause_sentences] == [True]
    assert compare(wrong, "--check", "decode", "--json") == 1
    said = json.loads(capsys.readouterr().out)["explanation"]
    assert said["located"]["layer"] == 1 and any(sentence.startswith(likely) for sentence in said["sentences"])
    assert [check.name for check in report.checks] == ["decode"]


def test_locate_on_a_file_that_passes(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(sound, "--locate", "--report", tmp_path) == 0
    said = capsys.readouterr()
    assert "Every value inside the graph stays within the floor in the calls looked into" in said.out
    assert said.err.startswith("looking inside the graph, value by value\n")
    explanation: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())["explanation"]
    assert explanation["located"] is None and explanation["reproduced"] and explanation["tried"] == 0
    values = explanation["values"]
    # The prompt, the step after it, one on the way, and the last slot; every layer in each.
    assert sorted(set(values["call"])) == [0, 16, 24, 31] and not any(values["outside"])
    assert set(values["layer"]) == {None, 0, 1, 2} and max(values["error"]) > 0
    page = (tmp_path / "report.html").read_text()
    assert "Error over layers" in page and "First difference" in page and "Likely cause" not in page
    within = "Every value inside the graph stays within the floor in the calls looked into, 4 of 6 "
    within += "(positions 0 to 15, 16, 24, 31)."
    assert within in (tmp_path / "report.md").read_text() and within in page


def test_without_locate_a_file_that_passes_is_not_looked_into(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(sound, "--check", "prefill", "--json") == 0
    assert json.loads(capsys.readouterr().out)["explanation"] is None


@pytest.mark.parametrize("backend", ["eager", "pt2", "aoti"])
def test_locate_needs_a_graph(sound: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(sound, "--locate", "--backend", backend) == 2
    assert f"{backend} runs none" in capsys.readouterr().err


def test_a_graph_that_fails_in_some_calls_is_bad_and_explained(sound: Path, tmp_path: Path) -> None:
    """One position too low in decode: a first call of one token asks for the angle of position -1."""
    assert compare(spoil(sound, CONFIG, "after", decode_position(-1)), "--report", tmp_path) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    said = {check["name"]: check["message"] for check in report["checks"] if check["verdict"] == "fail"}
    assert "fails in the graph: RotaryEmbedding node" in said["chunked"] and "rms error" in said["decode"]
    assert report["explanation"]["causes"][0]["name"] == "position_behind"


def test_a_graph_that_fails_in_every_call_is_bad(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def before_the_table(bench: Bench) -> None:
        positions = bench.add("Sub", "position_ids", bench.constant([1]))
        for node in bench.nodes("RotaryEmbedding"):
            node.replace_input_with(3, positions)

    never = spoil(sound, CONFIG, "never", before_the_table)
    assert compare(never, "--report", tmp_path) == 1
    said = "Not located, for without its outputs nothing inside the file can be compared: ONNX Runtime"
    assert said in " ".join(capsys.readouterr().out.split())
    report = json.loads((tmp_path / "report.json").read_text())
    failed = {check["name"] for check in report["checks"] if check["verdict"] == "fail"}
    assert failed >= {"prefill", "decode", "batch", "greedy"} and report["positions"] == {}


def test_only_a_node_of_the_graph_is_the_artifacts_fault() -> None:
    node = RuntimeError("Non-zero status code returned while running Gather node. Name:'g' Status Message: indices")
    found = failed_node(node)
    assert isinstance(found, ArtifactError) and str(found).endswith(
        "fails in the graph: Gather node. Name:'g' Status Message: indices"
    )
    memory = RuntimeError("Non-zero status code returned while running MatMul node. Failed to allocate memory")
    ours = RuntimeError("Invalid input name: position_idss")
    assert failed_node(memory) is memory and failed_node(ours) is ours
    sizes = RuntimeError("... while running X node. UnpackTensor: the pre-allocate size does not match the size")
    assert isinstance(failed_node(sizes), ArtifactError)


@pytest.mark.parametrize(
    "where",
    [
        "blockexport.compare.judge.make_plan",
        "blockexport.compare.core.expected.measure",
        "blockexport.compare.explain.explain.locate",
        "blockexport.compare.explain.explain.diagnose",
        "blockexport.compare.report.report_markdown.to_markdown",
    ],
)
def test_a_crash_of_compare_is_no_verdict(
    spoilt: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even on a file that is bad: exit 70, no report, and nothing on stdout unless only the report failed."""
    monkeypatch.setattr(where, crash)
    assert compare(spoilt, "--report", tmp_path / "report", "--json") == 70
    captured = capsys.readouterr()
    assert (captured.out == "") is not where.endswith("to_markdown")  # the verdict is printed before it is written
    assert "a mistake of ours" in captured.err and "This is a bug of ours" in captured.err
    assert not list((tmp_path / "report").glob("*"))


def test_a_crash_of_the_artifacts_run_is_no_verdict(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxDecoder, "_run", crash)
    assert compare(sound, "--check", "prefill") == 70
