"""`golden.safetensors`: a sequence and the reference's logits at a few of its positions.

A program on another machine replays it (`blockexport selftest`, or the C++ sample of that name) before it trusts its
build of a bundle: the first `prefill` tokens in one call, the others one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from blockexport.models import io_names
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, open_regular

GOLDEN_FILE = "golden.safetensors"
MAX_BYTES = 4 * 2**20  # of the logits
_OUTPUTS = (io_names.LOGITS, io_names.HIDDEN_STATES, io_names.EMBEDDINGS)


@dataclass(frozen=True)
class GoldenVectors:
    """One row of inputs and what is known about its outputs.

    Attributes:
        inputs: int64 ids [T], or float32 embeddings [T, D] of a headless model.
        prefill: tokens of the first call, 1..T.
        positions_P: int64 [P], ascending, where outputs are known.
        outputs_PV: float32 [P, V] of the float64 reference (V is D where it is no logits).
        tolerance_P: float32 [P], the largest difference allowed at each position.
        rms_tolerance: root mean square allowed over all of `outputs_PV`.
        output: the name of what is known: `logits`, `hidden_states` or `embeddings`.
    """

    inputs: torch.Tensor
    prefill: int
    positions_P: torch.Tensor
    outputs_PV: torch.Tensor
    tolerance_P: torch.Tensor
    rms_tolerance: float
    output: str = io_names.LOGITS

    @property
    def headless(self) -> bool:
        """Whether inputs are embeddings."""
        return self.inputs.ndim == 2


def choose_positions(prefill: int, total: int, width: int, *, one_a_row: bool = False) -> list[int]:
    """Positions to keep of a sequence of `total` tokens whose first `prefill` go in one call.

    The ends of both stretches first, then halfway points, as many as fit into MAX_BYTES at `width` float32 values each
    (at least the two last positions of prefill and sequence). With `one_a_row` the prefill gives its last only.
    """
    wanted: Iterable[int] = [prefill - 1, total - 1, prefill, (prefill + total) // 2, (prefill + 3 * total) // 4]
    if not one_a_row:
        wanted = [*wanted, 0, prefill // 2, 1, prefill // 4, 3 * prefill // 4]
    room = max(2, MAX_BYTES // (4 * width))
    kept = [position for position in dict.fromkeys(wanted) if 0 <= position < total]
    return sorted(kept[:room])


def write_golden(folder: Path, golden: GoldenVectors) -> str:
    """Write the file into `folder`; returns its name. It must then be entered into the manifest.

    Raises:
        ValueError: sizes that contradict each other, or a limit that is not positive (a bug of the caller's).
    """
    _check(golden)
    first = io_names.INPUTS_EMBEDS if golden.headless else io_names.INPUT_IDS
    tensors = {
        first: golden.inputs.to(torch.float32 if golden.headless else torch.int64),
        "prefill": torch.tensor([golden.prefill], dtype=torch.int64),
        "positions": golden.positions_P.to(torch.int64),
        golden.output: golden.outputs_PV.to(torch.float32),
        "tolerance": golden.tolerance_P.to(torch.float32),
        "rms_tolerance": torch.tensor([golden.rms_tolerance], dtype=torch.float32),
    }
    # Not save_file, which lets nobody but the owner read the file.
    (folder / GOLDEN_FILE).write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
    return GOLDEN_FILE


def read_golden(folder: Path) -> GoldenVectors:
    """The golden vectors of a bundle.

    Raises:
        UsageError: there are none, or the file is damaged.
    """
    path = folder / GOLDEN_FILE
    if not is_there(path):
        raise UsageError(f"{folder} has no {GOLDEN_FILE}: export it without --no-compare to have one")
    try:
        with open_regular(path) as file:
            tensors = load(file.read())
        first = io_names.INPUTS_EMBEDS if io_names.INPUTS_EMBEDS in tensors else io_names.INPUT_IDS
        output = next((name for name in _OUTPUTS if name in tensors), io_names.LOGITS)
        golden = GoldenVectors(
            inputs=tensors[first],
            prefill=int(tensors["prefill"]),
            positions_P=tensors["positions"],
            outputs_PV=tensors[output],
            tolerance_P=tensors["tolerance"],
            rms_tolerance=float(tensors["rms_tolerance"]),
            output=output,
        )
        _check(golden)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} is damaged ({error}): export the bundle again") from error
    return golden


def _check(golden: GoldenVectors) -> None:
    total, count = golden.inputs.shape[0], golden.positions_P.shape[0]
    if not 1 <= golden.prefill <= total:
        raise ValueError(f"a prefill of {golden.prefill} in a sequence of {total} tokens")
    if count == 0 or golden.outputs_PV.shape[0] != count or golden.tolerance_P.shape != (count,):
        raise ValueError(f"{count} positions, {golden.outputs_PV.shape[0]} outputs, {golden.tolerance_P.shape} limits")
    positions = golden.positions_P.tolist()
    if positions != sorted(set(positions)) or not 0 <= positions[0] <= positions[-1] < total:
        raise ValueError(f"positions {positions} in a sequence of {total} tokens")
    if not bool((golden.tolerance_P > 0).all()) or not golden.rms_tolerance > 0:
        raise ValueError("a limit that is not positive")
    if not bool(golden.outputs_PV.isfinite().all()):
        raise ValueError("a reference output that is not finite")
