"""Is a bundle whole, and what its manifest says? All that can be told of it without running its model.

What opens a bundle looks at a part of this and stops at the first fault; here everything is looked at and told.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory

from blockexport.compare.core.check import Verdict
from blockexport.export.bundle.engine_entry import ENGINES, entry_of
from blockexport.export.bundle.file_check import wrong_files
from blockexport.export.bundle.manifest import MANIFEST, ONNX_FILE, Manifest, is_as_written, read_manifest
from blockexport.export.bundle.own_verdict import PARITY, REPORT, REPORT_FOLDERS, why_bad
from blockexport.export.bundle.signature import sign_manifest, wrong_signature
from blockexport.export.bundle.trt_library import load_library
from blockexport.export.bundle.verify_graph import wrong_graph
from blockexport.export.onnx_export import stored_weights
from blockexport.export.output.atomic_write import PLAN, abandoned
from blockexport.export.output.ownership import SIGNATURE, strangers
from blockexport.export.weights.weight_files import write_weights
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.models.progress import Progress, silent
from blockexport.models.regular_file import is_there, read_bytes, read_json_object
from blockexport.models.strict_json import shown
from blockexport.models.typed_call import typed_call
from blockexport.runtime.recorded_source import open_source
from blockexport.runtime.tensorrt.trt_engine_file import check_engine


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        files: how many the manifest lists.
        bytes: of all of them.
        problems: what is wrong, each a sentence without its full stop.
        not_checked: what could not be told on this machine, or of this bundle, and why.
        signature: the file that was written with `sign`; None where nothing was signed.
    """

    files: int
    bytes: int
    problems: tuple[str, ...]
    not_checked: tuple[str, ...]
    signature: Path | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What a command that asked ends with."""
        return ExitCode.BAD if self.problems else ExitCode.GOOD


@typed_call
def verify_bundle(
    bundle: str | Path,
    *,
    source: str | Path | None = None,
    key: str | Path | None = None,
    sign: str | Path | None = None,
    progress: Progress = silent,
) -> Verification:
    """Check a bundle without running it: files against the manifest, graph, external data, report and engines.

    Args:
        bundle: the folder.
        source: the checkpoint that it was exported from: its weights are derived anew, in a temporary folder, and
            compared with the bundle's.
        key: a public key of minisign's, or a file with one, that the manifest has to be signed by.
        sign: a file with a secret key of minisign's, which signs the manifest where nothing is wrong.
        progress: told how many MiB are hashed, and how many of the weights are written.

    Raises:
        UsageError: no bundle, or one of another schema; a file that may not be read; a source that does not open; a
            key that is none.
        NotJudgedError: the adapter that was merged into the source is not there, or cryptography is not installed.
    """
    folder = Path(bundle)
    problems: list[str] = []
    not_checked: list[str] = []
    there = is_there(folder / MANIFEST)
    # Before it is parsed: what is signed are the bytes that were checked.
    content = read_bytes(folder / MANIFEST) if there else b""
    whole = is_as_written(folder) if there else None
    if whole is False:
        problems.append(
            f"{folder / MANIFEST} is not as blockexport wrote it: it does not have the digest that it names"
        )
    try:
        manifest = read_manifest(folder)
    except UsageError as error:
        if whole is not False:
            raise
        return Verification(0, 0, (*problems, str(error)), ())
    if whole is None:
        not_checked.append("whether the manifest was changed: a blockexport wrote it that did not put its digest there")
    problems += wrong_files(folder, manifest, progress)
    problems += [
        f"{folder / name} is "
        + ("no file that blockexport writes" if name in manifest.files else "not listed in the manifest")
        for name in strangers(folder)
    ]
    if (folder / PLAN).exists():
        problems.append(
            f"{folder / PLAN} was left by a process that was killed over it, and cannot be carried out here"
        )
    problems += [
        f"{path} was left by a process that was killed; the next one that adds to the bundle removes it"
        for path in abandoned(folder)
    ]
    problems += wrong_graph(folder, manifest)
    for told, reasons in (
        _report(folder, manifest),
        _engines(folder, manifest),
        _weights(folder, manifest, source, progress),
    ):
        problems += told
        not_checked += reasons
    signature = None
    if sign is not None and not problems:
        sign_manifest(folder, content, Path(sign))
        signature = folder / SIGNATURE
    if key is not None:
        reason = wrong_signature(folder, content, str(key))
        problems += [] if reason is None else [reason]
    elif sign is None and (folder / SIGNATURE).exists():
        not_checked.append("the signature of the manifest: --key names the key that it has to be by")
    return Verification(
        len(manifest.files),
        sum(entry.bytes for entry in manifest.files.values()),
        tuple(dict.fromkeys(problems)),
        tuple(not_checked),
        signature,
    )


Found = tuple[list[str], list[str]]
"""Problems, and what was not checked."""


def _report(folder: Path, manifest: Manifest) -> Found:
    """Whether the report is on this very graph with these weights, and good."""
    if REPORT not in manifest.files:
        return [], ["what the file computes: there is no report in the bundle, and `blockexport compare` judges it"]
    problems = [
        f"{folder / one} does not say which {part} it is about"
        for one, entry in manifest.files.items()
        if one.startswith(f"{PARITY}/")
        for graph in [next(graph for graph, place in REPORT_FOLDERS.items() if one.startswith(f"{place}/"))]
        for part in (graph, *manifest.files[ONNX_FILE].made_from)
        if part not in entry.made_from
    ]
    try:
        bad = why_bad(folder, manifest)
        report = read_json_object(folder / REPORT, "export the bundle again")
    except UsageError as error:
        return [*problems, str(error)], []
    problems += [] if bad is None else [bad]
    artifact, verdict = report.get("artifact"), report.get("verdict")
    if verdict not in tuple(Verdict):
        problems.append(
            f"{folder / REPORT} has the verdict {shown(verdict)}, and must have one of {', '.join(Verdict)}"
        )
    not_checked = [] if verdict != Verdict.NOT_JUDGED else [f"what the file computes: {report.get('summary')}"]
    listed = {
        "precision": str(manifest.precision),
        "max_sequence_length": manifest.max_sequence_length,
        "headless": manifest.headless,
        "last_logits_only": manifest.last_logits_only,
        "embedding": None if manifest.embedding is None else asdict(manifest.embedding),
        "model_type": manifest.config.model_type,
    }
    told = artifact if isinstance(artifact, dict) else {}
    problems += [
        f"{folder / REPORT} is about a file whose {key} is {told.get(key)}, and the manifest says {value}"
        for key, value in listed.items()
        if told.get(key) != value
    ]
    return problems, not_checked


def _engines(folder: Path, manifest: Manifest) -> Found:
    """Whether the engines are of this graph, and load in the TensorRT that is installed. None is opened."""
    problems, not_checked = [], []
    for name in manifest.files:
        if name.startswith(f"{ENGINES}/") and name not in manifest.engines:
            problems.append(f"{folder / name} is an engine that the manifest does not describe")
    for name in manifest.engines:
        try:
            entry = entry_of(manifest, name)
            version = _installed(entry.backend)
            if version is None:
                not_checked.append(f"whether {name} loads: {entry.backend} is not installed")
            if (entry.inputs, entry.outputs) != (manifest.inputs, manifest.outputs):
                problems.append(f"{folder / name} has other inputs or outputs than the bundle")
            check_engine(folder, manifest, name, entry, version, read=False)
        except UsageError as error:
            problems.append(str(error))
    return problems, not_checked


def _installed(backend: str) -> str | None:
    try:
        return load_library(backend).version
    except NotJudgedError:
        return None


def _weights(folder: Path, manifest: Manifest, source: str | Path | None, progress: Progress) -> Found:
    """Whether a checkpoint gives the weights that the bundle has."""
    if source is None:
        return [], []
    if manifest.quantisation is not None and manifest.quantisation.calibration is not None:
        return [], [f"the weights against {source}: their codes were chosen on a text, which the bundle does not hold"]
    checkpoint = open_source(manifest, str(source))
    problems = [
        f"{source} has another {field.name} in its config than the bundle: {theirs!r}, and the manifest says {ours!r}"
        for field in fields(manifest.config)
        if (ours := getattr(manifest.config, field.name)) != (theirs := getattr(checkpoint.config, field.name))
    ]
    stored, names = stored_weights(checkpoint, manifest.interface.ends, manifest.quantisation)
    with TemporaryDirectory(prefix="blockexport-") as made:
        written = write_weights(stored, Path(made), manifest.precision, names, manifest.quantisation, progress).files
    problems += [
        f"{source} gives another {name} than the bundle holds"
        for name, sha256 in written.items()
        if name not in manifest.files or manifest.files[name].sha256 != sha256
    ]
    return problems, []
