"""Are the files that pip has installed the ones of `hashes.txt`? Run by `make` after each installation.

    python tests/check_hashes.py REPORT [--add]

REPORT is what `pip install --report` writes. A file of a name that is not listed (another Python, another platform, a
build of torch) is counted and let through; one that is listed has to have a SHA-256 that stands there. `--add` enters
those that are not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

PINNED = Path(__file__).parent.parent / "hashes.txt"
NOT_PINNED = ("torch-",)  # one release, and a build of it for each kind of machine


def installed(report: dict[str, Any]) -> dict[str, str]:
    """Names of files, with their SHA-256, of a report."""
    found = [one["download_info"] for one in report["install"]]
    archives = [(one["url"], one["archive_info"].get("hashes", {})) for one in found if one.get("archive_info")]
    return {unquote(url.rpartition("/")[2]): hashes["sha256"] for url, hashes in archives if "sha256" in hashes}


def pinned(text: str) -> dict[str, set[str]]:
    """What `hashes.txt` allows, by name."""
    allowed: dict[str, set[str]] = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        if not line.startswith("#"):
            allowed.setdefault(name, set()).add(digest)
    return allowed


def main(report: Path, *, add: bool) -> int:
    """1 where a file is another one."""
    files, text = installed(json.loads(report.read_text())), PINNED.read_text()
    allowed = pinned(text)
    if add:
        new = sorted(f"{files[n]}  {n}" for n in files.keys() - allowed.keys() if not n.startswith(NOT_PINNED))
        head = [line for line in text.splitlines() if line.startswith("#")]
        rest = [line for line in text.splitlines() if not line.startswith("#")]
        PINNED.write_text("\n".join([*head, *sorted({*rest, *new}, key=lambda line: line.partition("  ")[2])]) + "\n")
        return 0
    wrong = [name for name, digest in files.items() if digest not in allowed.get(name, {digest})]
    for name in wrong:
        sys.stderr.write(f"{name} has the SHA-256 {files[name]}, and hashes.txt lists another: do not run it\n")
    known = sum(name in allowed for name in files)
    sys.stderr.write(f"{known - len(wrong)} of {len(files)} installed files have the SHA-256 of hashes.txt\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), add="--add" in sys.argv))
