"""Judging an exhibit of the bug zoo with `blockexport compare`: detected, located, named, and a line of the table."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from blockexport.cli.main import main
from blockexport.compare.explain.defects import DROPOUT
from blockexport.compare.explain.defects_position import EXCHANGED
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.quantisation import Quantisation
from tests.conftest import TABLE
from tests.exported import export
from tests.zoo import Exhibit
from tests.zoo_bench import Bench

SLOTS = 29
PREFILL = 12
ALONG = ("prefill", "decode", "last-slot")  # the checks on the judged sequence
Record = Callable[[str, str], None]
Data = Mapping[str, Any]

HEADER = f"{'defect':30} {'model':12} {'backend':11} {'detected':8} {'position/layer/site':32} named"


@dataclass(frozen=True)
class Cage:
    """A sound bundle and its source."""

    folder: Path
    checkpoint: Checkpoint


def build_cage(checkpoint: Checkpoint, folder: Path, quantisation: Quantisation | None = None) -> Cage:
    """Export a sound bundle, which must pass and have nothing to locate."""
    export(checkpoint, folder, slots=SLOTS, quantisation=quantisation)
    cage = Cage(folder, checkpoint)
    code, report = compare(cage, folder, folder.parent / f"{folder.name}-parity", "--locate")
    assert code == 0, report["summary"]
    assert report["explanation"]["reproduced"] and report["explanation"]["located"] is None
    return cage


def compare(
    cage: Cage, bundle: Path, target: Path, *more: str, codes: Sequence[int] = (0, 1)
) -> tuple[int, dict[str, Any]]:
    """The command's exit code and its report, which it must have written in all three forms.

    The configs of the zoo have every option at once, which no file format of a single family can say: the source is
    handed over where the command would open it by name.
    """
    arguments = ["compare", str(bundle), "--report", str(target), "--json", f"--decode-steps={SLOTS - PREFILL}", *more]
    printed = StringIO()
    opened = mock.patch("blockexport.runtime.recorded_source.open_checkpoint", return_value=cage.checkpoint)
    with opened, redirect_stdout(printed):
        code = main(arguments)
    assert code in codes, f"exit code {code}: {printed.getvalue()}"
    report: dict[str, Any] = json.loads((target / "report.json").read_text())
    assert json.loads(printed.getvalue()) == report
    assert report["tokens"]["prefill"] == PREFILL
    for name in ("report.md", "report.html"):
        assert report["summary"] in html.unescape((target / name).read_text())
    return code, report


def spoil(exhibit: Exhibit, cage: Cage, folder: Path) -> Path:
    """The cage's bundle with the defect in its graph."""
    bench = Bench(cage.folder, cage.checkpoint.config, exhibit.layers)
    exhibit.spoil(bench)
    return bench.save(folder, cage.folder)


def judge_exhibit(exhibit: Exhibit, cage: Cage, folder: Path, record: Record) -> Data:
    """Build the defect, let `compare` judge it, and check that it is detected, located and named first.

    Returns:
        The explanation in report.json.
    """
    spoilt = spoil(exhibit, cage, folder / "spoilt")
    if exhibit.backend != "onnxruntime":
        _, unseen = compare(cage, spoilt, folder / "unseen", *(f"--check={name}" for name in ALONG))
        assert unseen["verdict"] == "pass"
    code, report = compare(cage, spoilt, folder / "parity", "--backend", exhibit.backend)
    failed = {check["name"] for check in report["checks"] if check["verdict"] == "fail"}
    explanation: Data = report["explanation"] or {"located": None, "causes": []}
    record(TABLE, _row(exhibit, cage, code, explanation))
    assert code == 1 and failed & set(ALONG)
    located, causes = explanation["located"], explanation["causes"]
    assert located is not None
    assert located["layer"] == exhibit.layer and located["site"] in exhibit.sites
    assert (located["position"] >= PREFILL) == exhibit.decode
    # Dropout is random; and an update in place has overwritten a cache before another layer reads it.
    assert explanation["reproduced"] or exhibit.defect in (DROPOUT, EXCHANGED)
    assert causes, "no defect reproduces the file"
    assert causes[0]["name"] == exhibit.defect
    return explanation


def _row(exhibit: Exhibit, cage: Cage, code: int, explanation: Data) -> str:
    located, causes = explanation["located"], explanation["causes"]
    place = "not located" if located is None else f"{located['position']}/{located['layer']}/{located['site']}"
    named = f"{causes[0]['name']} {causes[0]['rms']:.1e}" if causes else "not named"
    only = "" if exhibit.layers is None else f" in layer {exhibit.layers[0]}"
    what = f"{exhibit.defect + only:30} {cage.folder.name:12} {exhibit.backend:11}"
    return f"{what} {'yes' if code == 1 else 'NO':8} {place:32} {named}"
