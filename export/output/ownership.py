"""Which files in a folder are a bundle's own: those that its manifest lists, and the traces of our own writing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path, PurePosixPath

from blockexport.export.output.atomic_write import LOCK, PLAN, remove
from blockexport.export.output.hidden_names import partial_origin
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import read_bytes

MANIFEST = "manifest.json"
SIGNATURE = f"{MANIFEST}.minisig"  # of the manifest, which cannot list it
SBOM = "sbom.cdx.json"
_OURS = re.compile(
    r"[^/]+\.safetensors|model(\.nonpad)?\.onnx|model(\.aoti)?\.pt2|aoti\.json|chat_template\.jinja|engines/[^/]+\.engine|"
    r"((genai_|generation_|tokenizer_)?config|tokenizer|special_tokens_map|chat_turns)\.json|"
    rf"parity/(nonpad/)?report\.(json|md|html)|{re.escape(SBOM)}"
)
"""What a bundle's files are called, whatever a manifest lists: a forged one must not have --force remove others."""


def is_bundle(folder: Path) -> bool:
    """Whether a folder has a manifest of ours, of any version: other programs have files of that name, too."""
    return _listed(folder) is not None


def strangers(folder: Path) -> list[str]:
    """What a bundle's folder holds besides the bundle's own files, relative to it; folders end in a slash.

    A file is the bundle's own that its manifest lists and that has a name which blockexport gives.

    A symbolic link to a folder is a stranger, whatever it points to. Without a manifest everything is.
    """
    return sorted(name for name, own in _contents(folder, _listed(folder) or frozenset()) if not own)


def remove_own(folder: Path) -> bool:
    """Remove a bundle's own files and the folders that are empty then; True when nothing is left."""
    listed = _listed(folder) or frozenset()
    own = [name for name, is_own in _contents(folder, listed) if is_own]
    others = [name for name in own if name != MANIFEST]
    for name in others:
        remove(folder / name)
    _remove_empty(folder, {parent for name in listed for parent in PurePosixPath(name).parents if parent.parts})
    if MANIFEST in own:  # after all else: cut short before, it tells the next one what to remove
        remove(folder / MANIFEST)
    _remove_empty(folder, [PurePosixPath()])
    return not folder.exists()


def _remove_empty(folder: Path, below: Iterable[PurePosixPath]) -> None:
    for path in sorted(below, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):  # it holds something else
            (folder / path).rmdir()


def _listed(folder: Path) -> Set[str] | None:
    """The files that the manifest in `folder` lists and a bundle can have, itself included; None where there is none
    that blockexport wrote."""
    try:
        manifest = json.loads(read_bytes(folder / MANIFEST))
        files = manifest["files"]
        if not {"schema_version", "weights_digest"} <= manifest.keys():
            return None
        own = {name for name, entry in files.items() if "sha256" in entry and _OURS.fullmatch(name)}
        return own | {MANIFEST, SIGNATURE, LOCK, PLAN}
    except (UsageError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _contents(folder: Path, listed: Set[str], below: str = "") -> Iterator[tuple[str, bool]]:
    """Every file under `folder` and whether it is the bundle's own; a folder without files of its own is one item."""
    folders = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    for entry in os.scandir(folder / below):
        name = f"{below}{entry.name}"
        if partial_origin(entry.name) is not None:
            yield name, True
        elif not entry.is_dir(follow_symlinks=False):
            yield name, name in listed
        elif name in folders:
            yield from _contents(folder, listed, f"{name}/")
        else:
            yield f"{name}/", False
