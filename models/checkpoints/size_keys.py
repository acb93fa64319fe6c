"""The keys of a config that the shape of a tensor follows from, for the message where the checkpoint has another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blockexport.models.config.model_config import ModelConfig

_VOCABULARY, _POSITIONS, _HIDDEN, _INNER = (
    (key,) for key in ("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size")
)
_QUERIES, _KEYS = ("num_attention_heads", "head_dim"), ("num_key_value_heads", "head_dim")

_AXES: dict[str, tuple[tuple[str, ...], ...]] = {
    "embed_tokens": (_VOCABULARY, _HIDDEN),
    "embed_positions": (_POSITIONS, _HIDDEN),
    "q_proj": (_QUERIES, _HIDDEN),
    "k_proj": (_KEYS, _HIDDEN),
    "v_proj": (_KEYS, _HIDDEN),
    "o_proj": (_HIDDEN, _QUERIES),
    "gate_proj": (_INNER, _HIDDEN),
    "up_proj": (_INNER, _HIDDEN),
    "down_proj": (_HIDDEN, _INNER),
    "lm_head": (_VOCABULARY, _HIDDEN),
}


@dataclass(frozen=True)
class SizeKeys:
    """What a config.json says of the sizes.

    Attributes:
        config: what was read from it.
        names: what its family calls keys that other families call otherwise.
        unstated: those that it does not state.
    """

    config: ModelConfig
    names: Mapping[str, str] = field(default_factory=dict)
    unstated: frozenset[str] = frozenset()

    def told(self, *keys: str) -> str:
        """`num_key_value_heads = 8 and head_dim = 4, which it does not state`."""
        unstated = [key for key in keys if key in self.unstated]
        ordered = [key for key in keys if key not in self.unstated] + unstated
        said = " and ".join(f"{self.names.get(key, key)} = {getattr(self.config, key)}" for key in ordered)
        return f"{said}{', which it does not state' if unstated else ''}"

    def of(self, tensor: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
        """The keys of the sizes in which a tensor differs; empty for one whose keys are not known here."""
        module = tensor.split(".")[-2]
        axes = _AXES.get(module, () if module in ("q_norm", "k_norm") else (_HIDDEN,))
        places = [axis for axis in range(len(wanted)) if len(shape) != len(wanted) or shape[axis] != wanted[axis]]
        return self.told(*dict.fromkeys(key for axis in places for keys in axes[axis : axis + 1] for key in keys))
