"""Nearly two hundred hostile inputs to all commands: none hangs, none is called a bug of ours, none leaves a file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

import pytest

from blockexport.cli.main import main
from tests.cli.hostile_inputs import Case, cases, make_inputs
from tests.support import REPOSITORY, shared_path
from tests.written_places import written_places

CASES = cases()
SECONDS = 2  # of processor time
LONGER = 6  # where a stranger's program runs up to its limits, or something is made
PATIENCE = 120  # seconds until a case counts as hanging on a machine that does other things as well


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Of every case its exit code, what it said, the processor's time, and what it left; one process runs them all,
    and another one goes on where it hangs or breaks down."""
    folder = tmp_path_factory.mktemp("hostile")
    source = str(shared_path("models/stories260K"))
    assert main(["onnx", source, "-o", str(folder / "sound"), "--no-compare", "-M", "32", "--quiet"]) == 0
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "temporary").mkdir()
    make_inputs(folder / "in", folder / "sound")
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(CASES):
        for outcome in _run_from(len(found), folder):
            found[outcome["name"]] = outcome
    return found


def _run_from(first: int, folder: Path) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "tests.cli.test_hostile", str(first), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    environment |= dict.fromkeys(("TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), str(folder / "temporary"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        for case in CASES[first:]:
            ready = select([process.stdout], [], [], PATIENCE)[0]
            line = process.stdout.readline() if ready else ""
            if not line:
                process.kill()
                yield {"name": case.name, "code": None, "said": "it hangs" if not ready else "its process died"}
                return
            yield json.loads(line)


def _serve(first: int, folder: Path) -> None:
    """The process's side: a line of JSON for every case."""
    from blockexport.cli.start import open_standard_streams

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    open_standard_streams()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    main(["generate", str(folder / "sound"), "once", "-n", "1", "--quiet"])  # what is imported once costs nobody
    for case in CASES[first:]:
        answers.write(json.dumps(_outcome(case, folder)) + "\n")
        answers.flush()


def _outcome(case: Case, folder: Path) -> dict[str, Any]:
    before, began = _files(folder), _seconds()
    arguments = [a.replace("IN/", f"{folder}/in/").replace("OUT/", f"{folder}/out/") for a in case.arguments]
    said = io.StringIO()
    old = {name: os.environ.get(name) for name in case.environment or {}}
    os.environ.update(case.environment or {})
    with Path(case.stdin).open("rb") as given:
        os.dup2(given.fileno(), 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    code: int | str
    allowed = [folder / "out", folder / "temporary", Path(os.environ["XDG_STATE_HOME"])]
    allowed += [folder / "in" / "pipe"] if case.arguments[0] == "doctor" else []  # it tries what its folder can do
    told = (contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()))
    with told[0], told[1], written_places(*allowed) as outside:
        try:
            code = main(arguments)
        except BaseException as error:
            code = repr(error)
    for name, value in old.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    seconds, left = _seconds() - began, sorted(_files(folder) - before)
    if code == 0:
        subprocess.run(["rm", "-rf", folder / "out"], check=True)
        (folder / "out").mkdir()
    words = said.getvalue().replace(f"{folder}/in/", "IN/")
    return {
        "name": case.name,
        "code": code,
        "said": words,
        "seconds": seconds,
        "left": left,
        "outside": [*map(str, outside)],
    }


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if folder / "temporary" not in path.parents}


def _seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def test_there_are_many_of_them_over_all_commands() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 180
    commands = {path.name.removesuffix("_command.py") for path in (REPOSITORY / "cli").glob("*_command.py")}
    assert {case.arguments[0] for case in CASES} == commands


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.encode("ascii", "replace").decode())
def test_it_is_refused_in_time_and_leaves_nothing(case: Case, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[case.name]
    assert outcome["code"] in case.codes, outcome["said"]
    assert case.words in outcome["said"]
    assert "Traceback" not in outcome["said"] and "bug of ours" not in outcome["said"]
    at_a_limit = any(
        words in outcome["said"] for words in ("of processor time", "MiB of memory", "cannot read this text")
    )
    assert outcome["seconds"] < (LONGER if at_a_limit or outcome["code"] in (0, 3) else SECONDS)
    assert outcome["code"] == 0 or outcome["left"] == []
    assert outcome["outside"] == []


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
