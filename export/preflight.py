"""What an export takes of disk and memory, by counting, before any of it is taken."""

from __future__ import annotations

import shutil
from math import prod
from pathlib import Path

from blockexport.models.block.rope import rope_table_rows
from blockexport.models.checkpoints.checkpoint import Checkpoint, TensorEntry
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.models.quantisation import SCALE_BYTES, Quantisation
from blockexport.models.wording import size

LARGE = 1 << 30
"""Bytes of weights from which on the numbers are told although there is room."""

_TABLE_ITEM = 4  # bytes of a cosine
_TABLE_COPIES = 3
"""Angles, cosines and sines before and after they are scaled: 2.6 to 2.8 times the tables' bytes were measured."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def weight_bytes(checkpoint: Checkpoint, interface: Interface) -> int:
    """What the weights of an export take, in a file of theirs or inside of a program."""
    return sum(entry.size for entry in _entries(checkpoint, interface)) * interface.element.itemsize


def _stored_bytes(checkpoint: Checkpoint, interface: Interface, quantisation: Quantisation | None) -> int:
    """What the weights of a bundle take in its file."""
    if quantisation is None:
        return weight_bytes(checkpoint, interface)
    config = quantisation.stored_config(checkpoint.config)
    total = 0
    for name, shape in expected_tensors(config, ends=interface.ends).items():
        scheme = quantisation.scheme_of(name)
        if scheme is None:
            total += prod(shape) * interface.element.itemsize
        else:
            blocks = shape[0] * scheme.blocks(shape[1])
            total += scheme.code_bytes(prod(shape)) + SCALE_BYTES * blocks
            total += scheme.code_bytes(blocks) if scheme.zero_points else 0
    return total


def _entries(checkpoint: Checkpoint, interface: Interface) -> list[TensorEntry]:
    names = expected_tensors(checkpoint.config, ends=interface.ends)
    return [checkpoint.entries[name] for name in names if name in checkpoint.entries]


def check_room(
    checkpoint: Checkpoint,
    interface: Interface,
    place: Path,
    *,
    judged: bool,
    pt2: bool = False,
    quantisation: Quantisation | None = None,
    max_memory: int | None = None,
) -> str | None:
    """Whether there is room for a bundle at `place` (`pt2`: with the program, which has the weights once more), and to
    judge it; a note with the numbers where they are large. `max_memory` is as in `check_memory`.

    Raises:
        UsageError: the disk is too small.
        NotJudgedError: the memory is too small to judge the bundle, or to make its tables of RoPE.
    """
    needed, what = _stored_bytes(checkpoint, interface, quantisation), counted_weights(checkpoint, interface)
    folder = next(path for path in place.absolute().parents if path.is_dir())
    free = shutil.disk_usage(folder).free
    said = f"the tables of RoPE for max_position_embeddings = {interface.config.max_position_embeddings:,} positions"
    making = _TABLE_COPIES * _table_bytes(interface)
    require_memory(making, f"{said} take {size(making)} of memory to make", max_memory, "make them where there is more")
    disk = needed * (pt2 + (not _mapped(checkpoint, interface, quantisation)))  # what is cloned may take no room
    if free < disk:
        program = " with the program of --pt2" if pt2 else ""
        raise UsageError(
            f"{what} take {size(disk)} on disk{program}, and the file system of {folder} has {size(free)} free: free "
            "some, or choose another output folder, a smaller model or --bf16"
        )
    remedy = "choose a smaller model or --bf16, or seal the bundle unjudged with --no-compare"
    memory = check_memory(checkpoint, interface, quantisation, max_memory, remedy) if judged else 0
    if needed < LARGE:
        return None
    judging = f", and at least {size(memory)} of memory to judge" if memory else ""
    return f"{what} take {size(needed)} on disk{judging}"


def _table_bytes(interface: Interface) -> int:
    """What cosines and sines of all positions take, which a config may claim billions of."""
    config = interface.config
    if not any(config.has_rope(layer) for layer in range(config.num_hidden_layers)):
        return 0
    kinds = 1 + (config.sliding_rope_theta is not None)
    return kinds * rope_table_rows(config, interface.max_sequence_length) * config.turned_dims * _TABLE_ITEM


def check_memory(
    checkpoint: Checkpoint,
    interface: Interface,
    quantisation: Quantisation | None = None,
    max_memory: int | None = None,
    remedy: str = "judge it where there is more",
) -> int:
    """The bytes of memory that judging takes at least: ONNX Runtime's copy of the weights, and eager's where they are
    not mapped from a file.

    Args:
        checkpoint: the source.
        interface: of the file that is judged.
        quantisation: of its matrices.
        max_memory: bytes that may be taken; all that are available by default.
        remedy: what to do where they are too few, as a clause.

    Raises:
        NotJudgedError: they are.
    """
    # A bf16 file is replayed from its mapped weights.
    copied = interface.precision is not Precision.BF16
    memory = copied * _stored_bytes(checkpoint, interface, quantisation)
    memory += 0 if _mapped(checkpoint, interface, quantisation) else weight_bytes(checkpoint, interface)
    require_memory(
        memory,
        f"{counted_weights(checkpoint, interface)} take at least {size(memory)} of memory to judge",
        max_memory,
        remedy,
    )
    return memory


def check_one_copy(checkpoint: Checkpoint, interface: Interface, max_memory: int | None) -> None:
    """As `check_memory` for a file of which no more is known than that one copy of the weights has to be in memory."""
    memory = weight_bytes(checkpoint, interface)
    said = f"{counted_weights(checkpoint, interface)} take at least {size(memory)} of memory"
    require_memory(memory, said, max_memory, "do it where there is more")


def require_memory(needed: int, said: str, max_memory: int | None, remedy: str) -> None:
    """Raise NotJudgedError where less than the `needed` bytes are available, or allowed by `max_memory`: what is
    `said` of them, which limit that is, and the `remedy`, a clause."""
    present = available_memory()
    limit = f"{size(present or 0)} are available"
    if max_memory is not None and (present is None or max_memory < present):
        limit, present = f"--max-memory allows {size(max_memory)}", max_memory
    if present is not None and present < needed:
        raise NotJudgedError(f"{said}, and {limit}: {remedy}")


def counted_weights(checkpoint: Checkpoint, interface: Interface) -> str:
    """How many weights a model has, and in what precision, as the subject of a sentence."""
    return f"{_many(sum(entry.size for entry in _entries(checkpoint, interface)))} weights in {interface.precision}"


def _mapped(checkpoint: Checkpoint, interface: Interface, quantisation: Quantisation | None) -> bool:
    """Whether the checkpoint's files are the bundle's, byte for byte, and read where they lie."""
    return quantisation is None and all(
        entry.location is not None and entry.dtype == interface.element.safetensors
        for entry in _entries(checkpoint, interface)
    )


def available_memory() -> int | None:
    """Bytes that processes may still take, without swapping; None where the system does not tell (Linux does)."""
    try:
        line = next(line for line in _read(_MEMINFO).splitlines() if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    available = int(line.split()[1]) * 1024
    try:
        limit, used = int(_read(_CGROUP / "memory.max")), int(_read(_CGROUP / "memory.current"))
        statistics = dict(line.split() for line in _read(_CGROUP / "memory.stat").splitlines())
    except (OSError, ValueError):  # no control group, or one without a limit
        return available
    reclaimable = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    return min(available, max(0, limit - used + reclaimable))


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii")


def _many(count: int) -> str:
    """A number of weights."""
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count:,}"
