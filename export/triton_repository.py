"""A bundle as models of a Triton Inference Server repository: one that takes and gives text, and the decoder by itself.

Source: docs/user_guide/model_repository.md and model_configuration.md of github.com/triton-inference-server/server.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from blockexport.export.bundle.chain import require_whole
from blockexport.export.bundle.clone_file import clone_files
from blockexport.export.bundle.embedding import require_no_embeddings
from blockexport.export.bundle.file_check import REMEDY
from blockexport.export.bundle.manifest import MANIFEST, ONNX_FILE, Manifest, read_manifest
from blockexport.export.bundle.own_verdict import require_not_bad
from blockexport.export.output.atomic_write import remove_abandoned, signals_deferred
from blockexport.export.output.disk import disk_errors, folders_made
from blockexport.export.output.hidden_names import partial_path
from blockexport.export.output.place import inputs_of, output_place
from blockexport.models.element_types import BY_NAME
from blockexport.models.errors import UsageError
from blockexport.models.interface import Port
from blockexport.models.precision import Precision

VERSION, BUNDLE = "1", "bundle"
CONFIG, PROGRAM, README = "config.pbtxt", "model.py", "README.md"
DECODER = "-decoder"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PROGRAM = '''"""Written by `blockexport triton`: the bundle beside this file, served by blockexport's scheduler."""

from blockexport.runtime.serving.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


@dataclass(frozen=True)
class Asked:
    """What of a repository is a matter of choice.

    Attributes:
        name: what the text model is called; the decoder is NAME-decoder.
        rows: answers at once.
        queue: requests that may wait for a row.
        backend: what runs the bundle.
        decoder: whether the decoder is written, too.
    """

    name: str
    rows: int
    queue: int
    backend: str
    decoder: bool


def write_repository(bundle: Path, repository: Path, asked: Asked) -> list[Path]:
    """Add a bundle's models to a repository, which is made where it is not there; returns their folders.

    Every file of the bundle is copied, and compared with the manifest on the way; where the file system can, copies
    share their blocks.

    Raises:
        UsageError: a name that Triton does not take, one that the repository has already, a stage, a bundle without
            logits, a file that is not the one the manifest lists, too little space.
        RejectedBundleError: the bundle was judged and found bad.
    """
    if not _NAME.fullmatch(asked.name):
        raise UsageError(
            f"{asked.name!r} cannot name a model: begin with a letter or digit, and go on with those, '.', '_' and '-'"
        )
    manifest = read_manifest(bundle)
    require_whole(manifest, bundle, "Triton is to run the model in one piece")
    require_not_bad(bundle, manifest)
    require_no_embeddings(manifest, bundle, "its models for Triton take and give text")
    if manifest.headless:
        raise UsageError(f"{bundle} is headless and gives no tokens: export it without --headless")
    place = output_place(repository, inputs_of(bundle))
    names = [asked.name, *([f"{asked.name}{DECODER}"] if asked.decoder else [])]
    for name in names:
        if os.path.lexists(place / name):
            raise UsageError(f"{repository} has a model {name} already: remove it, or choose another --name")
    with folders_made(place), disk_errors(place), _hidden(place) as folder:
        _write_text_model(bundle, manifest, folder / names[0], asked)
        if asked.decoder:
            _write_decoder(bundle, manifest, folder / names[1], names[1])
        _move([(folder / name, place / name) for name in reversed(names)])  # the one that people look for comes last
    return [place / name for name in names]


def can_hold_decoder(manifest: Manifest) -> bool:
    """Whether Triton's ONNX Runtime backend has the types of the decoder's inputs and outputs."""
    return manifest.precision is not Precision.BF16


@contextmanager
def _hidden(place: Path) -> Iterator[Path]:
    remove_abandoned(place)
    folder = partial_path(place / "models")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(moves: Sequence[tuple[Path, Path]]) -> None:
    """All or none."""
    done: list[tuple[Path, Path]] = []
    with signals_deferred():
        try:
            for new, place in moves:
                os.rename(new, place)  # which the system refuses where something has come to be there
                done.append((new, place))
        except OSError:
            for new, place in done:
                os.rename(place, new)
            raise


def _write_text_model(bundle: Path, manifest: Manifest, folder: Path, asked: Asked) -> None:
    version = folder / VERSION
    version.mkdir(parents=True)
    (version / PROGRAM).write_text(_PROGRAM, encoding="utf-8")
    (folder / CONFIG).write_text(text_config(asked), encoding="utf-8")
    (folder / README).write_text(_readme(manifest, asked), encoding="utf-8")
    _copy(bundle, manifest, manifest.files, version / BUNDLE)
    shutil.copyfile(bundle / MANIFEST, version / BUNDLE / MANIFEST)


def _write_decoder(bundle: Path, manifest: Manifest, folder: Path, name: str) -> None:
    _copy(bundle, manifest, (ONNX_FILE, *manifest.files[ONNX_FILE].made_from), folder / VERSION)
    (folder / CONFIG).write_text(decoder_config(manifest, name), encoding="utf-8")


def _copy(bundle: Path, manifest: Manifest, names: Iterable[str], target: Path) -> None:
    """Files of a bundle, each compared with the manifest."""
    targets = {bundle / name: target / name for name in names}
    for missing in (path for path in targets if not path.is_file()):
        raise UsageError(f"{missing} is missing: {REMEDY}")
    for path in targets.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    with clone_files(targets) as finish:
        digests = finish()
    for name in names:
        if digests[bundle / name] != manifest.files[name].sha256:
            raise UsageError(f"{bundle / name} is not the file that the manifest lists: {REMEDY}")


def text_config(asked: Asked) -> str:
    """`config.pbtxt` of the model that takes and gives text."""
    values = {"rows": asked.rows, "queue": asked.queue, "backend": asked.backend}
    choices = (("sampling_parameters", "TYPE_STRING"), ("stream", "TYPE_BOOL"), ("chat", "TYPE_BOOL"))
    inputs = [_tensor("text_input", "TYPE_STRING", (1,))]
    inputs += [_tensor(name, kind, (1,), optional=True) for name, kind in choices]
    outputs = [_tensor(name, "TYPE_STRING", (1,)) for name in ("text_output", "finish_reason")]
    parameters = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()]
    return _config(asked.name, "python", inputs, outputs, ["model_transaction_policy { decoupled: true }", *parameters])


def decoder_config(manifest: Manifest, name: str) -> str:
    """`config.pbtxt` of the ONNX file; axes of any size are -1."""
    inputs, outputs = ([_port(port) for port in ports] for ports in (manifest.inputs, manifest.outputs))
    return _config(name, "onnxruntime", inputs, outputs, [])


def _port(port: Port) -> str:
    return _tensor(
        port.name, BY_NAME[port.dtype].triton, [size if isinstance(size, int) else -1 for size in port.shape]
    )


def _tensor(name: str, kind: str, dims: Iterable[int], *, optional: bool = False) -> str:
    more = " optional: true" if optional else ""
    return f'  {{ name: "{name}" data_type: {kind} dims: [ {", ".join(map(str, dims))} ]{more} }}'


def _config(name: str, backend: str, inputs: Sequence[str], outputs: Sequence[str], more: Sequence[str]) -> str:
    lines = [
        f'name: "{name}"',
        f'backend: "{backend}"',
        "max_batch_size: 0  # rows are an axis of the inputs, and the scheduler's own",
        "input [",
        ",\n".join(inputs),
        "]",
        "output [",
        ",\n".join(outputs),
        "]",
        "instance_group [ { count: 1 kind: KIND_CPU } ]" if backend == "python" else "instance_group [ { count: 1 } ]",
        *more,
    ]
    return "\n".join(lines) + "\n"


def _readme(manifest: Manifest, asked: Asked) -> str:
    values = {
        "name": asked.name,
        "rows": asked.rows,
        "queue": asked.queue,
        "backend": asked.backend,
        "slots": manifest.max_sequence_length,
        "version": VERSION,
        "bundle": BUNDLE,
    }
    names = ("triton.md", *(["triton_decoder.md"] if asked.decoder else []))
    texts = (Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8") for name in names)
    return "\n".join(Template(text).substitute(values) for text in texts)
