"""The bug zoo for quantisation: `compare` exits 1 on each mistake in a file, says in which matrix, and names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from blockexport.cli.main import main
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.quantisation import quantisation_of
from blockexport.models.quantised_matrix import QuantisationScheme
from tests.coded_zoo import CODED_EXHIBITS, CodedExhibit, sound
from tests.coded_zoo_judge import CodedCage, coded_cage, edits, found_in
from tests.exported import EVERYTHING, gainful
from tests.foreign_files import build_with_genai, changed, write_words
from tests.made_once import MadeOnce
from tests.small_models import small_config, small_weights, write_folder
from tests.support import shared_path
from tests.zoo import EXHIBITS
from tests.zoo_judge import Record, build_cage, compare, judge_exhibit

SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 224,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
"""Multiples of a block, for scales along the wrong axis are as many there; and all different."""

LATE = "model.layers.1.mlp.down_proj.weight"  # of the other tool's file
Cages = Callable[[str, int], CodedCage]


def checkpoint_of(model: str) -> Checkpoint:
    if model == "stories260K":
        return open_checkpoint(str(shared_path("models/stories260K")))
    return gainful(replace(EVERYTHING, **SIZES))


@pytest.fixture(scope="module")
def cages(tmp_path_factory: pytest.TempPathFactory) -> Cages:
    """`cages(model, bits)`: made when it is first asked for."""
    folder = tmp_path_factory.mktemp("coded-zoo")

    def make(model: str, bits: int) -> CodedCage:
        return coded_cage(checkpoint_of(model), folder / f"{model}-{bits}", quantisation_of(f"int{bits}"))

    return cache(make)


def case(exhibit: CodedExhibit, bits: int, model: str, every: bool) -> ParameterSet:
    """Left to `make test-full` are int8 where int4 has the mistake as well, and one matrix of the trained model."""
    mark = pytest.mark.full if bits != exhibit.bits[0] or (model != "random" and not every) else ()
    name = f"{exhibit}-int{bits}-{model}-{'all' if every else 'one'}"
    return pytest.param(exhibit, bits, model, every, id=name, marks=mark)


CASES = [
    case(exhibit, bits, model, every)
    for exhibit in CODED_EXHIBITS
    for bits in exhibit.bits
    for model in ("random", "stories260K")
    for every in (False, True)
]


@pytest.mark.parametrize(("exhibit", "bits", "model", "every"), CASES)
def test_a_mistake_is_detected_located_and_named(
    exhibit: CodedExhibit, bits: int, model: str, every: bool, cages: Cages, tmp_path: Path
) -> None:
    """In one matrix of the last layer, and in all that it can be made in."""
    made = cages(model, bits)
    names = made.matrices(exhibit)
    last = made.cage.checkpoint.config.num_hidden_layers - 1
    if not every:
        names = [name for name in names if name.startswith(f"model.layers.{last}.")][-1:]
    assert names
    bad = made.spoilt(tmp_path / "bad", names, exhibit.build)
    code, report = compare(made.cage, bad, tmp_path / "parity", "--check", "parameters")
    assert code == 1
    found_in(report, names, exhibit.mistake)


@pytest.mark.parametrize("exhibit", [e for e in CODED_EXHIBITS if e.sound], ids=str)
def test_what_a_mistake_is_made_with_is_sound(exhibit: CodedExhibit, cages: Cages, tmp_path: Path) -> None:
    if exhibit.mistake == "zero_point_ignored":
        return  # a bundle has no zero points; another tool's file below has
    assert exhibit.sound is not None
    made = cages("random", exhibit.bits[0])
    good = made.spoilt(tmp_path / "good", made.matrices(exhibit), exhibit.sound)
    code, _ = compare(made.cage, good, tmp_path / "parity", "--check", "parameters")
    assert code == 0


def test_outputs_say_nothing_of_wrong_weights(cages: Cages, tmp_path: Path) -> None:
    """All checks run: the graph computes what its weights ask for, and the report says what is wrong with those."""
    exhibit = next(e for e in CODED_EXHIBITS if e.mistake == "nibbles_swapped")
    made = cages("random", 4)
    bad = made.spoilt(tmp_path / "bad", [made.matrices(exhibit)[-1]], exhibit.build)
    code, report = compare(made.cage, bad, tmp_path / "parity")
    assert code == 1
    found_in(report, [made.matrices(exhibit)[-1]], exhibit.mistake)
    assert {"prefill", "decode"} <= {check["name"] for check in report["checks"] if check["verdict"] == "pass"}
    assert "the two codes in each byte have changed places" in (tmp_path / "parity" / "report.html").read_text()


GRAPH = (("random", "k_v_swapped"), ("stories260K", "k_v_swapped"))  # q, k and v part before QK-norm, or as heads
GRAPH_FULL = ("gelu", "rope_interleaved", "heads_tiled", "o_proj_bias_dropped", "mask_sees_next", "slot_late")


@pytest.mark.parametrize(
    ("model", "name"), [*GRAPH, *(pytest.param("random", name, marks=pytest.mark.full) for name in GRAPH_FULL)]
)
def test_a_mistake_of_the_graph_is_located_and_named_on_quantised_weights(
    model: str, name: str, tmp_path: Path, record_property: Record
) -> None:
    """Eager runs the weights that the file has."""
    quantisation = quantisation_of("int4", head="float", embedding="float")
    cage = build_cage(checkpoint_of(model), tmp_path / "int4", quantisation=quantisation)
    exhibit = next(exhibit for exhibit in EXHIBITS if exhibit.defect == name)
    only = replace(exhibit, layers=(2,), layer=2)
    explanation = judge_exhibit(only, cage, tmp_path, record_property)
    assert explanation["located"]["layers"] == [2] and explanation["weights"] is None


@pytest.fixture(scope="module")
def other_tools(made_once: MadeOnce) -> Path:
    """int4 by onnxruntime-genai's builder, beside its source."""

    def make(folder: Path) -> None:
        config = small_config(**SIZES)
        source = write_words(write_folder(folder / "source", config, small_weights(config)), config.vocab_size)
        build_with_genai(source, folder / "int4", "int4")

    return made_once.path("coded-zoo-genai", make)


def judged(path: Path, source: Path, capsys: pytest.CaptureFixture[str], *checks: str) -> tuple[int, dict[str, Any]]:
    asked = [part for check in checks for part in ("--check", check)]
    code = main(
        ["compare", "--onnx", str(path), "--model", str(source), "-M", "40", "--decode-steps", "6", "--json", *asked]
    )
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, report


@pytest.mark.parametrize(
    ("exhibit", "bits"),
    [
        pytest.param(e, bits, id=f"{e}-{bits}", marks=() if bits == e.bits[0] else pytest.mark.full)
        for e in CODED_EXHIBITS
        for bits in e.bits
    ],
)
def test_a_mistake_in_another_tools_file_is_detected_located_and_named(
    exhibit: CodedExhibit, bits: int, other_tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, scheme = small_weights(small_config(**SIZES)), QuantisationScheme(bits)
    if exhibit.sound is not None:
        edit = edits(weights, [LATE], exhibit.sound, scheme)
        good = changed(other_tools / "int4" / "model.onnx", tmp_path / "good.onnx", edit)
        code, report = judged(good, other_tools / "source", capsys, "parameters", "prefill")
        assert code == 0, report["summary"]
    edit = edits(weights, [LATE], exhibit.build, scheme)
    bad = changed(other_tools / "int4" / "model.onnx", tmp_path / "bad.onnx", edit)
    code, report = judged(bad, other_tools / "source", capsys, "parameters")
    assert code == 1
    found_in(report, [LATE], exhibit.mistake)


def test_a_mistake_in_many_matrices_of_another_tools_file_is_named_once(
    other_tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In all that are not fused with others."""
    weights = small_weights(small_config(**SIZES))
    names = [name for name in weights if name.endswith(("o_proj.weight", "gate_proj.weight", "down_proj.weight"))]
    assert len(names) == 9
    nibbles = next(exhibit for exhibit in CODED_EXHIBITS if exhibit.mistake == "nibbles_swapped")
    edit = edits(weights, names, nibbles.build, QuantisationScheme(4))
    bad = changed(other_tools / "int4" / "model.onnx", tmp_path / "bad.onnx", edit)
    code, report = judged(bad, other_tools / "source", capsys, "parameters")
    assert code == 1
    found_in(report, names, nibbles.mistake)


def test_our_own_codes_in_another_tools_operator_pass(
    other_tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose search for scales clips the largest values by more than a step."""
    weights = small_weights(small_config(**SIZES))
    good = changed(
        other_tools / "int4" / "model.onnx",
        tmp_path / "good.onnx",
        edits(weights, [LATE], sound, QuantisationScheme(4)),
    )
    code, report = judged(good, other_tools / "source", capsys, "parameters", "prefill")
    assert code == 0, report["summary"]
