"""The bug zoo on a trained model, stories260K, as far as its config has a place for the defect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from blockexport.compare.explain.defects import DROPOUT, catalogue
from blockexport.compare.explain.defects_position import EXCHANGED, LOST
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.conftest import TABLE
from tests.support import shared_path
from tests.zoo import EXHIBITS, Exhibit
from tests.zoo_judge import HEADER, Cage, Record, build_cage, judge_exhibit

CHECKPOINT = open_checkpoint(str(shared_path("models/stories260K")))
KNOWN = {defect.name for defect in catalogue(CHECKPOINT.config, position=3)} | {DROPOUT, EXCHANGED, LOST}
HERE = [exhibit for exhibit in EXHIBITS if exhibit.defect in KNOWN and exhibit.model == "everything"]


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Cage:
    return build_cage(CHECKPOINT, tmp_path_factory.mktemp("zoo") / "stories260K")


SAMPLE = (
    "rope_interleaved",
    "rope_on_v",
    "mask_sees_next",
    "slot_late",
    "gelu",
    "norm_half",
    "eps_1e-06",
    "layers_permuted",
)


def marked(exhibit: Exhibit) -> ParameterSet:
    return pytest.param(exhibit, id=exhibit.defect, marks=() if exhibit.defect in SAMPLE else pytest.mark.full)


def test_a_sound_file_passes_and_has_nothing_inside(cage: Cage, record_property: Record) -> None:
    record_property(TABLE, HEADER)
    assert cage.folder.is_dir()


@pytest.mark.parametrize("exhibit", [marked(exhibit) for exhibit in HERE])
def test_defect_is_detected_located_and_named(
    exhibit: Exhibit, cage: Cage, tmp_path: Path, record_property: Record
) -> None:
    judge_exhibit(exhibit, cage, tmp_path, record_property)


@pytest.mark.parametrize("name", ["gelu", "rope_on_v"])
def test_defect_of_layer_3_of_5_is_found_there(name: str, cage: Cage, tmp_path: Path, record_property: Record) -> None:
    exhibit = next(exhibit for exhibit in HERE if exhibit.defect == name)
    explanation = judge_exhibit(replace(exhibit, layers=(3,), layer=3), cage, tmp_path, record_property)
    assert explanation["causes"][0]["scope"] == "only in layer 3"
    assert explanation["located"]["layers"] == [3]
