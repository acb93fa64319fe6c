"""Which files of a Hugging Face folder hold the weights: one safetensors file, or shards, with an index or without."""

from __future__ import annotations

import re
from pathlib import Path

from blockexport.models.checkpoints.checkpoint import FileSlice, TensorEntry
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.errors import UsageError
from blockexport.models.formats.adapter_config import ADAPTER_CONFIG
from blockexport.models.regular_file import is_there, read_json
from blockexport.models.wording import listed

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
PICKLED = (".bin", ".pth", ".pt", ".ckpt")
WHY_NOT_PICKLED = (
    "pickled weights can run code when they are loaded and are not read. Convert them with transformers: "
    "from_pretrained(folder).save_pretrained(new_folder)"
)


def stored_entries(folder: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    """Every tensor of the checkpoint in `folder`, by the names of its files, and what the user should know.

    Raises:
        UsageError: there are no weights, or it cannot be said which they are; a file is missing or damaged.
    """
    has_single, has_index = is_there(folder / SINGLE_FILE), is_there(folder / INDEX_FILE)
    if (has_single or has_index) and (folder / ADAPTER_CONFIG).exists():
        raise UsageError(
            f"{folder} holds a model and a LoRA adapter ({ADAPTER_CONFIG}), which transformers applies where peft is "
            "installed and ignores elsewhere: move the adapter's files into a folder of their own and name it with "
            "--lora, or remove them if the model alone is meant"
        )
    if has_index:
        return _of_index(folder, folder / INDEX_FILE), []
    if has_single:
        return entries_of(folder / SINGLE_FILE), []
    return _without_index(folder)


def lora_adapter(path: Path) -> UsageError:
    """The refusal of an adapter."""
    return UsageError(
        f"{path} is a LoRA adapter, a difference to a model and not a model: give its base model, and the adapter with "
        f"--lora {path}"
    )


def entries_of(path: Path) -> dict[str, TensorEntry]:
    return {
        name: TensorEntry(name, stored.dtype, stored.shape, FileSlice(path, stored.offset, stored.length))
        for name, stored in read_header(path).items()
    }


def _of_index(folder: Path, index: Path) -> dict[str, TensorEntry]:
    weight_map = _weight_map(index)
    shards = sorted({_shard_name(index, value) for value in weight_map.values()})
    _check_present(folder, index, shards)
    entries: dict[str, TensorEntry] = {}
    for shard in shards:
        placed = {name for name, value in weight_map.items() if value == shard}
        stored = entries_of(folder / shard)
        for name in sorted(placed ^ stored.keys()):
            relation = "which the index does not place there" if name in stored else "and the shard lacks it"
            verb = "holds" if name in stored else "should hold"
            raise UsageError(
                f"{folder / shard} {verb} {name}, {relation}: shard and {index.name} do not belong together"
            )
        entries |= stored
    return entries


def _check_present(folder: Path, index: Path, shards: list[str]) -> None:
    if (folder / SINGLE_FILE).exists() and SINGLE_FILE not in shards:
        raise UsageError(
            f"{folder} holds both {SINGLE_FILE} and {INDEX_FILE}, which lists {listed(shards)}: two sets of weights "
            "that may differ. Remove the one that is not meant"
        )
    if missing := [shard for shard in shards if not is_there(folder / shard)]:
        raise UsageError(
            f"{index} names {len(shards)} files, and {listed(missing)} {'is' if len(missing) == 1 else 'are'} not "
            "beside it. Download what is missing"
        )


def _without_index(folder: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    """Shards whose names count up to their own number are a whole set, whoever lost the index."""
    names = sorted(path.name for path in folder.iterdir())
    shards = [name for name in names if _SHARD.fullmatch(name)]
    if not shards:
        raise _no_weights(folder, names)
    totals = {name[-len("00000.safetensors") : -len(".safetensors")] for name in shards}
    if len(totals) > 1:
        raise UsageError(f"{folder} has no {INDEX_FILE}, and shards of several sets: {listed(shards)}. Keep one set")
    total = totals.pop()
    whole = [f"model-{number:05d}-of-{total}.safetensors" for number in range(1, int(total) + 1)]
    if missing := [name for name in whole if name not in names]:
        raise UsageError(
            f"{folder} has {len(whole) - len(missing)} of {len(whole)} shards and no {INDEX_FILE}: {listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing. Download the checkpoint again"
        )
    entries: dict[str, TensorEntry] = {}
    for name in whole:
        stored = entries_of(folder / name)
        if double := sorted(entries.keys() & stored.keys()):
            raise UsageError(
                f"{folder} has no {INDEX_FILE}, and {double[0]} is in more than one of its shards, {name} among them: "
                "download the index, which says which one counts"
            )
        entries |= stored
    return entries, [f"{folder} has no {INDEX_FILE}: all {len(whole)} shards that its file names count were read"]


def _no_weights(folder: Path, names: list[str]) -> UsageError:
    lacks = f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}"
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if ADAPTER_CONFIG in names or any(name.startswith("adapter_model.") for name in names):
        return lora_adapter(folder)
    if len(safetensors) == 1:
        return UsageError(f"{lacks}, only {safetensors[0]}{_is_it_whole(folder / safetensors[0])}")
    if safetensors:
        return UsageError(
            f"{lacks}, but {len(safetensors)} other safetensors files ({listed(safetensors)}): if they are shards of "
            f"this model, download its {INDEX_FILE}; if one is the whole model, name it {SINGLE_FILE}"
        )
    pickled = [name for name in names if name.endswith(PICKLED)]
    if pickled:
        return UsageError(f"{lacks}, only {listed(pickled)}: {WHY_NOT_PICKLED}")
    held = f" (it holds {listed(names)})" if names else ""
    return UsageError(f"{lacks}{held}: download the weights into it")


def _is_it_whole(path: Path) -> str:
    """What a lone file of another name holds, and what to do about it."""
    tensors = list(read_header(path))
    held = f", which holds {len(tensors)} tensors ({listed(tensors)})" if tensors else ", which holds no tensors"
    whole = any(".layers.0." in f".{name}" for name in tensors)
    return held + (f": rename it to {SINGLE_FILE} if it is the whole model" if whole else ": download the weights")


def _weight_map(index: Path) -> dict[str, object]:
    data = read_json(index, "download it again")
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{index} has no weight_map from tensor names to files. Download it again")
    return weight_map


def _shard_name(index: Path, value: object) -> str:
    """A plain file name: an index must not reach outside its own folder."""
    if not isinstance(value, str) or not re.fullmatch(r"[^/\\\0]*\.safetensors", value):
        raise UsageError(
            f"{index} places weights in {value!r}; a shard must be a plain file name that ends in .safetensors"
        )
    return value
