"""Judging an exhibit of the bug zoo: detected, located, named, and a line of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
from tests.exported import export
from tests.zoo import Exhibit
from tests.zoo_bench import Bench

SLOTS = 29
PREFILL = 12
Record = Callable[[str, str], None]


@dataclass
class Cage:
    """A sound bundle and what judging it needs, made once for all exhibits of a model."""

    folder: Path
    checkpoint: Checkpoint
    sound: CheckContext


def build_cage(checkpoint: Checkpoint, folder: Path) -> Cage:
    """Export a sound bundle, which must pass and have nothing to locate."""
    export(checkpoint, folder, slots=SLOTS)
    sound = context(folder, checkpoint)
    assert verdicts(sound) == {Verdict.PASS}
    return Cage(folder, checkpoint, sound)


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


def verdicts(judged: CheckContext) -> set[Verdict]:
    """What the checks along the cached path say."""
    return {check(judged).verdict for check in (prefill, decode, last_slot)}


def spoil(exhibit: Exhibit, cage: Cage, folder: Path) -> Path:
    """The cage's bundle with the defect in its graph."""
    bench = Bench(cage.folder, cage.checkpoint.config, exhibit.layers)
    exhibit.spoil(bench)
    return bench.save(folder, cage.folder)


def judge_exhibit(exhibit: Exhibit, cage: Cage, folder: Path, record: Record) -> Explanation:
    """Build the defect, let it be judged, and check that it is detected, located and named first."""
    spoilt = spoil(exhibit, cage, folder)
    if exhibit.backend != "onnxruntime":
        assert verdicts(context(spoilt, cage.checkpoint, cage.sound)) == {Verdict.PASS}
    judged = context(spoilt, cage.checkpoint, cage.sound, exhibit.backend)
    detected = Verdict.FAIL in verdicts(judged)
    explanation = explain(judged, ReplayGraph.load(spoilt / ONNX_FILE))
    record(TABLE, _row(exhibit, cage, detected, explanation))
    assert detected
    search, found = explanation.search, explanation.diagnosis.findings
    assert search is not None and search.location is not None
    assert search.location.layer == exhibit.layer and search.location.site in exhibit.sites
    assert (search.location.position >= PREFILL) == exhibit.decode
    assert search.reproduced or exhibit.defect == "dropout"
    assert found, "no defect reproduces the file"
    assert found[0].name == exhibit.defect
    return explanation


def _row(exhibit: Exhibit, cage: Cage, detected: bool, explanation: Explanation) -> str:
    location = explanation.search.location if explanation.search else None
    place = "not located" if location is None else f"{location.position}/{location.layer}/{location.site}"
    found = explanation.diagnosis.findings
    named = f"{found[0].name} {found[0].rms:.1e}" if found else "not named"
    only = "" if exhibit.layers is None else f" in layer {exhibit.layers[0]}"
    what = f"{exhibit.defect + only:30} {cage.folder.name:12} {exhibit.backend:11}"
    return f"{what} {'yes' if detected else 'NO':4} {place:32} {named}"
