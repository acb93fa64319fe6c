"""OLMo 2: norms stand after the sublayers, and QK-norm takes a projection as a whole."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.family import Family, GgufForm, Preset
from blockexport.models.families.windows import full_attention


def completed(config: ModelConfig) -> ModelConfig:
    """What OLMo 2 and 3 have."""
    return replace(config, norm_placement="post", qk_norm_over="projection")


_OLMO2_1B = completed(
    ModelConfig(
        model_type="olmo2",
        vocab_size=100_352,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=128,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=500_000.0,
        qk_norm=True,
        dtype="float32",
        eos_token_ids=(100_257,),
    )
)

OLMO2 = Family(
    model_type="olmo2",
    class_name="Olmo2ForCausalLM",
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    eos_token_ids=(50_279,),
    bias_keys=("attention_bias",),
    qk_norm=True,
    read_layers=full_attention("olmo2"),
    write_layers=lambda config: {},
    completed=completed,
    gguf=GgufForm("olmo2"),
    presets={"olmo2-1b": Preset(_OLMO2_1B, "https://huggingface.co/allenai/OLMo-2-0425-1B")},
)
