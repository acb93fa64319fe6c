"""Cohere 2 (Command R7B, Command A): Cohere's block, with windows in three of four layers and RoPE in these alone."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields, check_derived_width
from blockexport.models.config.model_config import LAYER_TYPES, LayerType
from blockexport.models.families.cohere import COHERE
from blockexport.models.families.family import GgufForm, LayerOptions, Options
from blockexport.models.families.windows import windows_or, write_windows

_WINDOW, _PATTERN = 4096, 4


def _types(layers: int, pattern: int = _PATTERN) -> tuple[LayerType, ...]:
    return tuple(LAYER_TYPES[(layer + 1) % pattern != 0] for layer in range(layers))


def _unturned(options: LayerOptions, layers: int) -> LayerOptions:
    """Layers that see the whole prefix have no RoPE."""
    full = tuple(i for i in range(layers) if not options.layer_types or options.layer_types[i] == "full_attention")
    return options._replace(layers_without_rope=full)


def _read_layers(fields: RawFields, layers: int) -> LayerOptions:
    check_derived_width(fields)
    pattern = fields.integer("sliding_window_pattern", _PATTERN)
    return _unturned(windows_or(fields, layers, _types(layers, pattern), _WINDOW), layers)


def _gguf_options(fields: RawFields, layers: int) -> Options:
    window = fields.integer("cohere2.attention.sliding_window")
    options = _unturned(LayerOptions(window, _types(layers)), layers)
    return {**options._asdict(), "logits_multiplier": fields.number("cohere2.logit_scale")}


COHERE2 = replace(
    COHERE,
    model_type="cohere2",
    class_name="Cohere2ForCausalLM",
    rope_theta=10_000.0,
    read_layers=_read_layers,
    write_layers=write_windows,
    ignored={
        "_sliding_window_pattern": "what transformers made layer_types of; it does not read it back",
        "layer_switch": "transformers does not read it; the published files have it beside the windows",
        "order_of_interleaved_layers": "transformers does not read it",
        "position_embedding_type": "transformers does not read it; layer_types decides which layers have RoPE",
        "rotary_pct": "transformers does not read it; whole heads are turned",
        "use_embedding_sharing": "transformers does not read it; tie_word_embeddings says it",
        "use_gated_activation": "transformers does not read it; the MLP always has a gate",
        "use_parallel_block": "transformers does not read it; the block is always parallel",
        "use_parallel_embedding": "transformers does not read it",
    },
    gguf=GgufForm("cohere2", eps_key="layer_norm_epsilon", options=_gguf_options),
    presets={},
)
