"""TensorRT builds in a process of its own, for two reasons.

- TensorRT swallows a KeyboardInterrupt that lands in one of its callbacks. Here the process is ended instead.
- What makes TensorRT crash ends this process, and the user hears one message.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from blockexport.export.output.disk import disk_errors
from blockexport.export.tensorrt.trt_build import Built, Request, build_engine
from blockexport.models.child_process import ChildEnded, Told, outcome_of, serve_one
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.progress import Progress, silent


def build_engine_file(request: Request, engine: Path, progress: Progress = silent) -> Built:
    """Build an engine, as `trt_build.build_engine` does, into the file `engine`.

    Raises:
        UsageError, NotJudgedError: as `build_engine`, and when TensorRT crashes or the machine's memory runs out.
    """
    try:
        built = outcome_of(__name__, (request, engine), progress)
    except ChildEnded as end:
        raise _crash(request, end) from None
    assert isinstance(built, Built)
    return built


def _crash(request: Request, end: ChildEnded) -> Exception:
    what = f"{request.backend} ended in the middle of the build"
    if end.killed:
        return NotJudgedError(
            f"{what}: it was killed, most likely because memory ran out. Choose a smaller --max-batch-size or "
            "--max-prefill, or a machine with more memory"
        )
    return UsageError(
        f"{what} ({end.cause}): a graph that `blockexport lint` finds clean should not do that, so please report this "
        "message"
    )


def serve(connection: Connection) -> None:
    """The process's work: one request, and its outcome."""
    serve_one(connection, _build)


def _build(asked: tuple[Request, Path], told: Told) -> Built:
    request, path = asked
    engine, built = build_engine(request, told)
    with disk_errors(request.folder):
        path.write_bytes(engine)
    return built
