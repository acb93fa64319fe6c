"""`blockexport verify`: is a bundle whole, and what its manifest says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.cli.completion import models
from blockexport.models.exit_codes import ExitCode


def verify(
    bundle: options.Bundle,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="CHECKPOINT",
            help="Derive the weights anew from the source checkpoint, in a temporary folder, and compare them.",
            autocompletion=models,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="A public key of minisign's, or a file with one, to be signed by."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="FILE", help="A secret key of minisign's, to sign what nothing is wrong with."),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Check a bundle without running it, and list everything that is wrong.

    Every file is there, has its SHA-256, was made from the others as they are, and nothing else lies there; the
    manifest has its own digest; the graph passes ONNX's checker, has the inputs and outputs that the manifest lists,
    and reads its weights inside of the bundle from pieces that do not overlap; the report is about these very files and
    good; engines are of this graph and of the TensorRT that is installed. No part of the bundle is executed. What could
    not be checked is said. Exit code 0: nothing is wrong, 1: something is.

    Example: blockexport verify smollm2
    """
    from blockexport.compare.verify_bundle import verify_bundle
    from blockexport.models.wording import one_line, plural, size

    with console.progress_bar(quiet=quiet or as_json) as progress:
        found = verify_bundle(bundle, source=source, key=key, sign=sign, progress=progress)
    if as_json:
        console.print_json(
            {
                "bundle": str(bundle),
                "files": found.files,
                "bytes": found.bytes,
                "problems": found.problems,
                "not_checked": found.not_checked,
                "signature": None if found.signature is None else str(found.signature),
            }
        )
        return found.exit_code
    out = console.stdout_console()
    for problem in found.problems:
        out.print(one_line(problem), soft_wrap=True)
    for reason in found.not_checked:
        console.say(one_line(f"not checked: {reason}"), quiet=quiet)
    total = f"{len(found.problems)} wrong" if found.problems else "nothing is wrong"
    out.print(f"{bundle}: {plural(found.files, 'file')}, {size(found.bytes)}: {total}", soft_wrap=True)
    if found.signature is not None:
        out.print(f"signed with {sign}: the signature is {found.signature}", soft_wrap=True)
    return found.exit_code
