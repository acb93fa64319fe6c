"""What a bundle itself says of its file: the verdict of the report that its manifest lists.

A bundle that was judged and found bad is kept for inspection, under a name that anybody may change. What is made from
a bundle to be shipped asks here first.
"""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.file_check import check_file
from blockexport.export.bundle.manifest import NONPAD_FILE, ONNX_FILE, Manifest
from blockexport.models.errors import RejectedBundleError, UsageError
from blockexport.models.regular_file import read_json_object

PARITY = "parity"  # the folder of the report inside the bundle
REPORT_JSON = "report.json"
REPORT = f"{PARITY}/{REPORT_JSON}"  # as the manifest lists it
REPORT_FOLDERS = {NONPAD_FILE: f"{PARITY}/nonpad", ONNX_FILE: PARITY}
"""Where the report on a graph is; the innermost folder first."""
FAIL = "fail"


def why_bad(folder: Path, manifest: Manifest) -> str | None:
    """One sentence, without its full stop, where a bundle was judged and found bad; None of any other, judged or not.

    Raises:
        UsageError: the report that the manifest lists is missing, or another one, so that nothing can be told.
    """
    for place in reversed(REPORT_FOLDERS.values()):
        name = f"{place}/{REPORT_JSON}"
        if name in manifest.files:
            check_file(folder / name, manifest.files[name], whole=True)
            report = read_json_object(folder / name, "export the bundle again")
            if report.get("verdict") == FAIL:
                return f"{folder} was judged and found bad: {report.get('summary')}"
    return None


def known_bad(folder: Path, manifest: Manifest) -> str | None:
    """As `why_bad`, for those who only run the file: a bundle that lacks its report is None, too."""
    try:
        return why_bad(folder, manifest)
    except (UsageError, OSError):
        return None


def require_not_bad(folder: Path, manifest: Manifest) -> None:
    """Refuse to make anything from a bundle that was judged and found bad.

    Raises:
        RejectedBundleError: it was, with the place of its report.
        UsageError: as `why_bad`.
    """
    if (reason := why_bad(folder, manifest)) is not None:
        raise RejectedBundleError(
            f"{reason}. {folder / PARITY / 'report.md'} says where it differs and why; fix that, export the model "
            "again with `blockexport onnx`, and go on from the bundle that passes"
        )
