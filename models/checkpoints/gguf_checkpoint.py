"""A GGUF file as a checkpoint: llama.cpp's names, types and RoPE pairing turned into Hugging Face's.

Names and the row order follow llama.cpp's conversion scripts (https://github.com/ggml-org/llama.cpp, `conversion/` and
`gguf-py/gguf/constants.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from blockexport.models.checkpoints.checkpoint import Checkpoint, FileSlice, Source, TensorEntry
from blockexport.models.checkpoints.fused_tensors import parts_of
from blockexport.models.checkpoints.gguf_codes import SCHEMES, codes_and_scales
from blockexport.models.checkpoints.gguf_header import GgufTensor, read_gguf
from blockexport.models.checkpoints.tensor_names import (
    EMBEDDING,
    OUTPUT_BIAS,
    OUTPUT_HEAD,
    POSITIONS,
    expected_tensors,
    needed_entries,
)
from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig, NormPlace
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import GGUF_FAMILIES
from blockexport.models.families.family import GgufForm
from blockexport.models.formats.config_gguf import config_from_gguf
from blockexport.models.quantised_matrix import QuantisedMatrix

if TYPE_CHECKING:
    import torch

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotation frequencies, one per pair: llama3 scaling. They go into the config, not the weights."""

_WHOLE = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": OUTPUT_HEAD,
    "output.bias": OUTPUT_BIAS,
    "position_embd.weight": POSITIONS,
}
_IN_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS: dict[str, NormPlace] = {
    "attn_norm": "attention_in",
    "post_attention_norm": "attention_out",
    "post_ffw_norm": "mlp_out",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(weight|bias)")

_OTHER_KINDS = {
    "adapter": "a LoRA adapter, a difference to a model: merge it into its model first (llama-export-lora)",
    "mmproj": "the part of a multimodal model that sees or hears",
    "imatrix": "a record of activations that guides quantisation",
}

PIECE = 1 << 17  # values dequantised at a time: what gguf makes on the way stays in the processor's cache
_KEPT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


class GgufCheckpoint(Checkpoint):
    """The checkpoint in one .gguf file. F32, F16 and BF16 tensors keep their type, quantised ones become F32.

    Attributes:
        metadata: the file's key-value pairs, decoded when asked for; the tokenizer is in there.

    Raises:
        UsageError: the file is damaged, split, of an unknown architecture, or holds tensors that are missing,
            unknown, of a wrong shape, or of a type that the gguf package does not dequantise.
    """

    metadata: Mapping[str, Any]

    def __init__(self, path: Path) -> None:
        path = path.absolute()
        self.metadata, tensors = read_gguf(path)
        self._path = path
        _check_whole(path, self.metadata)
        if not tensors:
            raise UsageError(
                f"{path} holds metadata and no tensors: it is a vocabulary or the first part of a model. "
                "Take the file of the whole model"
            )
        stored = {tensor.name: tensor for tensor in tensors}
        factors = self._rope_factors(stored.pop(ROPE_FACTORS, None))
        self.config = config_from_gguf(self.metadata, factors, stored.keys(), str(path))
        _, self._form = GGUF_FAMILIES[self.metadata["general.architecture"]]
        names = {hugging_face_name(name, self.config, self._form): tensor for name, tensor in stored.items()}
        self._stored = _taken_apart(names, self._form, self.config)
        found = {name: self._entry(name, tensor) for name, tensor in self._stored.items()}
        self.entries: Mapping[str, TensorEntry] = needed_entries(
            found, self.config, str(path), "the model it was made from"
        )
        self.source = Source("gguf", str(path), (path,))

    def read(self, name: str) -> torch.Tensor:
        """See `Checkpoint.read`: dequantised, and q and k rows in half-split order."""
        import torch

        from blockexport.models.checkpoints.mapped_tensor import tensor_of

        entry, stored = self.entries[name], self._stored[name]
        if stored.ggml_type in _KEPT_TYPES:
            kind = stored.ggml_type.name
            tensor = tensor_of(FileSlice(self._path, stored.offset, stored.length), kind, entry.shape)
        else:
            tensor = torch.from_numpy(self._dequantised(stored))
        return self._ordered(name, tensor)

    def strips(self, name: str) -> Iterator[torch.Tensor]:
        """See `Checkpoint.strips`. Read as a whole is what llama.cpp has in another order: q and k."""
        import torch

        from blockexport.models.checkpoints.mapped_tensor import strips_of

        entry, stored = self.entries[name], self._stored[name]
        if self._is_permuted(name) or len(entry.shape) == 1:
            yield from super().strips(name)
        elif entry.location is not None:
            yield from strips_of(entry)
        else:
            for rows in entry.rows():
                yield torch.from_numpy(self._dequantised(stored, rows))

    def read_codes(self, name: str) -> QuantisedMatrix:
        """See `Checkpoint.read_codes`: rows of codes and of scales in half-split order, as `read` has them."""
        scheme = self.entries[name].codes
        assert scheme is not None, name
        parts = codes_and_scales(self._raw(self._stored[name]), scheme, self.entries[name].shape[0])
        codes_KN, scales_GN = (self._ordered(name, rows).T for rows in parts)
        return QuantisedMatrix(name, scheme, codes_KN, scales_GN)

    def _ordered(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        if self._has_offset(name):
            return rows.float() - 1
        return half_split_rows(rows, self._heads_of(name)) if self._is_permuted(name) else rows

    def _has_offset(self, name: str) -> bool:
        """Whether the file has a norm's gain with the 1 that the block adds to it."""
        return self._form.gain_offset_added and name.endswith("norm.weight")

    def _entry(self, name: str, stored: GgufTensor) -> TensorEntry:
        if stored.ggml_type not in _KEPT_TYPES:
            _check_dequantisable(stored, self._path)
            kind = stored.ggml_type.name
            codes = SCHEMES.get(kind) if len(stored.shape) == 2 else None
            return TensorEntry(name, "F32", stored.shape, None, stored.name, kind, codes)
        if self._has_offset(name):
            return TensorEntry(name, "F32", stored.shape, None, stored.name, stored.ggml_type.name)
        verbatim = None if self._is_permuted(name) else FileSlice(self._path, stored.offset, stored.length)
        return TensorEntry(name, stored.ggml_type.name, stored.shape, verbatim, stored.name)

    def _is_permuted(self, name: str) -> bool:
        return self._form.neighbour_pairs and _PERMUTED.fullmatch(name) is not None

    def _heads_of(self, name: str) -> int:
        query = ".q_proj." in name
        return self.config.num_attention_heads if query else self.config.num_key_value_heads

    def _dequantised(self, stored: GgufTensor, rows: slice | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The tensor, or some rows of a matrix."""
        block, block_bytes = GGML_QUANT_SIZES[stored.ggml_type]
        raw, shape = self._raw(stored), stored.shape
        if rows is not None:
            raw, shape = raw.reshape(shape[0], -1)[rows], (rows.stop - rows.start, *shape[1:])
        raw = raw.reshape(-1, block_bytes)
        values = np.empty(shape, np.float32)
        flat, step = values.reshape(-1, block), PIECE // block
        with np.errstate(all="ignore"):  # a scale that is not finite is refused with the tensor's name later
            for start in range(0, len(raw), step):
                piece = raw[start : start + step].reshape(1, -1)  # one row: gguf would go through many one by one
                flat[start : start + step] = dequantize(piece, stored.ggml_type).reshape(-1, block)
        return values

    def _raw(self, stored: GgufTensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        # A plain array: each of the thousands of views that gguf takes of a memmap would carry its bookkeeping along.
        return np.asarray(np.memmap(self._path, np.uint8, "r", stored.offset, (stored.length,)))

    def _rope_factors(self, stored: GgufTensor | None) -> tuple[float, ...] | None:
        if stored is None:
            return None
        if stored.ggml_type is not GGMLQuantizationType.F32:
            raise UsageError(f"{ROPE_FACTORS} in {self._path} has type {stored.ggml_type.name}; it must be F32")
        values = np.memmap(self._path, np.dtype("<f4"), "r", stored.offset, stored.shape)
        return tuple(values.ravel().tolist())


def _taken_apart(stored: Mapping[str, GgufTensor], form: GgufForm, config: ModelConfig) -> dict[str, GgufTensor]:
    """The tensors with each part of a stacked one in its place: some of its rows."""
    expected, found = expected_tensors(config), dict[str, GgufTensor]()
    for name, tensor in stored.items():
        parts = parts_of(name, form.fused, expected)
        if parts is None or tensor.shape[0] != parts[-1][1].stop:  # another shape is refused by its name
            found[name] = tensor
            continue
        width = tensor.length // tensor.shape[0]
        for part, rows in parts:
            count = rows.stop - rows.start
            place = {"offset": tensor.offset + rows.start * width, "length": count * width}
            found[part] = replace(tensor, shape=(count, *tensor.shape[1:]), **place)
    return found


def hugging_face_name(name: str, config: ModelConfig, form: GgufForm) -> str:
    """The Hugging Face name of a GGUF tensor; a name that has none comes back as it is, to be refused by it."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _BLOCK_NAME.fullmatch(name)
    places = {**_NORMS, form.mlp_norm: "mlp_in"}
    norms = {stored: config.layer_norms.get(place) for stored, place in places.items()}
    found = None if match is None else {**norms, **_IN_BLOCK}.get(match[2])
    if match is None or found is None:
        return name
    return f"model.layers.{match[1]}.{found}.{match[3]}"


def half_split_rows(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order: within each head, rows (0, 1), (2, 3), ... are pairs; afterwards (i, i + H/2) are.

    Args:
        tensor: [heads * H, D] weights or [heads * H] biases.
        heads: N for q, K for k.
    """
    pairs = tensor.shape[0] // heads // 2
    return tensor.view(heads, pairs, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _check_whole(path: Path, metadata: Mapping[str, Any]) -> None:
    """Before the config is read: the later parts of a split model have no more metadata than this."""
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise UsageError(
            f"{path} is one of {parts} parts of a split model: join them first, "
            "with llama.cpp's `llama-gguf-split --merge FIRST_PART WHOLE.gguf`"
        )
    kind = RawFields(metadata, str(path)).text("general.type", "model")
    if kind != "model":
        what = _OTHER_KINDS.get(kind, "not a model")
        raise UsageError(f"{path} says general.type: {kind!r}, so it is {what}. Take the file of the model itself")
    if not isinstance(metadata.get("general.architecture"), str):
        raise UsageError(f"{path} does not say its general.architecture. Download it again or convert it anew")


def _check_dequantisable(stored: GgufTensor, path: Path) -> None:
    """Ask the gguf package on one block of zeros, so that opening already tells."""
    block_bytes = GGML_QUANT_SIZES[stored.ggml_type][1]
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8), stored.ggml_type)
    except NotImplementedError as error:
        raise UsageError(
            f"{stored.name} in {path} has type {stored.ggml_type.name}, which the gguf package does not dequantise: "
            "take the model in another type, such as Q8_0, F16 or BF16"
        ) from error
