"""What `make` installs has the SHA-256 of `hashes.txt`, where that lists it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import check_hashes


def report(folder: Path, **digests: str) -> Path:
    installed = [
        {
            "download_info": {
                "url": f"https://x.example/a/{name}-1.0%2Bcpu.whl",
                "archive_info": {"hashes": {"sha256": d}},
            }
        }
        for name, d in digests.items()
    ]
    path = folder / "installed.json"
    path.write_text(json.dumps({"install": [*installed, {"download_info": {"url": "file:///here", "dir_info": {}}}]}))
    return path


def test_another_file_of_a_listed_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_hashes, "PINNED", tmp_path / "hashes.txt")
    (tmp_path / "hashes.txt").write_text("# head\n")
    assert check_hashes.main(report(tmp_path, b="1", torch="2", a="3"), add=True) == 0
    assert (tmp_path / "hashes.txt").read_text() == "# head\n3  a-1.0+cpu.whl\n1  b-1.0+cpu.whl\n"
    assert check_hashes.main(report(tmp_path, b="1", torch="9", new="9"), add=False) == 0
    assert "1 of 3 installed files" in capsys.readouterr().err
    with (tmp_path / "hashes.txt").open("a") as file:
        file.write("4  b-1.0+cpu.whl\n")  # of a repacked one
    assert check_hashes.main(report(tmp_path, b="4"), add=False) == 0
    capsys.readouterr()
    assert check_hashes.main(report(tmp_path, b="1", a="4"), add=False) == 1
    assert "a-1.0+cpu.whl has the SHA-256 4, and hashes.txt lists another" in capsys.readouterr().err


def test_each_version_that_is_pinned_has_its_hash() -> None:
    lines = (check_hashes.PINNED.parent / "constraints.txt").read_text().splitlines()
    versions = {tuple(line.split("==")) for line in lines if not line.startswith("#")} - {("torch", "2.13.0")}
    files = {name.lower().replace("_", "-") for name in check_hashes.pinned(check_hashes.PINNED.read_text())}
    starts = {(re.sub(r"[-_.]+", "-", name.lower()), version) for name, version in versions}
    lacking = {
        one for one in starts if not any(re.sub(r"\.(?=.*-)", ".", f).startswith(f"{one[0]}-{one[1]}") for f in files)
    }
    assert lacking == set()
