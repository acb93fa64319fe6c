"""What is particular to a family of models: a record, which each family's file makes and `every_family.py` lists.

Only what reads or writes a config or a GGUF file asks it. Everything else reads options of the block (`ModelConfig`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import HiddenAct, LayerType, ModelConfig
from blockexport.models.families.activations import stated_act


class LayerOptions(NamedTuple):
    """The options of `ModelConfig` that differ from layer to layer; as they are here, all layers are alike."""

    sliding_window: int | None = None
    layer_types: tuple[LayerType, ...] = ()
    layers_without_rope: tuple[int, ...] = ()


Options = Mapping[str, Any]
"""Fields of `ModelConfig` by name."""


def _silu(fields: RawFields) -> HiddenAct:
    return stated_act(fields, "hidden_act", "silu")


@dataclass(frozen=True)
class GgufForm:
    """How llama.cpp has the family.

    Attributes:
        architecture: the file's `general.architecture`, which stands in front of its keys.
        neighbour_pairs: RoPE turns neighbouring dimensions, so the rows of q and k are in another order.
        more_biases: o_proj and the MLP may have biases, and not only q, k and v.
        rope_factors: the tensor `rope_freqs.weight` is read.
        mlp_norm: the norm before the MLP.
        fused: see `Family`.
        gain_offset_added: norms hold 1 + weight.
        eps_key: what it calls the epsilon of the norms, under `attention`.
        partial_rotary: RoPE may turn a part of each head.
        yarn: RoPE may be stretched as YaRN does it.
        parallel_by_norms: attention and MLP read the same stream where the MLP has no norm of its own.
        options: those that its own keys say, or its reader decides, for a model of so many layers.
    """

    architecture: str
    neighbour_pairs: bool = False
    more_biases: bool = False
    rope_factors: bool = False
    mlp_norm: str = "ffn_norm"
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gain_offset_added: bool = False
    eps_key: str = "layer_norm_rms_epsilon"
    partial_rotary: bool = False
    yarn: bool = False
    parallel_by_norms: bool = False
    options: Callable[[RawFields, int], Options] = lambda fields, layers: {}


@dataclass(frozen=True)
class Preset:
    """A config and the page it was published on (None for `tiny`, which is this project's own)."""

    config: ModelConfig
    url: str | None


@dataclass(frozen=True)
class Family:
    """One `model_type`.

    Attributes:
        model_type: its name.
        class_name: transformers' class, which stands under `architectures`.
        max_position_embeddings: transformers' default, as are the next ten, for a key that is absent.
        vocab_size: None where it has to be stated.
        num_attention_heads: None where it has to be stated.
        mlp_ratio: how many times as wide as the stream the MLP is; None where its width has to be stated.
        num_key_value_heads: None means as many heads as queries have.
        head_dim: None means a width of D / N.
        rms_norm_eps: added to the mean of squares.
        rope_theta: RoPE's base.
        sliding_rope_theta: that of the sliding layers, in a family that has one of its own for them.
        sliding_rope_key: where a config states it beside `rope_theta`; None where it cannot.
        tie_word_embeddings: embedding and head are one table.
        bos_token_id: None where it has none.
        eos_token_ids: tokens that end a text.
        bias_keys: those that a config may set; `attention_bias` is for q, k, v and o.
        bias_default: their value where a config does not.
        qkv_bias: q, k and v always have biases, where no key says so.
        every_bias: so do o and the MLP.
        qk_norm: query and key heads are normed.
        fused: projections that a checkpoint has stacked in one matrix, and their parts in order.
        fused_by_head: and their rows follow each other head by head.
        inputs_first: the matrices of a layer lie [in, out] (`Conv1D`).
        tensor_names: what its checkpoints call modules, or what holds them, and what other families call them. A bundle
            of such a model has no `config.json`: transformers would look for its tensors by the former.
        written_as: the family as which a bundle's `config.json` describes a model, where the bundle's tensors are named
            like that one's; None: as itself.
        keys: what its files call keys that those of other families call otherwise.
        other_keys: second names of keys, under which its files may have them as well.
        learned_positions: a learned vector for each position is added to the embedding, and there is no RoPE.
        original_max_position_embeddings: the length before scaling where a config has no such key; None: what its
            scaling says.
        rope_default: RoPE's object where a config has none.
        rope_keys: what its RoPE may have beside the keys of its type.
        partial_rotary_factor: the share of a head that RoPE turns where no key says it; None: there is no such key.
        completed: the config with the options that its family and its other fields decide.
        ignored: keys without a meaning in this family alone, each with the reason.
        read_layers: options by layer, from a config with so many layers. Raises UsageError where keys disagree.
        write_layers: the keys from which `read_layers` reads them back.
        read_act: the activation, under the key that the family has for it.
        act_key: that key.
        read_options: options that keys of the family's own say. Raises UsageError for what cannot be exported.
        write_rope: what RoPE's object has of it.
        write_options: the keys from which `read_options` reads them back.
        gguf: None where llama.cpp has no such family, or stores it as another one.
        presets: well-known dimensions by name.
    """

    model_type: str
    class_name: str
    max_position_embeddings: int
    read_layers: Callable[[RawFields, int], LayerOptions]
    write_layers: Callable[[ModelConfig], dict[str, Any]]
    vocab_size: int | None = None
    num_attention_heads: int | None = None
    mlp_ratio: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    sliding_rope_theta: float | None = None
    sliding_rope_key: str | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bias_keys: tuple[Literal["attention_bias", "mlp_bias"], ...] = ()
    bias_default: bool = False
    qkv_bias: bool = False
    every_bias: bool = False
    qk_norm: bool = False
    read_act: Callable[[RawFields], HiddenAct] = _silu
    act_key: str = "hidden_act"
    keys: Mapping[str, str] = field(default_factory=dict)
    other_keys: Mapping[str, str] = field(default_factory=dict)
    learned_positions: bool = False
    original_max_position_embeddings: int | None = None
    rope_default: Mapping[str, Any] | None = None
    rope_keys: frozenset[str] = frozenset()
    partial_rotary_factor: float | None = None
    read_options: Callable[[RawFields], Options] = lambda fields: {}
    write_options: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    write_rope: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fused_by_head: bool = False
    inputs_first: bool = False
    tensor_names: Mapping[str, str] = field(default_factory=dict)
    written_as: str | None = None
    completed: Callable[[ModelConfig], ModelConfig] = lambda config: config
    ignored: Mapping[str, str] = field(default_factory=dict)
    gguf: GgufForm | None = None
    presets: Mapping[str, Preset] = field(default_factory=dict)
