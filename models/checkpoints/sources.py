"""From what a user calls a model to an opened checkpoint."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import PRESETS
from blockexport.models.regular_file import is_anything, is_there, open_regular
from blockexport.models.wording import did_you_mean, listed

if TYPE_CHECKING:
    from blockexport.models.checkpoints.hub import HubId

GGUF_SUFFIX = ".gguf"


def open_checkpoint(
    model: str, *, seed: int = 0, lora: str | Path | None = None, text_only: bool = False, headless: bool = False
) -> Checkpoint:
    """The checkpoint that `model` names. An existing path comes before a preset or a Hugging Face id of the same name.

    Args:
        model: a folder with config.json and safetensors, a .gguf file, a preset, or a Hugging Face id
            (`organisation/name`, or `organisation/name@revision`).
        seed: of a preset's random weights.
        lora: the folder of an adapter that is merged into it.
        text_only: of a multimodal model its text part, which is refused otherwise.
        headless: its output head may be absent, as nothing reads it.

    Raises:
        UsageError: `model` is none of these, or what it names is damaged, incomplete or not supported; so is the
            adapter, or it is of another model.
    """
    checkpoint = _open(model, seed, text_only, headless)
    if lora is None:
        return checkpoint
    from blockexport.models.checkpoints.merged_checkpoint import MergedCheckpoint

    return MergedCheckpoint(checkpoint, Path(lora).expanduser())


def _open(model: str, seed: int, text_only: bool, headless: bool) -> Checkpoint:
    path = Path(model).expanduser()
    if model and is_anything(path):
        try:
            checkpoint = _open_path(path, text_only, headless)
        except UsageError as error:
            raise UsageError(". ".join([str(error), *shadowed_preset(model)])) from error
        checkpoint.notes = (*checkpoint.notes, *shadowed_preset(model))
        return checkpoint
    if model in PRESETS:
        from blockexport.models.checkpoints.random_checkpoint import RandomCheckpoint

        return RandomCheckpoint(PRESETS[model].config, seed, model)
    from blockexport.models.checkpoints.hub import fetch_from_hub
    from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint

    folder, reference = fetch_from_hub(_hub_id(model))
    return SafetensorsCheckpoint(folder, reference, text_only=text_only, headless=headless)


def shadowed_preset(model: str) -> list[str]:
    """What to say where `model` is both a path here and a preset: a sentence, or nothing."""
    if model not in PRESETS or not Path(model).exists():
        return []
    return [f"{model} is the path {Path(model).absolute()}, and not the preset: rename the one to have the other"]


def _hub_id(model: str) -> HubId:
    """The Hugging Face id in `model`, which is neither a path that exists nor a preset.

    `organisation/name` may be an id or a misspelt path, and only an id is worth asking the Hub for. With a revision, or
    where the local cache has it, it is an id; else it is a path where its first part is a folder here, or where some
    path here is spelt almost so; else it is an id.

    Raises:
        UsageError: it cannot be an id, or it is more likely a path.
    """
    from blockexport.models.checkpoints.hub import is_cached, parse_hub_id

    path = Path(model)
    hub_id = None if path.suffix.lower() == GGUF_SUFFIX else parse_hub_id(model)
    if hub_id is not None and (hub_id.revision is not None or is_cached(hub_id)):
        return hub_id
    near = _nearest(path.expanduser())
    meant = "" if near is None else f" (did you mean {near}?)"
    if hub_id is None:
        raise UsageError(
            f"there is no model {model!r}{meant or did_you_mean(model, PRESETS)}: MODEL is a folder with config.json "
            "and safetensors, a .gguf file, a Hugging Face id such as HuggingFaceTB/SmolLM2-135M, or a preset "
            f"({', '.join(sorted(PRESETS))})"
        )
    if near is not None or path.parent.is_dir():
        lacks = f"is here and holds no {path.name}" if path.parent.is_dir() else "is not here"
        raise UsageError(
            f"the folder {path.parent} {lacks}{meant}: correct the path, or write {model}@main for the model of that "
            "name at the Hugging Face Hub"
        )
    return hub_id


def _nearest(path: Path) -> Path | None:
    """The path that is there and differs from `path`, which is not, by the spelling of one part."""
    there = next((parent for parent in path.parents if parent.is_dir()), None)
    if there is None:
        return None
    wrong, *rest = path.relative_to(there).parts
    try:
        near = difflib.get_close_matches(wrong, [entry.name for entry in there.iterdir()], n=3)
    except OSError:  # it may not be looked into
        return None
    return next((found for name in near if (found := there.joinpath(name, *rest)).exists()), None)


def open_config(model: str) -> ModelConfig:
    """The config of what `model` names, without its weights: a folder needs no more than its config.json.

    Of a multimodal model it is that of the text part.

    Raises:
        UsageError: see `open_checkpoint`.
    """
    from blockexport.models.checkpoints.hub import fetch_from_hub
    from blockexport.models.formats.config_hf import read_hf_config

    path = Path(model).expanduser()
    if model and is_anything(path):
        if path.is_dir() and is_there(path / "config.json"):
            return read_hf_config(path, text_only=True)
        return open_checkpoint(model).config
    if model in PRESETS:
        return PRESETS[model].config
    return read_hf_config(fetch_from_hub(_hub_id(model), ["config.json"])[0], text_only=True)


def _open_path(path: Path, text_only: bool, headless: bool) -> Checkpoint:
    if path.is_dir():
        return _open_folder(path, text_only, headless)
    if path.suffix.lower() == GGUF_SUFFIX or _begins_like_gguf(path):
        from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(path)
    if path.suffix == ".safetensors" or path.name == "config.json":
        raise UsageError(f"{path} is a part of a checkpoint: give its folder, {path.parent}")
    from blockexport.models.checkpoints.safetensors_files import PICKLED, WHY_NOT_PICKLED

    if path.suffix in PICKLED:
        raise UsageError(f"{path}: {WHY_NOT_PICKLED}")
    raise UsageError(f"{path} is a file of no known kind: give a .gguf file, or a folder with config.json and weights")


def _open_folder(folder: Path, text_only: bool, headless: bool) -> Checkpoint:
    from blockexport.models.checkpoints.safetensors_files import lora_adapter
    from blockexport.models.formats.adapter_config import ADAPTER_CONFIG

    if os.path.lexists(folder / "config.json"):
        from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint

        return SafetensorsCheckpoint(folder, text_only=text_only, headless=headless)
    names = sorted(path.name for path in folder.iterdir())
    ggufs = [name for name in names if name.lower().endswith(GGUF_SUFFIX) and (folder / name).is_file()]
    if "manifest.json" in names:
        raise UsageError(f"{folder} is a bundle that was exported from a checkpoint: give the checkpoint itself")
    if ADAPTER_CONFIG in names:
        raise lora_adapter(folder)
    if ggufs:
        several = "" if len(ggufs) == 1 else f", one of {len(ggufs)}"
        raise UsageError(f"{folder} has no config.json, but it holds GGUF: give the file, {folder / ggufs[0]}{several}")
    content = f"has no config.json, only {listed(names)}" if names else "is empty"
    if folder.suffix.lower() == GGUF_SUFFIX:
        raise UsageError(f"{folder} is a folder, not a GGUF file, and {content}: give the path of a .gguf file")
    raise UsageError(f"{folder} {content}: a checkpoint folder holds config.json and safetensors weights")


def _begins_like_gguf(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(4) == b"GGUF"
