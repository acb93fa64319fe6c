"""Bundles of checkpoints whose codes are taken over, and what judges them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from blockexport.compare.audits.coded_matrix import CodedCheckpoint
from blockexport.compare.checks.check_parameters import ParameterFigures
from blockexport.compare.core.check import Verdict
from blockexport.compare.explain.wrong_matrices import wrong_matrices
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import as_stored, bundle_options
from blockexport.compare.report.report import Report
from blockexport.export.bundle.manifest import read_manifest, write_manifest
from blockexport.export.onnx_export import export_onnx
from blockexport.export.weights.weight_files import WrittenWeights, write_weights
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation, quantisation_of
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge


class Made(NamedTuple):
    """A bundle, and what its export said."""

    folder: Path
    notes: list[str]


def made_bundle(
    folder: Path, checkpoint: Checkpoint, quantisation: Quantisation, precision: Precision = Precision.FP32
) -> Made:
    """A bundle of 48 slots with its manifest."""
    folder.mkdir()
    notes: list[str] = []
    interface = Interface(checkpoint.config, precision.element, 48)
    write_manifest(folder, export_onnx(checkpoint, folder, interface, quantisation=quantisation, note=notes.append))
    return Made(folder, notes)


def judged_by(folder: Path, checkpoint: Checkpoint, *checks: str) -> Report:
    """What the checks say of a bundle that is held against a checkpoint."""
    options = replace(bundle_options(folder, asked=JudgeOptions(checks=checks)), explain=None)
    return judge(open_decoder(folder, verify="nothing", exact=True), checkpoint, options)


def parameters(folder: Path, checkpoint: Checkpoint) -> tuple[Verdict, str]:
    """What the check `parameters` says of a bundle."""
    judged_on, _ = as_stored(checkpoint, folder, read_manifest(folder))
    (result,) = judged_by(folder, judged_on, "parameters").checks
    return result.verdict, result.message


def mistakes(folder: Path, checkpoint: Checkpoint) -> dict[str, str | None]:
    """The matrices that `parameters` finds wrong in a bundle, and the mistake that is named in each."""
    judged_on, _ = as_stored(checkpoint, folder, read_manifest(folder))
    assert isinstance(judged_on, CodedCheckpoint)
    (result,) = judged_by(folder, judged_on, "parameters").checks
    assert result.verdict is Verdict.FAIL and isinstance(result.figures, ParameterFigures)
    found = wrong_matrices(judged_on, result.figures.differing or [])
    assert found is not None
    return {one.tensor: None if one.cause is None else one.cause.mistake.name for one in found.matrices}


def rewritten(
    checkpoint: Checkpoint,
    folder: Path,
    precision: Precision = Precision.FP32,
    quantisation: Quantisation | None = None,
    **asked: Any,
) -> WrittenWeights:
    """The weights file in a folder made again; int4 with what is `asked`, unless a `quantisation` is given."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = list(expected_tensors(checkpoint.config))
    return write_weights(checkpoint, folder, precision, names, quantisation or quantisation_of("int4", **asked))
