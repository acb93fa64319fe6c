"""The bug zoo in half precision and with a sharp softmax: each defect is found, but for those that are listed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from blockexport.compare.explain.defects import title_of
from blockexport.models.precision import Precision
from tests.conftest import TABLE
from tests.exported import EVERYTHING
from tests.support import REPOSITORY
from tests.zoo import EXHIBITS, Exhibit, models
from tests.zoo_judge import Cage, Record, compare
from tests.zoo_limits import HALF, SHARP_BF16, TWINS, Lost
from tests.zoo_settings import SETTINGS, Setting, found_out

FOUND = ("detected", "located", "named")
SAMPLE = ("rope_interleaved", "eps_1e-06")
"""In every setting in `make test`; the rest is for `make test-full`."""

Cages = Callable[[Setting, str], Cage]


def name_of(exhibit: Exhibit) -> str:
    return exhibit.defect if exhibit.model == "everything" else f"{exhibit.defect}-{exhibit.model}"


@pytest.fixture(scope="module")
def cages(tmp_path_factory: pytest.TempPathFactory) -> Cages:
    """`cages(setting, model)`: made when it is first asked for."""
    folder = tmp_path_factory.mktemp("zoo")
    return cache(lambda setting, name: setting.cage(models(EVERYTHING)[name], folder / str(setting) / name))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_sound_file_has_nothing_inside(setting: Setting, cages: Cages, tmp_path: Path) -> None:
    cage = cages(setting, "everything")
    code, report = compare(cage, cage.folder, tmp_path / "parity", "--locate", "--backend", setting.backend)
    assert code == 0, report["summary"]
    assert report["explanation"]["reproduced"] and report["explanation"]["located"] is None


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "exhibit",
    [pytest.param(one, id=name_of(one), marks=() if name_of(one) in SAMPLE else pytest.mark.full) for one in EXHIBITS],
)
def test_what_is_found_out_is_everything_or_what_is_listed(
    exhibit: Exhibit, setting: Setting, cages: Cages, tmp_path: Path, record_property: Record
) -> None:
    name, half = name_of(exhibit), setting.precision is not Precision.FP32
    found = dict(found_out(exhibit, setting, cages(setting, exhibit.model), tmp_path))
    record_property(TABLE, f"{setting!s:10} {name:28} {found}")
    if half and name in TWINS:
        causes = found.pop("named otherwise", found.get("named", ""))
        assert exhibit.defect in causes.split(", ") and set(causes.split(", ")) <= set(TWINS[name])
        found["named"] = causes
    known = {**(HALF if half else {}), **(SHARP_BF16 if str(setting) == "bf16-sharp" else {})}
    lost = known.get(name, Lost((), ""))
    missing = tuple(what for what in FOUND if what not in found)
    assert missing == lost.what or not (lost.always or missing), found


def test_the_documentation_lists_what_is_lost() -> None:
    page = (REPOSITORY / "docs/concepts/judging.md").read_text()
    defects = {name_of(exhibit): exhibit.defect for exhibit in EXHIBITS}
    for name, lost in HALF.items():
        assert f"| {title_of(defects[name])} | {', '.join(lost.what)} | {lost.why} |" in page
    for name, lost in SHARP_BF16.items():
        assert f"“{title_of(defects[name])}”" in page and lost.why.partition(":")[0] in page
    assert all(title_of(name) in page for twins in TWINS.values() for name in twins)
