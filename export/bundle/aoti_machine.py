"""`aoti.json`: the processor and the PyTorch that the compiled package beside it was made for."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from blockexport.export.bundle.manifest import AOTI_FILE
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.regular_file import read_json_object

AOTI_INFO = "aoti.json"
AOTI_SCHEMA = 1
CPU = torch.device("cpu")

# Flags of /proc/cpuinfo that a compiler told to use the machine's own instructions may rely on. The others say what the
# system or the processor does, and not which instructions there are.
_X86 = """sse4_1 sse4_2 ssse3 popcnt movbe abm aes pclmulqdq bmi1 bmi2 f16c fma avx avx2 adx sha_ni gfni vaes vpclmulqdq
avx_vnni avx512f avx512cd avx512dq avx512bw avx512vl avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg
avx512_vpopcntdq avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16"""
_ARM = """asimd asimdhp asimddp asimdfhm fphp sve sve2 bf16 i8mm atomics crc32"""
_INSTRUCTIONS = frozenset(_X86.split()) | frozenset(_ARM.split())


def machine_info(device: torch.device = CPU) -> dict[str, Any]:
    """What a package compiled here for a device needs of the machine that runs it."""
    return {
        "device": device.type,
        "compute_capability": _capability(device),
        "schema_version": AOTI_SCHEMA,
        "torch": torch.__version__.partition("+")[0],
        "machine": platform.machine(),
        "instruction_set": sorted(_instructions()),
    }


def _capability(device: torch.device) -> str | None:
    return ".".join(map(str, torch.cuda.get_device_capability(device))) if device != CPU else None


def _instructions() -> set[str]:
    """Instruction sets of this processor by the names of /proc/cpuinfo; empty where the system has no such file."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return set()
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return set(flags.partition(":")[2].split()) & _INSTRUCTIONS


def check_machine(info_path: Path, device: torch.device = CPU) -> None:
    """Whether a package can run on a device of this machine, by the `aoti.json` beside it.

    Raises:
        NotJudgedError: it was compiled for another processor, GPU or PyTorch.
        UsageError: the record is missing, damaged or of a newer schema.
    """
    try:
        info = read_json_object(info_path, "make the package again")
        version = info["schema_version"]
        needed, machine, made_by = set(info["instruction_set"]), info["machine"], info["torch"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{info_path} cannot be read ({error!r}): make the package again") from error
    if version != AOTI_SCHEMA:
        raise UsageError(f"{info_path} has schema version {version}, and {AOTI_SCHEMA} is read here: make it again")
    package, made_for = info_path.with_name(AOTI_FILE), str(info.get("device", CPU))
    if made_for != device.type:
        raise NotJudgedError(
            f"{package} was compiled for {made_for} and was asked to run on {device}: say --device {made_for}, or run "
            f"`blockexport aoti --device {device.type}`"
        )
    capability = _capability(device)
    if capability != info.get("compute_capability"):
        raise NotJudgedError(
            f"{package} was compiled for GPUs of compute capability {info.get('compute_capability')}, and {device} has "
            f"{capability}: run `blockexport aoti --device {device}` here"
        )
    present = _instructions()
    missing = sorted(needed - present) if present else []
    if machine != platform.machine() or missing:
        what = f"the instructions {', '.join(missing)}" if missing else f"a processor of type {machine}"
        raise NotJudgedError(
            f"{package} was compiled for {what}, which this machine lacks: run "
            "`blockexport aoti` here, or on a machine like this one"
        )
    here = torch.__version__.partition("+")[0]
    if made_by != here:
        raise NotJudgedError(
            f"{package} was compiled by PyTorch {made_by} and this is {here}: run `blockexport aoti` again"
        )
