"""The bug zoo: each defect built into an exported file is detected, located and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from blockexport.compare.check import Verdict
from blockexport.compare.check_cached_path import decode, last_slot, prefill
from blockexport.compare.context import CheckContext
from blockexport.compare.explain import Explanation, explain
from blockexport.compare.plan import make_plan
from blockexport.export.manifest import ONNX_FILE
from blockexport.models.checkpoint import Checkpoint
from blockexport.models.load import load_model
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.replay_graph import ReplayGraph
from tests.conftest import TABLE
from tests.exported import EVERYTHING, export, gainful
from tests.zoo import EXHIBITS, Exhibit, models
from tests.zoo_bench import Bench

SLOTS = 29
PREFILL = 12


@dataclass
class Cage:
    """A sound bundle and what judging it needs, made once for all exhibits of a model."""

    folder: Path
    checkpoint: Checkpoint
    sound: CheckContext


def context(
    folder: Path, checkpoint: Checkpoint, sound: CheckContext | None = None, backend: str = "onnxruntime"
) -> CheckContext:
    """A judgement of a bundle, on the reference and floor of a sound one where there is one."""
    plan = make_plan(SLOTS, prefill=PREFILL)
    ids = torch.randint(0, checkpoint.config.vocab_size, (SLOTS,), generator=torch.Generator().manual_seed(4))
    decoder = open_decoder(folder, backend, threads=1)

    def eager() -> EagerDecoder:
        return EagerDecoder(load_model(checkpoint, torch.float32, SLOTS), SLOTS)

    made = CheckContext(decoder, eager, checkpoint, plan, ids)
    if sound is not None:
        made.__dict__.update({name: getattr(sound, name) for name in ("expected", "eager_errors", "whole_errors")})
    return made


@pytest.fixture(scope="module")
def cages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cage]:
    made = {}
    for name, config in models(EVERYTHING).items():
        checkpoint, folder = gainful(config), tmp_path_factory.mktemp("zoo") / name
        export(checkpoint, folder, slots=SLOTS)
        sound = context(folder, checkpoint)
        assert verdicts(sound) == {Verdict.PASS}
        made[name] = Cage(folder, checkpoint, sound)
    return made


def verdicts(judged: CheckContext) -> set[Verdict]:
    return {check(judged).verdict for check in (prefill, decode, last_slot)}


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: f"{exhibit.defect}-{exhibit.model}")
def test_defect_is_detected_located_and_named(
    exhibit: Exhibit, cages: dict[str, Cage], tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    cage = cages[exhibit.model]
    bench = Bench(cage.folder, cage.checkpoint.config)
    exhibit.spoil(bench)
    folder = bench.save(tmp_path / "spoilt", cage.folder)
    if exhibit.backend != "onnxruntime":
        assert verdicts(context(folder, cage.checkpoint, cage.sound)) == {Verdict.PASS}
    judged = context(folder, cage.checkpoint, cage.sound, exhibit.backend)
    detected = verdicts(judged) - {Verdict.PASS} == {Verdict.FAIL}
    explanation = explain(judged, ReplayGraph.load(folder / ONNX_FILE))
    record_property(TABLE, row(exhibit, detected, explanation))
    assert detected
    assert explanation.search is not None and explanation.search.location is not None
    location = explanation.search.location
    assert (location.layer, location.site in exhibit.sites) == (exhibit.layer, True)
    assert (location.position >= PREFILL) == exhibit.decode
    assert explanation.search.reproduced or exhibit.defect == "dropout"
    assert explanation.diagnosis.findings, "no defect reproduces the file"
    assert explanation.diagnosis.findings[0].name == exhibit.defect


def row(exhibit: Exhibit, detected: bool, explanation: Explanation) -> str:
    """A line of the table: defect, detected, located, named."""
    location = explanation.search.location if explanation.search else None
    place = "not located" if location is None else f"{location.position}/{location.layer}/{location.site}"
    found = explanation.diagnosis.findings
    named = f"{found[0].name} {found[0].rms:.1e}" if found else "not named"
    what = f"{exhibit.defect:28} {exhibit.model:12} {exhibit.backend:11}"
    return f"{what} {'yes' if detected else 'NO':4} {place:32} {named}"
