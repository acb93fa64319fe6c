"""`blockexport lint`: would TensorRT run this ONNX file as it is written, or ONNX Runtime run it fast on a GPU?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.export.lint.lint_target import CUDA, TARGETS
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode


def lint(
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx|BUNDLE", help="Any ONNX file, or a bundle's folder.")],
    target: Annotated[
        str, options.choice("--for", TARGETS, "What is to run it: TensorRT, or ONNX Runtime on a CUDA GPU.")
    ] = TARGETS[0],
    as_json: options.Json = False,
) -> ExitCode:
    """Look in FILE for what TensorRT accepts and ignores, builds differently, rejects late or crashes on.

    Needs neither TensorRT nor a GPU, and does not read the weights. Bodies of If, Loop and Scan and local functions are
    looked through too. `blockexport trt` runs the same rules before every build. Exits 0 when nothing was found and 1
    when something was; a clean file may still hold a trap nobody knows yet. Caches are recognised by where their
    entries go, whatever their names; where there is none, the last line says so. With --for onnxruntime-cuda it
    looks for what has no fast kernel there, and of a bundle with both forms of attention at the one meant for that.

    Example: blockexport lint model.onnx
    """
    from blockexport.export.bundle.manifest import NONPAD_FILE, ONNX_FILE
    from blockexport.export.lint.lint_graph import lint_file
    from blockexport.models.regular_file import is_anything

    names = (NONPAD_FILE, ONNX_FILE) if target == CUDA else (ONNX_FILE,)
    there = (file / name for name in names if is_anything(file / name))
    path = next(there, file / ONNX_FILE) if file.is_dir() else file
    if path != file and not is_anything(path):
        raise UsageError(f"{file} is a folder without {ONNX_FILE}: name an ONNX file, or a bundle")
    examined = lint_file(path, target)
    findings = examined.findings
    if as_json:
        console.print_json(
            {"file": str(path), "caches": examined.caches, "findings": [asdict(finding) for finding in findings]}
        )
    else:
        out = console.stdout_console()
        for finding in findings:
            out.print(f"{finding.rule}: {finding}", soft_wrap=True)
        nodes = sum(len(finding.nodes) for finding in findings)
        total = "none of the known traps"
        if findings:
            total = f"{len(findings)} found" + (f", at {nodes} nodes" if nodes > len(findings) else "")
        if not examined.caches:
            total = f"no cache recognised, so the rules about caches saw nothing; of the others, {total}"
        out.print(f"{path}: {total}", soft_wrap=True)
    return ExitCode.BAD if findings else ExitCode.GOOD
