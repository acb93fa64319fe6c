"""`blockexport doctor`: what this machine can do, and what stands in the way, with the remedy."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from blockexport.cli import console, options
from blockexport.models.exit_codes import ExitCode
from blockexport.models.wording import size
from blockexport.runtime.backends import BACKENDS, ENGINES
from blockexport.runtime.compute_device import gpu_missing

State = Literal["good", "note", "bad"]

_LIBRARIES = ("torch", "onnx", "onnx-ir", "safetensors", "gguf", "tokenizers", "huggingface-hub")
_ONNX_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class Observation:
    """One line of the report. `bad` means that the way from a checkpoint to a proven bundle is blocked; `note` that
    something optional is missing. `remedy` is what to do, empty when nothing is to be done."""

    name: str
    value: str
    state: State = "good"
    remedy: str = ""


def doctor(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            exists=True,
            file_okay=False,
            help="Where bundles are to be written: its device is looked at.",
        ),
    ] = Path(),
    as_json: options.Json = False,
) -> ExitCode:
    """Look at Python, libraries, execution providers, GPU and disk, and say what to fix.

    Exits 0 when a checkpoint can be exported and proven on this machine's CPU, and 3 when it cannot. What is only
    optional (a GPU, TensorRT, reflinks) is reported and does not change the exit code.

    Example: blockexport doctor
    """
    findings = examine(folder)
    works = all(finding.state != "bad" for finding in findings)
    if as_json:
        console.print_json({"ok": works, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings, works)
    return ExitCode.GOOD if works else ExitCode.NOT_JUDGED


def examine(folder: Path) -> list[Observation]:
    """Every finding, in the order of the report. A check that fails unexpectedly is itself a bad finding."""
    checks: tuple[tuple[str, Callable[[], Iterator[Observation]]], ...] = (
        ("machine", _machine),
        ("libraries", _libraries),
        ("ONNX Runtime", _onnx_runtime),
        ("GPU", _gpu),
        ("TensorRT", _tensorrt),
        ("C++ compiler", _compiler),
        ("backends", _backends),
        ("disk", lambda: _disk(folder)),
    )
    findings: list[Observation] = []
    for name, check in checks:
        try:
            findings.extend(check())
        except Exception as error:  # a broken library can fail in any way, and saying so is what doctor is for
            findings.append(
                Observation(name, f"{type(error).__name__}: {error}", "bad", "reinstall what the message names")
            )
    return findings


def _print(findings: list[Observation], works: bool) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    marks = {"good": "ok", "note": "--", "bad": "XX"}
    for finding in findings:
        table.add_row(marks[finding.state], finding.name, finding.value)
        if finding.remedy:
            table.add_row("", "", f"-> {finding.remedy}")
    out = console.stdout_console()
    out.print(table)
    out.print(
        "This machine can export a checkpoint and prove the bundle on its CPU."
        if works
        else "This machine cannot export and prove a bundle yet: fix what is marked XX.",
    )


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it; None when it is absent."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[Observation]:
    yield Observation("blockexport", installed_version("blockexport") or "run from source")
    yield Observation("Python", f"{platform.python_version()} ({sys.executable})")
    yield Observation("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield Observation("memory", size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))


def _libraries() -> Iterator[Observation]:
    for name in _LIBRARIES:
        version, absent = installed_version(name), Observation(name, "not installed", "bad", f"pip install {name}")
        yield Observation(name, version) if version else absent


def _onnx_runtime() -> Iterator[Observation]:
    wheels = {name: version for name in _ONNX_RUNTIMES if (version := installed_version(name)) is not None}
    if not wheels:
        yield Observation(
            "onnxruntime", "not installed: bundles can be written, not run or proven", "bad",
            "pip install onnxruntime, or onnxruntime-gpu for CUDA",
        )  # fmt: skip
        return
    value = ", ".join(f"{name} {version}" for name, version in wheels.items())
    if len(wheels) > 1:
        yield Observation(
            "onnxruntime", f"{value}: both write the folder onnxruntime, so the later one broke the other", "bad",
            "pip uninstall -y onnxruntime onnxruntime-gpu, then install the one you want",
        )  # fmt: skip
        return
    yield Observation("onnxruntime", value)
    session = importlib.import_module("blockexport.runtime.onnx_session")
    runtime = session.ort
    providers = runtime.get_available_providers()
    yield Observation("execution providers", ", ".join(name.removesuffix("ExecutionProvider") for name in providers))
    yield _dialect(runtime)
    if session.CUDA_PROVIDER in providers and (reason := session.cuda_missing()) is not None:
        yield Observation("ONNX Runtime on a GPU", reason, "note")


def _dialect(runtime: Any) -> Observation:
    """Run TensorScatter, the newest operator that a bundle's graph uses, on three numbers."""
    import numpy as np
    from onnx import parser

    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 24]>
        probe (float[1,1,3,1] past, float[1,1,1,1] update, int64[1] start) => (float[1,1,3,1] present) {
            present = TensorScatter <axis = 2, mode = "linear"> (past, update, start)
        }"""
    )
    past, update = np.zeros((1, 1, 3, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)
    feeds = {"past": past, "update": update, "start": np.array([2], np.int64)}
    try:
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors: that an unbound cache is copied is no news here
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        present = session.run(None, feeds)[0].ravel().tolist()
    except Exception as error:
        reason = str(error).splitlines()[0]
        return Observation("opset 24", f"refused: {reason}", "bad", "pip install --upgrade onnxruntime")
    if present != [0.0, 0.0, 1.0]:
        return Observation("opset 24", f"TensorScatter gave {present}", "bad", "reinstall onnxruntime")
    return Observation("opset 24", "TensorScatter runs")


def _gpu() -> Iterator[Observation]:
    import torch

    if (reason := gpu_missing()) is not None:
        yield Observation("GPU", f"none that torch can use ({reason})", "note")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = f"compute capability {properties.major}.{properties.minor}"
        yield Observation(f"GPU {index}", f"{properties.name}, {capability}, {size(properties.total_memory)}")


def _tensorrt() -> Iterator[Observation]:
    for module, package in ((one.library.module, one.library.distribution) for one in ENGINES if one.library):
        version = installed_version(module)
        if version is None:
            yield Observation(module, "not installed", "note", f"for engines: pip install {package}")
            continue
        try:
            importlib.import_module(module)
        except Exception as error:  # the wheel is there, its libraries are not
            yield Observation(
                module, f"{version}, but does not load: {error}", "note", f"pip install --force-reinstall {module}"
            )
        else:
            yield Observation(module, version)


def _compiler() -> Iterator[Observation]:
    from blockexport.export.aoti import compiler_name, require_compiler
    from blockexport.models.errors import NotJudgedError

    try:
        require_compiler()
    except NotJudgedError as error:
        yield Observation("C++ compiler", "none that runs", "note", f"for `blockexport aoti` and `cpp`: {error}")
    else:
        yield Observation("C++ compiler", compiler_name())


def _backends() -> Iterator[Observation]:
    """What `--backend` takes, and whether what it needs is installed."""
    for backend in BACKENDS:
        where, library = f"on {' or '.join(backend.devices)}", backend.library
        if library is None or library.versions():
            yield Observation(f"--backend {backend.name}", f"installed, runs {where}")
        else:
            remedy = f"pip install {library.distribution}"
            yield Observation(f"--backend {backend.name}", f"not installed; runs {where}", "note", remedy)


def _disk(folder: Path) -> Iterator[Observation]:
    if not os.access(folder, os.W_OK):
        yield Observation("folder", f"{folder.resolve()} cannot be written to", "bad", "choose another folder")
        return
    yield Observation("folder", f"{folder.resolve()}, {size(shutil.disk_usage(folder).free)} free")
    if supports_reflinks(folder):
        yield Observation("reflinks", "yes: a weights file is cloned without copying its bytes")
    else:
        yield Observation("reflinks", "no: a weights file is copied at the disk's speed", "note")


def supports_reflinks(folder: Path) -> bool:
    """Whether the file system under `folder` can clone a file, by trying it on a small one."""
    from blockexport.export.bundle.clone_file import share_blocks

    with tempfile.TemporaryDirectory(prefix=".blockexport-doctor-", dir=folder) as scratch:
        source = Path(scratch, "source")
        source.write_bytes(b"blockexport" * 1000)
        return share_blocks(source, Path(scratch, "clone"))
