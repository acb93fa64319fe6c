"""A trained model on disk: an ordinary checkpoint, a tokenizer whose tokens are bytes, and how its training went."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockexport.compare.ablation.swaps import Variant
from blockexport.compare.ablation.training import Look, Trained
from blockexport.export.output.atomic_write import remove
from blockexport.export.output.disk import disk_errors
from blockexport.export.output.hidden_names import partial_path
from blockexport.models.checkpoints.checkpoint_folder import write_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, read_json_object
from blockexport.runtime.text.detokenize import BYTE_LETTERS

TRAINING = "training.json"
_REMEDY = "remove its folder to train it again"


@dataclass(frozen=True)
class Run:
    """One training of one model.

    Attributes:
        seed: of its weights and the order of the data.
        best: the step at which its held-out loss was lowest; its weights are those.
        stretches: bits per byte there, of each stretch of the held-out bytes.
        looks: the curve.
    """

    seed: int
    best: int
    stretches: tuple[float, ...]
    looks: tuple[Look, ...]

    @property
    def bits(self) -> float:
        """Bits per held-out byte, at best."""
        return sum(self.stretches) / len(self.stretches)


def write_run(folder: Path, variant: Variant, seed: int, trained: Trained) -> Run:
    """Write a run into `folder`, which is made: the whole of it, or nothing.

    Raises:
        UsageError: the disk is full or cannot be written.
    """
    run = Run(seed, trained.best, trained.stretches, trained.looks)
    partial = partial_path(folder)
    try:
        with disk_errors(folder.parent):
            partial.mkdir()
            write_checkpoint(partial, variant.said, trained.weights)
            for name, value in {**_TOKENIZER_FILES, TRAINING: asdict(run)}.items():
                (partial / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
            os.rename(partial, folder)
    finally:
        remove(partial)
    return run


def read_run(folder: Path, variant: Variant) -> Run | None:
    """The run that an earlier call has written; None where there is none.

    Raises:
        UsageError: it is of another model, or damaged.
    """
    if not folder.exists():
        return None
    if read_json_object(folder / "config.json", _REMEDY) != variant.said:
        raise UsageError(f"{folder} holds another model than the swap {variant.name} has: choose another output folder")
    record = read_json_object(folder / TRAINING, _REMEDY)
    try:
        looks = tuple(Look(**look) for look in record.pop("looks"))
        run = Run(looks=looks, stretches=tuple(map(float, record.pop("stretches"))), **record)
        whole = run.stretches and looks and is_there(folder / "model.safetensors")
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{folder / TRAINING} is damaged ({error}): {_REMEDY}") from error
    if not whole:
        raise UsageError(f"{folder} is not a complete run: {_REMEDY}")
    return run


def _byte_tokenizer() -> Mapping[str, Any]:
    """A `tokenizer.json` in which a byte's token is its own number."""
    by_byte = dict(sorted(BYTE_LETTERS.items(), key=lambda pair: pair[1]))
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pieces,
        "post_processor": None,
        "decoder": pieces,
        "model": {"type": "BPE", "vocab": by_byte, "merges": []},
    }


_TOKENIZER_FILES = {
    "tokenizer.json": _byte_tokenizer(),
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},  # and not that of the family
}
