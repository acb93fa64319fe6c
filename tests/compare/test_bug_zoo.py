"""The bug zoo: each defect built into an exported file is detected, located and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blockexport.compare.defects import DROPOUT, catalogue
from tests.exported import EVERYTHING, gainful
from tests.zoo import EXHIBITS, Exhibit, models
from tests.zoo_edits import last_write_early, stale_slot
from tests.zoo_judge import SLOTS, Cage, Record, build_cage, judge_exhibit

LAST = SLOTS - 1


@pytest.fixture(scope="module")
def cages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cage]:
    folder = tmp_path_factory.mktemp("zoo")
    return {name: build_cage(gainful(config), folder / name) for name, config in models(EVERYTHING).items()}


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: f"{exhibit.defect}-{exhibit.model}")
def test_defect_is_detected_located_and_named(
    exhibit: Exhibit, cages: dict[str, Cage], tmp_path: Path, record_property: Record
) -> None:
    judge_exhibit(exhibit, cages[exhibit.model], tmp_path / "spoilt", record_property)


ONE_LAYER = ("rope_interleaved", "mask_sees_next", "gelu", "o_proj_bias_dropped", "heads_tiled", "slot_late")


@pytest.mark.parametrize("name", ONE_LAYER)
def test_defect_of_one_layer_is_found_there(
    name: str, cages: dict[str, Cage], tmp_path: Path, record_property: Record
) -> None:
    exhibit = next(exhibit for exhibit in EXHIBITS if exhibit.defect == name)
    only = replace(exhibit, layers=(2,), layer=2)
    explanation = judge_exhibit(only, cages["everything"], tmp_path / "spoilt", record_property)
    assert explanation.diagnosis.findings[0].scope == "only in layer 2"
    assert explanation.search is not None and explanation.search.confined == frozenset({2})


def test_defect_of_the_last_slot_is_found_there(
    cages: dict[str, Cage], tmp_path: Path, record_property: Record
) -> None:
    stale = Exhibit("stale_slot", stale_slot(LAST), ("cache_key",), decode=True)
    early = Exhibit("slot_early", last_write_early, ("cache_key",), decode=True)
    for exhibit in (stale, early):
        explanation = judge_exhibit(exhibit, cages["everything"], tmp_path / exhibit.defect, record_property)
        assert explanation.search is not None and explanation.search.location is not None
        assert explanation.search.location.position == LAST
        assert explanation.diagnosis.findings[0].scope == f"from position {LAST} on"


def test_every_defect_of_the_catalogue_has_an_exhibit() -> None:
    """The thetas and epsilons of the lists are each one defect in several sizes."""
    families = ("rope_theta_", "eps_")

    def family(name: str) -> str:
        return next((prefix for prefix in families if name.startswith(prefix)), name)

    known = {family(defect.name) for config in models(EVERYTHING).values() for defect in catalogue(config, position=3)}
    assert known | {DROPOUT} == {family(exhibit.defect) for exhibit in EXHIBITS}
