"""What devices do at most, as their makers say: memory, bandwidth, and products of dense matrices.

Sources are NVIDIA's: the datasheets of H200, H100, A100, L40S and L4; of RTX cards the whitepapers "NVIDIA Ada GPU
Architecture", "NVIDIA RTX Blackwell GPU Architecture" and "NVIDIA Ampere GA102 GPU Architecture" (16-bit products that
are summed in float32); of Orin the "Jetson AGX Orin Series Technical Brief", whose 170 TOPS of sparse int8 are a
quarter as many in dense float16. What a datasheet gives with sparsity is halved. Float32 is without TF32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.roofline import MachineSpeed
from blockexport.models.wording import did_you_mean

GB = 10**9
_UNITS: dict[str, int] = {"": GB, **{f"{letter}B": int(1000**power) for power, letter in enumerate("KMGT", 1)}}
_UNITS |= {f"{letter}iB": int(1024**power) for power, letter in enumerate("KMGT", 1)}
_NUMBERS = 3


@dataclass(frozen=True)
class Device:
    """A device by its maker's figures.

    Attributes:
        name: what people call it.
        memory: bytes.
        bandwidth: bytes that it reads per second.
        half_peak: operations per second in float16 or bfloat16.
        single_peak: operations per second in float32.
    """

    name: str
    memory: float
    bandwidth: float
    half_peak: float
    single_peak: float

    def speed(self, precision: Precision) -> MachineSpeed:
        """Its figures for a precision."""
        peak = self.single_peak if precision is Precision.FP32 else self.half_peak
        return MachineSpeed(self.name, self.bandwidth, peak, precision.value)


def _device(name: str, gigabytes: float, gigabytes_per_second: float, half: float, single: float) -> Device:
    return Device(name, gigabytes * GB, gigabytes_per_second * GB, half * 1e12, single * 1e12)


DEVICES: Mapping[str, Device] = {
    "h200": _device("NVIDIA H200 SXM", 141, 4_800, 989.5, 67),
    "h100": _device("NVIDIA H100 SXM", 80, 3_350, 989.5, 67),
    "a100": _device("NVIDIA A100 SXM 80 GB", 80, 2_039, 312, 19.5),
    "l40s": _device("NVIDIA L40S", 48, 864, 362, 91.6),
    "l4": _device("NVIDIA L4", 24, 300, 121, 30.3),
    "rtx-5090": _device("GeForce RTX 5090", 32, 1_792, 209.5, 104.8),
    "rtx-4090": _device("GeForce RTX 4090", 24, 1_008, 165.2, 82.6),
    "rtx-3090": _device("GeForce RTX 3090", 24, 936, 71, 35.6),
    "orin": _device("Jetson AGX Orin 64 GB", 64, 204.8, 42.5, 5.3),
}


def read_device(text: str) -> Device:
    """A device by its name in `DEVICES`, or by numbers: `GB/s,TFLOP/s,GB`, as `300,121,24`.

    Raises:
        UsageError: neither.
    """
    known = DEVICES.get(text.lower())
    if known is not None:
        return known
    parts = text.split(",")
    if len(parts) == _NUMBERS and all(re.fullmatch(r"\d+(\.\d+)?", part.strip()) for part in parts):
        bandwidth, peak, memory = (float(part) for part in parts)
        if min(bandwidth, peak, memory) > 0:
            return _device(f"a device of {text}", memory, bandwidth, peak, peak)
    raise UsageError(
        f"--device {text!r} is not known{did_you_mean(text, DEVICES)}: give one of {', '.join(DEVICES)}, or its GB/s, "
        "TFLOP/s and GB as three numbers above zero, as 300,121,24"
    )


def read_memory(text: str, option: str = "--memory") -> float:
    """Bytes of `24GB`, `24GiB` or `24` (GB), as an `option` was given.

    Raises:
        UsageError: it is no such size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)?", text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} {text!r} is no size above zero: write it as 24GB or 22.5GiB")
    return float(match[1]) * float(_UNITS[match[2] or ""])
