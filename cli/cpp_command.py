"""`blockexport cpp`: a C++ project that chats with a bundle, ready for CMake."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from blockexport.cli import console, options
from blockexport.cpp_project import CPP_BACKENDS
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import AOTI, ONNXRUNTIME


def cpp(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="A bundle made by `blockexport onnx`.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder to write the project into.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        options.choice(
            "--backend",
            CPP_BACKENDS,
            "What the program runs the bundle with; may be repeated, and the first is its default. "
            f"Default: {ONNXRUNTIME.name}.",
        ),
    ] = None,
    cmake_dir: Annotated[
        bool, typer.Option("--cmake-dir", help="Print the folder for -Dblockexport_DIR=..., and do nothing else.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an older project's files, if unchanged.")] = False,
    quiet: options.Quiet = False,
) -> ExitCode:
    """Write a C++ project for BUNDLE: CMakeLists.txt, main.cpp (a chat in the terminal), selftest.cpp and speed.cpp.

    The programs need no Python. selftest replays the bundle's golden vectors and exits 1 on a difference: run it on the
    target machine before anything else. speed measures a prompt and the steps after it; `blockexport bench --against
    cpp:DIR` runs it beside others.

    Example: blockexport cpp smollm2 -o chat
    """
    from blockexport import cpp_project

    if cmake_dir:
        typer.echo(cpp_project.cmake_dir())
        return ExitCode.GOOD
    from blockexport.export.bundle.chain import require_whole
    from blockexport.export.bundle.embedding import require_no_embeddings
    from blockexport.export.bundle.manifest import read_manifest
    from blockexport.export.bundle.own_verdict import require_not_bad
    from blockexport.export.output.place import inputs_of

    if bundle is None or output is None:
        raise UsageError("name a bundle and a folder: blockexport cpp BUNDLE -o DIR")
    manifest = read_manifest(bundle)
    require_whole(manifest, bundle, "the C++ library runs models in one piece")
    require_no_embeddings(manifest, bundle, "the C++ library runs what gives logits or hidden states")
    require_not_bad(bundle, manifest)
    backends, quoted = tuple(backend or (ONNXRUNTIME.name,)), shlex.quote(str(bundle))
    cpp_project.write_project(output, backends, inputs_of(bundle), force=force)
    if manifest.headless:
        console.say("note: a headless bundle has no logits: selftest runs, and chat says so", quiet=quiet)
    if AOTI.name in backends and AOTI.file not in manifest.files:
        console.say(f"note: the bundle has no AOTInductor package yet: blockexport aoti {quoted}", quiet=quiet)
    first = f" --backend {backends[0]}" if len(backends) > 1 else ""
    build = output / "build"
    selftest, chat = (shlex.quote(str(build / name)) for name in ("selftest", "chat"))
    console.say(
        f"next:\n  cmake -S {shlex.quote(str(output))} -B {shlex.quote(str(build))} && "
        f"cmake --build {shlex.quote(str(build))}\n"
        f"  {selftest} {quoted}{first}\n"
        f'  {chat} {quoted} "What is the capital of France?"{first}',
        quiet=quiet,
    )
    return ExitCode.GOOD
