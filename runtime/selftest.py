"""Replay a bundle's golden vectors: what a deployment runs on its own machine before it trusts the build.

The C++ sample `selftest` does the same without Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from blockexport.export.bundle.file_check import REMEDY, wrong_files
from blockexport.export.bundle.golden_file import GOLDEN_FILE, GoldenVectors
from blockexport.export.bundle.manifest import Manifest
from blockexport.models.errors import DamagedBundleError, UsageError
from blockexport.models.progress import Progress, silent
from blockexport.runtime.decoder import Decoder


@dataclass(frozen=True)
class SelftestResult:
    """How far a decoder is from the golden vectors; the worst position has the largest share of its limit."""

    passed: bool
    positions: int
    rms: float
    rms_tolerance: float
    worst_position: int
    worst_difference: float
    worst_tolerance: float


def check_files(folder: Path, manifest: Manifest, progress: Progress = silent) -> None:
    """Compare every file of a bundle with its recorded size and SHA-256, and derived ones with what they came from.

    Raises:
        DamagedBundleError: names the first file that differs or is missing.
        UsageError: a file may not be read.
    """
    for reason in wrong_files(folder, manifest, progress):
        raise DamagedBundleError(f"{reason}: {REMEDY}")


def replay_golden(decoder: Decoder, golden: GoldenVectors, progress: Progress = silent) -> SelftestResult:
    """Run the prefill and every step, and hold the outputs against the golden ones. NaN and infinity always fail.

    Raises:
        UsageError: the vectors are of another model than the decoder.
    """
    _require_of(decoder, golden)
    last = int(golden.positions_P[-1])
    inputs = golden.inputs[None]
    decoder.reset(1)
    outputs = [decoder.prefill(inputs[:, : golden.prefill])[0]]
    given = list(range(golden.prefill))[-outputs[0].shape[0] :]
    for position in range(golden.prefill, last + 1):
        progress("steps", position - golden.prefill, last + 1 - golden.prefill)
        outputs.append(decoder.step(inputs[:, position : position + 1])[0])
        given.append(position)
    rows = torch.tensor([given.index(position) for position in golden.positions_P.tolist()])
    difference_PV = (torch.cat(outputs)[rows].double() - golden.outputs_PV.double()).abs()
    rms = float(difference_PV.square().mean().sqrt())
    largest_P = difference_PV.amax(-1)
    worst = int(torch.nan_to_num(largest_P / golden.tolerance_P, nan=torch.inf).argmax())
    # Comparisons with NaN are false, and false means failed.
    passed = rms <= golden.rms_tolerance and bool((largest_P <= golden.tolerance_P.double()).all())
    return SelftestResult(
        passed,
        len(rows),
        rms,
        golden.rms_tolerance,
        int(golden.positions_P[worst]),
        float(largest_P[worst]),
        float(golden.tolerance_P[worst]),
    )


def _require_of(decoder: Decoder, golden: GoldenVectors) -> None:
    interface, inputs = decoder.interface, golden.inputs
    ends, width, ids = interface.ends, interface.width, interface.config.vocab_size
    of_inputs = inputs.shape[1:] == (width,) if ends.headless else bool(((inputs >= 0) & (inputs < ids)).all())
    first = golden.prefill - 1 if ends.one_a_row else 0  # position whose outputs come out
    of_outputs = golden.output == interface.output_name and golden.outputs_PV.shape[1:] == (width,)
    fits = golden.headless == ends.headless and of_outputs and of_inputs
    if not fits or int(golden.positions_P[0]) < first:
        raise UsageError(
            f"{GOLDEN_FILE} is of another model than the bundle: copy the whole bundle again, or export it again"
        )
