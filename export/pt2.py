"""The `.pt2`: the whole decoder as one exported program of plain aten operators, weights inside.

For PyTorch's own runtimes, and as a second artifact that can be compared. Batch, sequence length and the number of
cache slots are symbolic.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from blockexport.export.bundle.manifest import PT2_FILE
from blockexport.export.graph.trace import trace_whole
from blockexport.export.output.disk import check_free_space, disk_errors
from blockexport.export.output.patient_file import patient_file
from blockexport.export.preflight import weight_bytes
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.interface import Interface


def export_program(checkpoint: Checkpoint, interface: Interface) -> torch.export.ExportedProgram:
    """The decoder as an exported program: `(inputs, position_ids, past_key_values) -> (outputs, present)`."""
    model = load_model(checkpoint, interface.dtype, interface.max_sequence_length, ends=interface.ends)
    program = trace_whole(model, interface)
    # Opens the two operators of our own into aten, so that the file loads without this package.
    opened: torch.export.ExportedProgram = program.run_decompositions()
    # The guards say for which sizes the tracer decided between a view and a copy, and shut out one token of one row,
    # which the graph computes all the same (the comparison of a .pt2 decodes token by token).
    opened._guards_code = []
    return opened


def write_pt2(checkpoint: Checkpoint, interface: Interface, folder: Path) -> str:
    """Write `model.pt2` into `folder`; returns its name.

    Raises:
        UsageError: the disk has no room for it.
    """
    check_free_space(folder, weight_bytes(checkpoint, interface))
    with warnings.catch_warnings(), disk_errors(folder), patient_file(folder / PT2_FILE) as file:
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own pytree, when it copies a program
        torch.export.save(export_program(checkpoint, interface), file)
    return PT2_FILE
