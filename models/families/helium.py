"""Helium: a Llama whose RoPE turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, Options
from blockexport.models.families.windows import full_attention

_WIDTH = 128  # where no key says it


def _read_options(fields: RawFields) -> Options:
    """transformers makes o_proj as wide as the stream, so heads of another width together do not fit it."""
    hidden, width = fields.integer("hidden_size"), fields.optional_integer("head_dim", _WIDTH)
    heads = fields.integer("num_attention_heads")
    if width is not None and heads * width != hidden:
        raise fields.error(
            f"{fields.told('head_dim', width)}, num_attention_heads is {heads} and hidden_size is {hidden}; helium's "
            "heads together must be as wide as the stream"
        )
    return {"o_bias": False}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, rope_interleaved=True)


HELIUM = Family(
    model_type="helium",
    class_name="HeliumForCausalLM",
    max_position_embeddings=4096,
    num_key_value_heads=20,
    head_dim=_WIDTH,
    rms_norm_eps=1e-8,
    rope_theta=100_000.0,
    bos_token_id=1,
    eos_token_ids=(2,),
    bias_keys=("attention_bias", "mlp_bias"),
    read_layers=full_attention("helium"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
)
