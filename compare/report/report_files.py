"""The report on disk: all of its files or none, over an older report at most, in a folder looked at beforehand."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blockexport.compare.report.report import REPORT_HTML, REPORT_MARKDOWN, Report
from blockexport.export.bundle.own_verdict import REPORT_JSON
from blockexport.export.output.atomic_write import write_together
from blockexport.export.output.hidden_names import shown
from blockexport.export.output.place import output_place
from blockexport.models.errors import UsageError

MARK = "<!-- a report of blockexport compare -->\n"
_KEYS = {"schema_version", "verdict", "checks", "tolerances"}


def report_place(folder: Path, inputs: Iterable[Path]) -> Path:
    """The real path of a folder for a report on `inputs`.

    Raises:
        UsageError: as `check_report_folder`; or it holds an input, lies in one, or in a sealed bundle.
    """
    check_report_folder(folder)
    return output_place(folder, inputs, "the report folder")


def check_report_folder(folder: Path) -> None:
    """Whether a report can be written into `folder`, so that nothing is judged in vain. Leaves nothing behind.

    Raises:
        UsageError: it cannot be made or written, or a file of that name is no older report.
    """
    folder = folder.absolute()
    with _explained(folder):
        nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        files = [folder / name for name in (REPORT_JSON, REPORT_MARKDOWN, REPORT_HTML)]
        found = [f"{path} {why}" for path in files if (why := _in_the_way(path))]
        if not nearest.is_dir():
            found = [f"{nearest} is not a folder"]
        if found:
            raise UsageError(f"the report cannot be written to {folder}: {found[0]}. Choose another place")
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".report-") as probe:
            probe.write(b"\n")
            probe.flush()


def _in_the_way(path: Path) -> str:
    """What keeps a file of a report from being written; empty where nothing does."""
    if path.is_dir():
        return "is a folder, where a file has to go"
    return "" if _is_ours(path) else "is not a report of blockexport's, and would be replaced"


def _is_ours(path: Path) -> bool:
    """Whether a file may be replaced: there is none, or an earlier `write_report` wrote it."""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_file():
        return False
    if path.name != REPORT_JSON:
        return path.read_bytes().endswith(MARK.encode())
    try:
        return _KEYS.issubset(json.loads(path.read_bytes()))
    except (ValueError, RecursionError, TypeError):
        return False


def write_report(report: Report, folder: Path) -> list[str]:
    """Write the three forms of the report into `folder`, made if need be; returns the names of the files.

    Raises:
        UsageError: the folder cannot be written, or the disk is full. An older report in it is then as it was.
    """
    from blockexport.compare.report.report_html import to_html
    from blockexport.compare.report.report_markdown import to_markdown

    texts = {
        REPORT_JSON: json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n",
        REPORT_MARKDOWN: f"{to_markdown(report)}\n{MARK}",
        REPORT_HTML: f"{to_html(report)}{MARK}",
    }
    check_report_folder(folder)
    with _explained(folder):
        write_together(folder.absolute(), {name: text.encode() for name, text in texts.items()})
    return list(texts)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space there, or choose another place" if full else "choose another place"
        raise UsageError(
            f"the report cannot be written to {shown(folder)} ({error.strerror or error}): {remedy}"
        ) from error
