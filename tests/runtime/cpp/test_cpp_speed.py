"""The C++ program that measures a bundle's speed: by itself, and asked by `blockexport bench`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blockexport.models.errors import NotJudgedError
from blockexport.runtime.bench.bench_plan import BenchCase, BenchPlan, OpenedAs, prompt_ids
from blockexport.runtime.bench.meter import Meter
from blockexport.runtime.bench.runner import open_runner
from blockexport.runtime.bench.sides import bundle_side, other_side
from tests.exported import export, random_model
from tests.runtime.cpp import cpp_build


@pytest.fixture(scope="module")
def built() -> Path:
    """The build folder."""
    return cpp_build.build("onnxruntime", cpp_build.onnxruntime_options())


def test_its_speed_is_measured_beside_others(built: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle")
    side = other_side(f"cpp:{built}", bundle_side(tmp_path / "bundle", "onnxruntime", OpenedAs(exact=True)))
    runner = open_runner(side, BenchPlan((BenchCase(2, 9),), 5, 1, 1))
    before = runner.memory()
    runner.load()
    prompt = prompt_ids(BenchCase(2, 9), 101)
    for steps in (2, 20):  # from an empty cache each time: 9 + 20 slots of 29
        sample = runner.run(prompt, steps, Meter())
        assert sample.first_token_seconds > 0 and sample.decode_seconds > 0
    after = runner.memory()
    assert before.resident is not None and after.resident is not None and before.resident < after.resident
    with pytest.raises(NotJudgedError, match="position 29 do not fit into the 29 cache slots"):
        runner.run(prompt, 21, Meter())


def test_its_speed_by_itself(built: Path, tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle")
    command = [str(built / "speed"), str(tmp_path / "bundle"), "--context", "9", "--rows", "3", "--threads", "1"]
    said = cpp_build.run(command)
    assert re.fullmatch(
        r"loaded in \S+ ms; 9 tokens to the first new one: \S+ ms; a step: \S+ ms, \S+ tokens/s; resident: \S+ MB\n",
        said,
    )
    wrong = cpp_build.attempt([*command, "--steps", "0"])
    assert (wrong.returncode, wrong.stderr) == (2, "speed: --steps takes a number of at least 1, and was given 0\n")
