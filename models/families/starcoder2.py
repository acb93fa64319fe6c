"""StarCoder2: LayerNorm, biases everywhere, and a GELU without a gate, whose matrices it calls c_fc and c_proj."""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.activations import stated_act
from blockexport.models.families.family import Family, GgufForm, Options
from blockexport.models.families.windows import window_everywhere


def _read_options(fields: RawFields) -> Options:
    fields.only("norm_type", ("layer_norm",), "starcoder2 has LayerNorm")
    fields.only("mlp_type", ("default",), "starcoder2's MLP has no gate")
    return dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), fields.flag("use_bias", True))


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, norm="layer_norm", norm_bias=True, gated_mlp=False)


STARCODER2 = Family(
    model_type="starcoder2",
    class_name="Starcoder2ForCausalLM",
    max_position_embeddings=4096,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=50_256,
    eos_token_ids=(50_256,),
    keys={"rms_norm_eps": "norm_epsilon"},
    read_act=lambda fields: stated_act(fields, "hidden_act", "gelu_pytorch_tanh"),
    read_layers=window_everywhere("starcoder2"),
    write_layers=lambda config: {"sliding_window": config.sliding_window},
    read_options=_read_options,
    write_options=lambda config: {"use_bias": config.qkv_bias},
    completed=_completed,
    tensor_names={"mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"},
    ignored={
        "activation_function": "transformers does not read it; hidden_act is the activation",
        "layer_norm_epsilon": "transformers does not read it; norm_epsilon is what the norms add",
        "residual_dropout": "only matters in training",
        "embedding_dropout": "only matters in training",
        "attention_softmax_in_fp32": "transformers does not read it; the softmax is taken in float32 anyway",
        "scale_attention_softmax_in_fp32": "transformers does not read it",
        "scale_attn_weights": "transformers does not read it; scores are scaled anyway",
    },
    gguf=GgufForm(
        "starcoder2",
        more_biases=True,
        eps_key="layer_norm_epsilon",
        options=lambda fields, layers: {"hidden_act": "gelu_pytorch_tanh"},
    ),
)
