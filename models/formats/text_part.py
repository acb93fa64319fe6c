"""The text part of a multimodal model: its `config.json` has the decoder's keys under `text_config`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.families.left_out import LEFT_OUT
from blockexport.models.formats.config_hf_keys import HARMLESS
from blockexport.models.regular_file import is_there, no_repeated_key, read_json_object
from blockexport.models.strict_json import shown

_INSIDE = "text_config"
_OF_BOTH = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
"""Keys beside `text_config` that are the decoder's too; transformers takes them from there."""

_OF_OTHER_PARTS = re.compile(
    r"(vision|audio)_config|\w+_token_(id|index)|\w+_tokens_per_image|vision_\w+|projector_\w+|multimodal_projector_bias|"
    r"spatial_merge_size|image_\w+"
)


def read_config_json(folder: Path, *, text_only: bool = False) -> Mapping[str, Any]:
    """The keys of the decoder in a folder's `config.json`.

    Args:
        folder: of a Hugging Face model.
        text_only: of a multimodal model those of its text part, which is refused otherwise.

    Raises:
        UsageError: the file is missing or is no JSON object, or the model is multimodal.
    """
    path = folder / "config.json"
    if not is_there(path):
        raise UsageError(f"{folder}: there is no config.json; MODEL must be a Hugging Face model folder")
    data = read_json_object(path, "fetch the file again", no_repeated_key)
    return data if data.get(_INSIDE) is None else _text_part(data, str(path), text_only=text_only)


def _text_part(data: Mapping[str, Any], where: str, *, text_only: bool) -> Mapping[str, Any]:
    inside, model_type = data[_INSIDE], shown(data.get("model_type"))
    if not isinstance(inside, Mapping):
        raise UsageError(f"{where}: {_INSIDE} is {shown(inside)}; it must be an object")
    part = inside.get("model_type")
    if part not in FAMILIES:
        why = f": {LEFT_OUT[part]}" if part in LEFT_OUT else ""
        raise UsageError(
            f"{where}: model_type {model_type} is a multimodal model, whose text part {shown(part)} is not "
            f"implemented{why}; supported are {', '.join(FAMILIES)}"
        )
    if not text_only:
        raise UsageError(
            f"{where}: model_type {model_type} is a multimodal model. Its text part, {shown(part)}, is "
            "exported by itself with --text-only, which leaves the tensors of the other parts out"
        )
    if inside.get("final_logit_softcapping") is not None:
        raise UsageError(
            f"{where}: {_INSIDE}.final_logit_softcapping is {shown(inside['final_logit_softcapping'])}, and "
            "transformers caps no logits in a multimodal model; set it to null, if none are to be capped"
        )
    known = {*_OF_BOTH, *HARMLESS, _INSIDE, "model_type"}
    if unknown := sorted(key for key in data if key not in known and not _OF_OTHER_PARTS.fullmatch(key)):
        raise UsageError(
            f"{where}: unknown beside {_INSIDE}: {', '.join(f'{key} = {shown(data[key])}' for key in unknown)}. A key "
            "that is not understood may change what the model computes, so none is skipped"
        )
    return {**inside, **{key: data[key] for key in _OF_BOTH if data.get(key) is not None}}
