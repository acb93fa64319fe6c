"""Damaged inputs to every parser: refused in a sentence, soon, and without another word. A sample of `make fuzz`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing.mutations import mutated
from tests.fuzzing.parsers import PARSERS, try_input

FOUND = sorted(path for path in Path(__file__).with_name("found").rglob("*") if path.parent.name in PARSERS)


def _try_many(name: str, folder: Path, examples: int) -> None:
    inside = folder / "in"
    inside.mkdir()
    parser = PARSERS[name]

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,  # `try_input` counts processor time
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(parser.seeds()), st.integers(0, 2**32))
    def try_one(seed: bytes, number: int) -> None:
        try_input(parser, mutated(seed, Random(number)), inside)

    try_one()


@pytest.mark.parametrize("name", PARSERS)
def test_damage_is_refused(name: str, tmp_path: Path) -> None:
    _try_many(name, tmp_path, 50)


@pytest.mark.full
@pytest.mark.parametrize("name", PARSERS)
def test_much_damage_is_refused(name: str, tmp_path: Path) -> None:
    _try_many(name, tmp_path, 5000)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_stays_mended(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    try_input(PARSERS[path.parent.name], path.read_bytes(), tmp_path / "in")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", PARSERS)
def test_undamaged_they_are_read(name: str, tmp_path: Path) -> None:
    """What is refused from the start would show nothing."""
    (tmp_path / "in").mkdir()
    assert all(try_input(PARSERS[name], seed, tmp_path / "in") for seed in PARSERS[name].seeds())
