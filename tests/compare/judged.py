"""The whole report on a decoder, in one call."""

from __future__ import annotations

from blockexport.compare.judge import JudgeOptions, run_checks
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.progress import Progress, silent
from blockexport.runtime.decoder import Decoder


def judge(
    decoder: Decoder, checkpoint: Checkpoint, options: JudgeOptions | None = None, progress: Progress = silent
) -> Report:
    return run_checks(decoder, checkpoint, options, progress).explained(progress)
