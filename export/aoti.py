"""The decoder compiled ahead of time by PyTorch's AOTInductor: one package that libtorch runs, in C++ or Python.

The program takes ids, positions and caches, writes new keys and values into the caches it was given, and returns only
the logits. It is machine code for the processor it was compiled on, so the instruction set goes on record beside it
(`aoti.json`), and a loader can refuse another processor instead of crashing there.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from blockexport.export.bundle.aoti_machine import AOTI_INFO, CPU, machine_info
from blockexport.export.bundle.manifest import AOTI_FILE
from blockexport.export.graph.trace import trace_whole
from blockexport.export.output.disk import check_free_space, disk_errors
from blockexport.export.output.patient_file import patient_file
from blockexport.export.preflight import counted_weights, require_memory, weight_bytes
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Interface
from blockexport.models.wording import size

_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # the variable that PyTorch reads
_COMPILER_REMEDY = "install g++ (or clang++), or name a working one in the variable CXX"


class _InPlace(nn.Module):
    """A decoder that updates the caches it is given."""

    def __init__(self, decoder: DecoderModel) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, inputs: torch.Tensor, position_ids: torch.Tensor, past_key_values: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        outputs, present = self.decoder(inputs, position_ids, past_key_values)
        for past, new in zip(past_key_values, present, strict=True):
            past.copy_(new)
        result: torch.Tensor = outputs
        return result


def compile_package(
    checkpoint: Checkpoint, interface: Interface, table_rows: int, folder: Path, device: torch.device = CPU
) -> list[str]:
    """Write `model.aoti.pt2` and `aoti.json` into `folder`; returns their names. Takes a minute for thirty layers.

    Args:
        checkpoint: the model.
        interface: type and ends; M stays symbolic in the package.
        table_rows: rows of its RoPE table, the largest M a loader may use.
        folder: an existing folder.
        device: what it is compiled for, and is here.

    Raises:
        NotJudgedError: there is no C++ compiler on this machine.
        UsageError: the package has no room in `folder`, or what it is linked from has none in AOTInductor's own folder.
    """
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler

    require_compiler()
    scratch = _require_room(folder, weight_bytes(checkpoint, interface))
    model = load_model(checkpoint, interface.dtype, table_rows, ends=interface.ends)
    with torch.no_grad():
        program = trace_whole(_InPlace(model), interface)
    if device != CPU:
        program = move_to_device_pass(program, device)
    try:
        with warnings.catch_warnings(), _workplace(), patient_file(folder / AOTI_FILE) as file:
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own pytree, when it copies a program
            aoti_compile_and_package(program, package_path=file)
    except Exception as error:
        if _is_full(error):
            raise UsageError(
                f"no space was left for the package in {folder.parent}, or in {scratch} for what it is linked from: "
                f"free some, or name another folder for the latter in the variable {_CACHE}"
            ) from error
        cause = getattr(error, "inner_exception", error)
        known = isinstance(error, InductorError | CppCompileError | InvalidCxxCompiler)
        if not known or not isinstance(cause, CppCompileError | InvalidCxxCompiler | OSError):
            raise
        reason = str(cause).strip().splitlines()[-1]
        raise NotJudgedError(
            f"the C++ compiler {compiler_name()!r} fails here ({reason}): {_COMPILER_REMEDY}"
        ) from error
    with disk_errors(folder):
        info = json.dumps(machine_info(device), indent=2, sort_keys=True)
        (folder / AOTI_INFO).write_text(f"{info}\n", encoding="utf-8")
    return [AOTI_FILE, AOTI_INFO]


def check_compile_memory(checkpoint: Checkpoint, interface: Interface, max_memory: int | None) -> None:
    """Raise NotJudgedError where compiling takes more memory than there is, or than `max_memory`, for certain: the
    weights are in the model and in the package that is put together. Four times their bytes were measured."""
    needed = 2 * weight_bytes(checkpoint, interface)
    said = f"{counted_weights(checkpoint, interface)} take at least {size(needed)} of memory to compile a package of"
    require_memory(needed, said, max_memory, "compile it where there is more")


def compiler_name() -> str:
    """The C++ compiler that PyTorch calls."""
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def require_compiler() -> None:
    """Raise NotJudgedError where PyTorch would find no C++ compiler, before any work is done."""
    name = compiler_name()
    try:
        subprocess.run([name, "--version"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotJudgedError(
            f"AOTInductor needs a C++ compiler, and {name!r} does not run: {_COMPILER_REMEDY}"
        ) from error


@contextmanager
def _workplace() -> Iterator[None]:
    """A folder for what AOTInductor compiles and links, weights and all, which goes at the end; where a user names one
    in TORCHINDUCTOR_CACHE_DIR, that one, and it stays."""
    from torch._inductor.utils import clear_caches

    if os.environ.get(_CACHE):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="blockexport-aoti-") as made:
        os.environ[_CACHE] = made
        try:
            clear_caches()  # they know files of folders that are gone
            yield
        finally:
            del os.environ[_CACHE]
            clear_caches()


def _require_room(folder: Path, weights: int) -> Path:
    """AOTInductor's own folder, once there is room for the package, and there for the weights twice: it links them."""
    scratch = Path(os.environ.get(_CACHE) or tempfile.gettempdir())
    scratch = next(path for path in (scratch, *scratch.absolute().parents) if path.is_dir())
    together = scratch.stat().st_dev == folder.stat().st_dev
    check_free_space(folder, weights * (3 if together else 1))
    if not together:
        check_free_space(scratch, weights * 2)
    return scratch


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk is the cause of an error, a compiler's too: a linker whose file cannot grow gets SIGBUS."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if any(words in str(error) for words in ("No space left on device", "File too large", "[Bus error]")):
            return True
        error = error.__cause__ or error.__context__
    return False
