"""`blockexport aoti` adds what passed, and nothing else; the compiler and the judge are made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockexport.cli.main import main
from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import Judgement
from blockexport.export.bundle.aoti_machine import AOTI_INFO
from blockexport.export.bundle.manifest import AOTI_FILE
from tests.compare.report.test_report import FAIL, PASS, report_of


def compiled(checkpoint: Any, options: Any, rows: int, folder: Path, device: Any) -> list[str]:
    for name in (AOTI_FILE, AOTI_INFO):
        (folder / name).write_text(name)
    return [AOTI_FILE, AOTI_INFO]


@pytest.mark.parametrize(("verdict", "code"), [(PASS, 0), (FAIL, 1)])
def test_a_package_that_fails_is_not_added(
    verdict: Verdict, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["onnx", "tiny", "-o", str(tmp_path / "b"), "-M", "32", "--no-compare", "-q"]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    monkeypatch.setattr("blockexport.export.aoti.compile_package", compiled)
    monkeypatch.setattr("blockexport.cli.aoti_command._judge", lambda *_: Judgement(report_of(verdict)))
    capsys.readouterr()
    assert main(["aoti", str(tmp_path / "b")]) == code
    said, after = capsys.readouterr(), {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert said.out.startswith(str(Verdict.PASS if code == 0 else Verdict.FAIL).upper())
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    if code == 0:
        assert after.keys() - before.keys() == {AOTI_FILE, AOTI_INFO} and "the package was added" in said.err
    else:
        assert after == before and "the package is bad and was not added" in said.err
