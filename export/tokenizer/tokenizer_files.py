"""The text side of a bundle: tokenizer files copied from a checkpoint's folder, or rebuilt out of a GGUF file.

A bundle without them still runs on token ids, so a checkpoint that has no tokenizer is no error: it is noted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockexport.export.bundle.generation_config import GENERATION_CONFIG, greedy_config, read_generation_config
from blockexport.export.tokenizer.gguf_tokenizer import rebuild_tokenizer
from blockexport.export.tokenizer.sentencepiece_model import read_sentencepiece
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, read_json_object, read_text

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
SENTENCEPIECE = "tokenizer.model"

_JSON_FILES = (TOKENIZER, TOKENIZER_CONFIG, "special_tokens_map.json", GENERATION_CONFIG)

Note = Callable[[str], None]


def write_tokenizer_files(checkpoint: Checkpoint, folder: Path, note: Note = lambda message: None) -> list[str]:
    """Write the checkpoint's tokenizer into `folder`.

    `generation_config.json` is always among the files: made from the config's token ids when the checkpoint has none.

    Args:
        checkpoint: an opened checkpoint; an adapter has no part in this.
        folder: an existing folder, the bundle being made.
        note: is told what is missing, in one sentence, when the bundle will only take token ids.

    Returns:
        The names of the files written.

    Raises:
        UsageError: a file that cannot be read, is no JSON object or holds a value that is out of range; a GGUF
            tokenizer of an unknown kind.
    """
    checkpoint = checkpoint.base
    if checkpoint.source.kind == "gguf":
        from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint  # its library is slow to import

        assert isinstance(checkpoint, GgufCheckpoint)
        names = _write_all(rebuild_tokenizer(checkpoint.metadata), folder)
    elif checkpoint.source.kind == "safetensors":
        names = _copy_from(_checkpoint_folder(checkpoint), folder, note)
    else:
        note("random weights have no tokenizer: the bundle takes token ids only")
        names = []
    if GENERATION_CONFIG not in names:
        said = greedy_config(checkpoint.config.bos_token_id, checkpoint.config.eos_token_ids)
        names += _write_all({GENERATION_CONFIG: said}, folder)
    return names


def _checkpoint_folder(checkpoint: Checkpoint) -> Path:
    """The folder of the weight files: for a Hugging Face id, the snapshot in the local cache."""
    reference = Path(checkpoint.source.reference)
    return reference if reference.is_dir() else checkpoint.source.files[0].parent


def _copy_from(source: Path, folder: Path, note: Note) -> list[str]:
    names = [name for name in (*_JSON_FILES, CHAT_TEMPLATE) if is_there(source / name)]
    for name in names:
        if name == GENERATION_CONFIG:
            read_generation_config(source / name)
        elif name == CHAT_TEMPLATE:
            read_text(source / name)
        else:
            read_json_object(source / name, "fetch the file again")
    for name in names:
        # The bytes as they are, without the source's permissions.
        shutil.copyfile(source / name, folder / name)
    if TOKENIZER in names:
        return names
    if not is_there(source / SENTENCEPIECE):
        note(f"{source} has no {TOKENIZER}: the bundle takes token ids only")
        return names
    try:
        rebuilt = rebuild_tokenizer(read_sentencepiece(source / SENTENCEPIECE))
    except UsageError as error:
        note(f"{source} has {SENTENCEPIECE} and no {TOKENIZER}, and {error}: the bundle takes token ids only")
        return names
    # What the folder says itself stands: only what it lacks is added.
    return names + _write_all({name: value for name, value in rebuilt.items() if name not in names}, folder)


def _write_all(files: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    for name, value in files.items():
        # A tokenizer's hundred thousand entries take ten times as long to write with line breaks.
        indent = None if name == TOKENIZER else 2
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")
    return list(files)
