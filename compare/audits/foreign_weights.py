"""The weights of another tool's ONNX file that plainly are some of the checkpoint's, held against those.

By content: an initializer, or its transpose, that has a tensor's bits is that tensor, whatever it is called. By name:
one called after a tensor should have its values; so should the only one left of a shape of which one tensor is missing.
What is neither (matrices fused in another way, or folded) is not compared: a tool may lay out weights as it likes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch

from blockexport.compare.audits.artifact_weights import ArtifactWeights
from blockexport.compare.audits.weight_difference import converted, describe_difference, rearranged, scaled
from blockexport.compare.core.figures import Figures
from blockexport.compare.core.immovable import same_bits
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, FINAL_NORM
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.progress import Progress, counted, silent

_NAME = re.compile(r"(?:.*\.)?(model\.layers\.\d+\..+|model\.embed_tokens\..+|model\.norm\..+|lm_head\..+)")
_GENAI = ((".attn.", ".self_attn."), (".MatMul.", "."), (".Add.", "."), (".layernorm.", "."))
_GENAI_FINAL = re.compile(r"model\.layers\.\d+\.final_norm_layernorm\.weight")
DESCRIBED = 3  # tensors whose difference is described
_BEGINNING = 16  # values that a tensor is looked up by before it is compared

Shape = tuple[int, ...]
Key = tuple[torch.dtype, tuple[int, ...], bytes]


@dataclass(frozen=True)
class Held(Figures):
    """How many tensors of the checkpoint the file has to the bit, which differ, and which were not compared; which of
    them it quantises, None where that is none.

    `said` has a clause for each of the first that differ.
    """

    same: int = 0
    differing: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    quantised: list[str] | None = None
    said: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Without what is said, which is the check's message."""
        return {name: value for name, value in super().to_json().items() if name != "said"}


@dataclass(frozen=True)
class _Piece:
    """An initializer, or the part of a fused one that is a tensor of its own."""

    source: str
    start: int = 0
    length: int | None = None

    def read(self, weights: ArtifactWeights) -> torch.Tensor:
        assert weights.read is not None
        whole = weights.read(self.source)
        return whole if self.length is None else whole.narrow(whole.ndim - 1, self.start, self.length)


def corresponding(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Tensors of a checkpoint to the initializers called after them, by optimum's and onnxruntime-genai's rules."""
    return {plain: name for name in shapes if (plain := plain_name(name)) is not None}


def plain_name(name: str) -> str | None:
    """The tensor of a checkpoint that an initializer is called after; None where it is called after none."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    plain = match.group(1)
    if _GENAI_FINAL.fullmatch(plain):
        return FINAL_NORM
    for theirs, ours in _GENAI:
        plain = plain.replace(theirs, ours)
    return plain


def hold_foreign(weights: ArtifactWeights, checkpoint: Checkpoint, progress: Progress = silent) -> Held:
    """Look for each tensor of the checkpoint, in each graph of the artifact; what any lacks counts as lacking."""
    parts = [_hold(part, checkpoint, progress) for part in (weights, *weights.others)]
    return Held(
        min(held.same for held in parts),
        _union(held.differing for held in parts),
        _union(held.not_compared for held in parts),
        said=_union(held.said for held in parts),
    )


def _union(lists: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(lists)))


def _hold(weights: ArtifactWeights, checkpoint: Checkpoint, progress: Progress) -> Held:
    """Of one graph; beside a tensor of the checkpoint one of the file is in memory at a time."""
    named = dict(_pieces(weights.shapes, checkpoint.config))
    nameless = [_Piece(name) for name in weights.shapes if plain_name(name) is None]
    known, types = _by_beginning(weights, [*named.values(), *nameless])
    held, same, missing, used = Held(), 0, [], set[_Piece]()
    for name in counted(checkpoint.entries, "weights", progress):
        there = [piece for dtype in types for piece in _there(weights, converted(checkpoint, name, dtype), known)]
        used |= set(there)
        same += bool(there)
        missing += [] if there else [name]
    left = [piece for piece in nameless if piece not in used]
    shapes = [checkpoint.entries[name].shape for name in missing]
    for name in missing:
        piece = named.get(name) or _only(weights, left, shapes, checkpoint.entries[name].shape)
        said = None if piece is None else _difference(weights, piece, checkpoint, name)
        (held.not_compared if said is None else held.differing).append(name)
        held.said.extend([] if said is None or len(held.said) == DESCRIBED else [said])
    return replace(held, same=same)


def _only(weights: ArtifactWeights, left: Iterable[_Piece], missing: Iterable[Shape], wanted: Shape) -> _Piece | None:
    """The one piece left that can be the one tensor missing of its shape, turned over or not."""
    alike = [piece for piece in left if wanted in (weights.shapes[piece.source], weights.shapes[piece.source][::-1])]
    alone = [shape for shape in missing if shape in (wanted, wanted[::-1])]
    return alike[0] if len(alike) == len(alone) == 1 else None


def fused_parts(name: str, config: ModelConfig) -> dict[str, int]:
    """The tensors that lie side by side in a matrix, and how many outputs each has; none where it is one by itself."""
    heads, groups = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inner = config.intermediate_size
    for fused, widths in (
        ("self_attn.qkv_proj.", {"q_proj": heads, "k_proj": groups, "v_proj": groups}),
        ("mlp.gate_up_proj.", {"gate_proj": inner, "up_proj": inner}),
    ):
        if fused in name:
            module, _, end = name.partition(fused)
            place = fused.partition(".")[0]
            return {f"{module}{place}.{part}.{end}": width for part, width in widths.items()}
    return {}


def _pieces(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> Iterator[tuple[str, _Piece]]:
    """Tensor to piece; several side by side in one matrix are as many."""
    for plain, name in corresponding(shapes).items():
        parts = fused_parts(plain, config)
        if not parts:
            yield plain, _Piece(name)
        elif shapes[name][-1] == sum(parts.values()):
            start = 0
            for part, width in parts.items():
                yield part, _Piece(name, start, width)
                start += width


def _by_beginning(
    weights: ArtifactWeights, pieces: Iterable[_Piece]
) -> tuple[dict[Key, list[tuple[_Piece, bool]]], set[torch.dtype]]:
    """Pieces, and whether turned over, by their first values; and the types there are."""
    known: dict[Key, list[tuple[_Piece, bool]]] = defaultdict(list)
    types = set()
    for piece in pieces:
        values = piece.read(weights)
        types.add(values.dtype)
        known[_key(values)].append((piece, False))
        if values.ndim == 2:
            known[_key(values.T)].append((piece, True))
    return known, types


def _key(values: torch.Tensor) -> Key:
    first = values[(0,) * (values.ndim - 1)][:_BEGINNING].contiguous()
    return values.dtype, tuple(values.shape), first.view(torch.uint8).numpy().tobytes()


def _there(
    weights: ArtifactWeights, wanted: torch.Tensor, known: Mapping[Key, list[tuple[_Piece, bool]]]
) -> Iterator[_Piece]:
    for piece, turned in known.get(_key(wanted), ()):
        values = piece.read(weights)
        if same_bits(values.T if turned else values, wanted):
            yield piece


def _difference(weights: ArtifactWeights, piece: _Piece, checkpoint: Checkpoint, name: str) -> str | None:
    """What a piece of the tensor's name and shape holds instead; None where the tool may have meant it so."""
    stored = piece.read(weights)
    wanted = converted(checkpoint, name, stored.dtype)
    found = _way_round(stored, wanted, is_table=name == EMBEDDING)
    if found is None:
        return None
    if rearranged(found, wanted, checkpoint.config.head_dim) or scaled(found, wanted):
        return None
    shapes = {other: entry.shape for other, entry in checkpoint.entries.items()}
    return describe_difference(found, checkpoint, name, shapes)


def _way_round(stored: torch.Tensor, wanted: torch.Tensor, *, is_table: bool) -> torch.Tensor | None:
    """A piece as the tensor lies, turned over if need be; None where its shape is another.

    Of a square matrix the shape does not tell: it lies the way in which more of its values are the nearer ones.
    """
    both = [stored] if is_table or stored.ndim != 2 else [stored.T, stored]
    ways = [way for way in both if way.shape == wanted.shape]
    if len(ways) == 2:
        turned, plain = ((way.float() - wanted.float()).abs() for way in ways)
        ways = ways[int((plain < turned).sum() > (turned < plain).sum()) :]
    return ways[0].contiguous() if ways else None
