"""What a decoder is, in numbers: one frozen record that every layer of the project reads.

Field names are those of Hugging Face's `config.json`. Readers of config.json, of GGUF metadata and the presets all
produce this record; nothing else in the project looks at a raw config.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

LayerType = Literal["full_attention", "sliding_attention"]
LAYER_TYPES: tuple[LayerType, ...] = get_args(LayerType)
NormType = Literal["rms_norm", "layer_norm"]
RopeType = Literal["linear", "llama3", "freq_factors"]


@dataclass(frozen=True)
class RopeScaling:
    """How the rotation frequencies are stretched beyond the training context.

    `linear` divides every frequency by `factor`; `llama3` divides only the long wavelengths, with a smooth ramp;
    `freq_factors` divides frequency i by `freq_factors[i]` (a GGUF file's way to store llama3 scaling).
    """

    rope_type: RopeType
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions and options of a pre-norm decoder. Letters in brackets are the project's shape letters."""

    model_type: str
    vocab_size: int  # V
    hidden_size: int  # D
    intermediate_size: int  # F
    num_hidden_layers: int  # L
    num_attention_heads: int  # N
    num_key_value_heads: int  # K
    head_dim: int  # H
    max_position_embeddings: int
    rms_norm_eps: float  # of every norm, of whichever kind
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    norm: NormType = "rms_norm"
    norm_weight: bool = True  # norms have gains
    norm_bias: bool = False  # norms have biases, which only a LayerNorm may
    hidden_act: str = "silu"
    qkv_bias: bool = False  # biases of q_proj, k_proj and v_proj
    o_bias: bool = False  # bias of o_proj
    mlp_bias: bool = False  # biases of gate_proj, up_proj and down_proj
    qk_norm: bool = False  # norm of each query and key head, before RoPE
    sliding_window: int | None = None  # a query at p sees p - window + 1 .. p in the sliding layers
    layer_types: tuple[LayerType, ...] = ()  # one per layer; empty means all full
    layers_without_rope: tuple[int, ...] = ()
    tie_word_embeddings: bool = False
    dtype: str = "float32"  # of the checkpoint's weights
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())

    def window_of(self, layer: int) -> int | None:
        """The sliding window of a layer, or None where it sees the whole prefix."""
        if not self.layer_types or self.layer_types[layer] == "full_attention":
            return None
        return self.sliding_window

    def has_rope(self, layer: int) -> bool:
        """Whether a layer turns its queries and keys by their positions."""
        return layer not in self.layers_without_rope

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values, for the manifest. `read_record` reads it back."""
        return asdict(self)
