"""Right files of every convention pass, and wrong ones fail; what cannot be told is refused by name."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from blockexport.cli.main import main
from tests.compare.foreign_table import CONVENTIONS, MAPS, UNKNOWN, WRONG, impossible, with_config, wrong_pair
from tests.foreign_files import FAMILIES, ForeignExports, changed, with_names

SHORT = ("-M", "40", "--decode-steps", "6")
WRONG_SAMPLE = [("theta", "optimum"), ("swapped caches", "genai"), ("swapped layers", "genai")]
SAMPLE = ("optimum, merged", "optimum, two graphs", "--map")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("DynamicCache", "transformers.exporters")]


def compare(files: list[object], source: Path, *arguments: object) -> int:
    return main(["compare", "--model", str(source), *map(str, [*files, *arguments])])


@pytest.mark.parametrize("convention", [*SAMPLE, *SLOW])
def test_a_right_file_passes_and_a_wrong_one_fails(
    convention: str, foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = CONVENTIONS[convention](foreign, "llama", tmp_path)
    assert compare(files, foreign.source(), *SHORT, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {check["verdict"] for check in report["checks"]} == {"pass"}
    assert {check["name"] for check in report["checks"]} >= {"prefill", "decode", "chunked", "greedy", "spread"}
    wrong = with_config(foreign.source(), tmp_path / "eps", rms_norm_eps=1e-2)
    assert compare(files, wrong, *SHORT, "--check", "prefill", "--check", "decode", "--no-explain") == 1


def wrong_is_found(
    wrong: str, convention: str, family: str, made: ForeignExports, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[str, bool]:
    """Judge a file that is wrong in one way: what a table says of it, and whether it fails, is located and named."""
    reason = impossible(convention, family, wrong)
    if reason:
        return f"- ({reason})", True
    pair = wrong_pair(wrong, convention, family, made, folder / wrong)
    capsys.readouterr()
    checks = [part for name in ("prefill", "decode", "parameters") for part in ("--check", name)]
    code = compare(pair[0], pair[1], *SHORT, *checks, "--json")
    if code != 1:
        return f"exit {code}", False
    said = json.loads(capsys.readouterr().out)["explanation"]
    site, cause = WRONG[wrong]
    located = said["located"]
    named = any(cause in sentence for sentence in said["sentences"])
    if located is None:
        return f"not located: {said['note']}", False
    if wrong != "one weight" and said["file"]:
        return f"a weight is blamed: {said['file']}", False
    shown = site in located["site"] or (convention == "genai" and located["node"].startswith("GroupQueryAttention"))
    place = f"FAIL at layer {located['layer']}, {located['site']}, {located['node']}"
    return f"{place}; {'named' if named else said['sentences']}", bool(shown and named and located["node"])


@pytest.mark.parametrize(("wrong", "convention"), WRONG_SAMPLE)
def test_a_wrong_file_is_located_by_its_own_names(
    wrong: str, convention: str, foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, found = wrong_is_found(wrong, convention, "llama", foreign, tmp_path, capsys)
    assert found, said


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_whole_table(
    convention: str, family: str, foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every convention and family: the right file passes, and each wrong one fails, is located and named."""
    if impossible(convention, family, "right"):
        pytest.skip(impossible(convention, family, "right"))
    files = CONVENTIONS[convention](foreign, family, tmp_path)
    assert compare(files, foreign.source(family), *SHORT, "--no-explain") == 0
    cells = {wrong: wrong_is_found(wrong, convention, family, foreign, tmp_path, capsys) for wrong in WRONG}
    rows = ["", "right | PASS", *(f"{wrong} | {said}" for wrong, (said, _) in cells.items())]
    with capsys.disabled():
        sys.stdout.write("\n".join(f"{convention} | {family} | {row}" if row else "" for row in rows) + "\n")
    assert [wrong for wrong, (_, found) in cells.items() if not found] == []


def test_the_table_has_no_hole_but_those_with_a_reason() -> None:
    cells = itertools.product(CONVENTIONS, FAMILIES, ("right", *WRONG))
    holes = {cell for cell in cells if impossible(*cell)}
    windows = {("StaticCache", family, wrong) for family in FAMILIES[1:3] for wrong in ("right", *WRONG)}
    masks = {("StaticCache", family, "window dropped") for family in FAMILIES}
    names = {("DynamicCache", family, wrong) for family in FAMILIES for wrong in ("swapped caches", "swapped layers")}
    assert holes == windows | masks | names


def test_what_no_name_tells_is_asked_for(
    foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(foreign.growing(), tmp_path / "named.onnx", lambda model: with_names(model, UNKNOWN))
    some = [part for part in MAPS if part not in ("--map",) and not part.startswith("input_ids")]
    without = [part for entry in some for part in ("--map", entry)]
    cases: list[tuple[list[str], str]] = [
        ([], "has the input tokens ['"),
        (without, "Say what it is with --map ROLE=tokens"),
        (["--map", "input_ids=token"], "--map input_ids=token: "),
        (["--map", "input_id=tokens"], "is not ROLE=NAME with one of the roles input_ids"),
        (["--map", "past_key_values.{i}.key=k"], "the name has it too"),
    ]
    for arguments, message in cases:
        assert compare(["--onnx", path], foreign.source(), *arguments) == 2
        assert message in " ".join(capsys.readouterr().err.split()), arguments
    assert main(["compare", str(tmp_path), "--map", "input_ids=tokens"]) == 2
    assert "it goes with --onnx" in " ".join(capsys.readouterr().err.split())


def test_graphs_that_are_no_pair_are_refused(
    foreign: ForeignExports, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = foreign.pair()
    prompt, steps = ["--onnx", pair / "prefill.onnx"], ["--onnx", pair / "decode.onnx"]
    for files, message in ((prompt, "give the graph of the decode steps too"), (steps * 2, "are no pair")):
        assert compare(files, foreign.source()) == 2
        assert message in " ".join(capsys.readouterr().err.split())
