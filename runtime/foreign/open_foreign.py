"""Open another tool's file, or its two files, as one decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from blockexport.export.bundle.onnx_file import read_onnx, require_weights
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.runtime.foreign.foreign_convention import Cache, recognise
from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
from blockexport.runtime.foreign.foreign_file import ForeignFile, check_architecture
from blockexport.runtime.foreign.growing_cache import GrowingCacheDecoder
from blockexport.runtime.foreign.shared_cache import SharedCacheDecoder
from blockexport.runtime.foreign.static_cache import StaticCacheDecoder

_REMEDY = "Name the ONNX file of a decoder, with the files of its weights beside it"
DEFAULT_SLOTS = 512  # room for the judged prompt, its decode steps, and a way to go to the last of them
_DECODERS: Mapping[Cache, type[ForeignDecoder]] = {
    Cache.GROWING: GrowingCacheDecoder,
    Cache.SHARED: SharedCacheDecoder,
    Cache.STATIC: StaticCacheDecoder,
}


def read_foreign(paths: Sequence[Path], mapped: Mapping[str, str] | None = None) -> list[ForeignFile]:
    """The graph that takes a cache, and after it the one for the prompt where there are two.

    Args:
        paths: one file, or two in any order.
        mapped: see `foreign_convention.recognise`.

    Raises:
        UsageError: no ONNX files of a known convention, or not two that belong together.
        NotJudgedError: quantised weights.
    """
    files = []
    for path in paths:
        model = read_onnx(path, _REMEDY)
        require_weights(model, path, _REMEDY)
        files.append(ForeignFile(path, model, recognise(model, path, mapped)))
    files.sort(key=lambda file: file.convention.cache is Cache.NONE)
    kinds = [file.convention.cache for file in files]
    if kinds[0] is Cache.NONE:
        raise UsageError(
            f"{files[0].path} makes a cache and takes none, so there are no decode steps to judge: give the graph of "
            f"the decode steps too, --onnx {files[0].path} --onnx FILE"
        )
    if len(files) > 2 or (Cache.NONE not in kinds[1:] and len(files) > 1):
        raise UsageError(
            f"{', '.join(str(file.path) for file in files)} are no pair: a decoder is one file, or one for the prompt, "
            "which takes no cache, and one for the steps after it"
        )
    return files


def open_foreign(
    files: Sequence[ForeignFile], config: ModelConfig, *, max_sequence_length: int | None = None
) -> ForeignDecoder:
    """The decoder in another tool's ONNX files.

    Args:
        files: as `read_foreign` gives them.
        config: of the checkpoint it is said to come from.
        max_sequence_length: how many tokens a row may hold; 512 or what the model was made for, if fewer. A file that
            fixes the number of its slots allows no other.

    Raises:
        UsageError: the file is of another architecture than `config`, or ONNX Runtime does not load or run it.
        NotJudgedError: this ONNX Runtime lacks a kernel that it needs.
    """
    fixed: int | None = None
    for file in files:
        check_architecture(file.model, file.convention, config, file.path)
        fixed = fixed or file.convention.slots
        if fixed is not None and max_sequence_length not in (None, fixed):
            raise UsageError(f"{file.path} fixes its cache at {fixed} slots, not {max_sequence_length}: omit -M")
        if file.convention.fixed_batch not in (None, 1):
            raise UsageError(
                f"{file.path} fixes its batch at {file.convention.fixed_batch} rows: export it with a free batch, or 1"
            )
    slots = fixed or max_sequence_length or min(DEFAULT_SLOTS, config.max_position_embeddings)
    if slots > config.max_position_embeddings:
        raise UsageError(
            f"{slots} cache slots are more than the {config.max_position_embeddings} positions of the model: a foreign "
            "file's RoPE table ends there. Ask for at most as many"
        )
    decoder = _DECODERS[files[0].convention.cache](files, config, slots)
    decoder.probe()
    return decoder
