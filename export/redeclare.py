"""Declare another number of cache slots in a bundle, for runtimes that take it from the file.

Nothing in the graph depends on M but the declared shapes, so this is no export: the graphs, `genai_config.json` and
the manifest are rewritten, together or not at all. What was judged or built at the old M is left out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blockexport.export.bundle.bundle import add_files
from blockexport.export.bundle.check_graph import declare_max_sequence_length, read_graph
from blockexport.export.bundle.clone_file import share_blocks
from blockexport.export.bundle.file_check import check_artifact, file_entry
from blockexport.export.bundle.golden_file import GOLDEN_FILE, read_golden
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest, read_manifest
from blockexport.export.bundle.own_verdict import PARITY, require_not_bad
from blockexport.export.bundle.sbom import with_sbom
from blockexport.export.bundle.stage import addition, staged
from blockexport.export.output.disk import check_free_space, disk_errors
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import read_json_object
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole

GENAI_CONFIG = "genai_config.json"


class Redeclared(NamedTuple):
    """A bundle's new manifest, and the files that were made for the old M and are no longer listed."""

    manifest: Manifest
    dropped: list[str]


@typed_call
def redeclare(
    bundle: str | Path, max_sequence_length: int, output: str | Path | None = None, *, force: bool = False
) -> Redeclared:
    """Give a bundle M = `max_sequence_length` cache slots, in place or as a copy in `output`.

    The golden vectors stay, since they hold for any M that they fit into; the parity report and engines do not.

    Args:
        bundle: a bundle.
        max_sequence_length: M, from the length of the golden vectors to the rows of the bundle's RoPE table.
        output: where to put a bundle with the new M; None changes `bundle` itself.
        force: replace an older bundle in `output`.

    Raises:
        UsageError: M is out of that range, a file is not the one that the manifest lists, `bundle` holds engines and
            no `output` is named, or the disk is full. Nothing has changed then.
        RejectedBundleError: `bundle` was judged and found bad.
    """
    bundle, max_sequence_length = Path(bundle), whole("max_sequence_length", max_sequence_length, least=1)
    manifest = read_manifest(bundle)
    require_not_bad(bundle, manifest)  # the report does not go with it
    _check_golden(bundle, manifest, max_sequence_length)
    same = max_sequence_length == manifest.max_sequence_length
    if same and output is None:
        with suppress(UsageError), addition(bundle):  # to clear what a killed one has left, where one may
            pass
        return Redeclared(manifest, [])
    dropped = [n for n in manifest.files if n in manifest.engines or (n.startswith(f"{PARITY}/") and not same)]
    if output is None:
        if manifest.engines:
            raise UsageError(
                f"{bundle} holds engines built for {manifest.max_sequence_length} slots: name another bundle with -o, "
                "and build engines for it with `blockexport trt`"
            )
        with addition(bundle) as folder:
            written = _write(bundle, manifest, max_sequence_length, folder)
            graphs = {name: manifest.files[name].sha256 for name in manifest.graphs}
            read = {**graphs, **manifest.files[ONNX_FILE].made_from}
            changed = add_files(
                bundle,
                written,
                read,
                lambda now: _updated(now, manifest, max_sequence_length, written, dropped),
                dropped,
            )
        return Redeclared(changed, dropped)
    with staged(Path(output), [bundle], force=force) as stage:
        with disk_errors(Path(output)):
            check_free_space(stage.folder, sum(manifest.files[name].bytes for name in manifest.files))
            for name in manifest.files:
                if name not in dropped:
                    _copy(bundle / name, stage.folder / name)
        written = _write(bundle, manifest, max_sequence_length, stage.folder)
        entries = {name: file_entry(path) for name, path in written.items()}
        now = replace(manifest, files={**manifest.files, **entries})
        changed = with_sbom(stage.folder, _updated(now, manifest, max_sequence_length, written, dropped))
        stage.seal(changed)
    return Redeclared(changed, dropped)


def _check_golden(bundle: Path, manifest: Manifest, max_sequence_length: int) -> None:
    if GOLDEN_FILE not in manifest.files:
        return
    needed = int(read_golden(bundle).positions_P[-1]) + 1
    if max_sequence_length < needed:
        raise UsageError(
            f"max_sequence_length {max_sequence_length} is less than the {needed} slots that the bundle's golden "
            f"vectors need: choose at least as many, or export with --max-sequence-length {max_sequence_length}"
        )


def _write(bundle: Path, manifest: Manifest, max_sequence_length: int, folder: Path) -> dict[str, Path]:
    """Write the graphs and genai's config with the new M into `folder`; returns their paths by name."""
    written = {name: folder / name for name in manifest.graphs}
    with disk_errors(folder):
        for name, path in written.items():
            graph = read_graph(bundle, manifest, name)
            check_artifact(bundle, manifest, name, "sample")
            declare_max_sequence_length(graph, max_sequence_length, manifest.rope_table_rows, manifest.config)
            path.write_bytes(graph.SerializeToString(deterministic=True))
        if GENAI_CONFIG in manifest.files:
            genai = read_json_object(bundle / GENAI_CONFIG, "export the bundle again")
            try:
                genai["model"]["context_length"] = genai["search"]["max_length"] = max_sequence_length
            except (KeyError, TypeError) as error:
                raise UsageError(
                    f"{bundle / GENAI_CONFIG} has no model and search with keys of their own: export the bundle again"
                ) from error
            written[GENAI_CONFIG] = folder / GENAI_CONFIG
            written[GENAI_CONFIG].write_text(json.dumps(genai, indent=2) + "\n", encoding="utf-8")
    return written


def _updated(
    now: Manifest, before: Manifest, max_sequence_length: int, written: Iterable[str], dropped: Collection[str]
) -> Manifest:
    """The manifest `now`, which has entries of what was written, with the new M, and all entries as they should be."""
    old = before.files[ONNX_FILE].sha256
    entries = {name: entry for name, entry in now.files.items() if name not in dropped}
    for name in written:
        entries[name] = replace(entries[name], made_from=before.files[name].made_from)
    for name, entry in entries.items():
        if entry.made_from.get(ONNX_FILE) == old:  # golden vectors, an AOTInductor package: both hold for any M
            entries[name] = replace(entry, made_from={**entry.made_from, ONNX_FILE: entries[ONNX_FILE].sha256})
    changed = replace(now, max_sequence_length=max_sequence_length, files=dict(sorted(entries.items())))
    return replace(changed, inputs=changed.interface.inputs, outputs=changed.interface.outputs)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not share_blocks(source, target):
        shutil.copyfile(source, target)
