"""What enters the matrices of a checkpoint on a text, for `--calibrate`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from blockexport.compare.core.tokens import choose_tokens, first_ids
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER, write_tokenizer_files
from blockexport.export.weights.calibration import Calibration
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import read_text
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

CALIBRATION_TOKENS = (512, 8_192)  # of a text at least, and at most


def calibrated(checkpoint: Checkpoint, path: Path) -> Calibration:
    """The run of a checkpoint over the beginning of a text.

    Raises:
        UsageError: the checkpoint has no tokenizer, or the text is too short.
    """
    text = read_text(path)
    with TemporaryDirectory() as made:
        folder = Path(made)
        if TOKENIZER not in write_tokenizer_files(checkpoint, folder):
            raise UsageError(
                f"--calibrate {path} needs a tokenizer to read it with, and {checkpoint.source.reference} has none: "
                "leave it out"
            )
        encode = BundleTokenizer(folder).encode
        count = min(len(first_ids(encode, text, CALIBRATION_TOKENS[1])), CALIBRATION_TOKENS[1])
        if count < CALIBRATION_TOKENS[0]:
            raise UsageError(
                f"--calibrate {path} is a text of {count:,} tokens, and at least {CALIBRATION_TOKENS[0]:,} tell what "
                "enters the matrices: give a longer one, or leave it out"
            )
        return Calibration(checkpoint, choose_tokens(checkpoint.config, count, encode=encode, text=text).ids_S)
