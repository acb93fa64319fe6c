"""Hunyuan, the dense models: a Llama whose query and key heads are normed after RoPE, and whose RoPE has a larger base.

Tencent 2025, https://huggingface.co/tencent/Hunyuan-7B-Instruct; transformers' `hunyuan_v1_dense`.
"""

from __future__ import annotations

from dataclasses import replace

from blockexport.models.config.config_fields import RawFields
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.families.family import Family, GgufForm, Options, Preset
from blockexport.models.families.windows import full_attention

_ONLY = {
    "mlp_bias": (False,),
    "norm_type": ("rms", "hf_rms"),
    "position_embedding_xdrope": (False,),
    "use_cla": (False,),
    "use_qk_norm": (True,),
    "use_rotary_pos_emb": (True,),
}
"""Keys that transformers does not read, at the one value that says what it computes."""


def _read_options(fields: RawFields) -> Options:
    for key, allowed in _ONLY.items():
        fields.only(key, allowed, "transformers computes what this one says, whatever the key is")
    fields.only("attention_head_dim", (fields.get("head_dim"),), "head_dim is what transformers reads")
    return {}


def _completed(config: ModelConfig) -> ModelConfig:
    return replace(config, qk_norm_after_rope=True)


_HUNYUAN_7B = _completed(
    ModelConfig(
        model_type="hunyuan_v1_dense",
        vocab_size=128_167,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rope_scaling=RopeScaling("ntk_alpha", factor=1000.0),
        qk_norm=True,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_ids=(2,),
    )
)

_OF_OTHER_MODELS = "belongs to classifiers, or to models that see"

HUNYUAN_V1_DENSE = Family(
    model_type="hunyuan_v1_dense",
    class_name="HunYuanDenseV1ForCausalLM",
    max_position_embeddings=2048,
    vocab_size=290_943,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_ids=(2,),
    bias_keys=("attention_bias",),
    qk_norm=True,
    rope_keys=frozenset({"alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}),
    tensor_names={"self_attn.query_layernorm": "self_attn.q_norm", "self_attn.key_layernorm": "self_attn.k_norm"},
    read_layers=full_attention("hunyuan_v1_dense"),
    write_layers=lambda config: {},
    read_options=_read_options,
    completed=_completed,
    ignored={
        "eod_token_id": "ends a document in training; eos_token_id ends a text",
        "org_vocab_size": "the vocabulary before it was padded",
        "cla_share_factor": "says nothing without use_cla",
        **dict.fromkeys(
            (
                *("add_classification_head", "class_num", "dense_list", "pool_type", "skip_cls_token"),
                *("im_start_id", "im_end_id", "im_newline_id", "image_token_id", "mask_init_id", "num_media_embeds"),
                *("text_start_id", "text_end_id"),
            ),
            _OF_OTHER_MODELS,
        ),
    },
    gguf=GgufForm("hunyuan-dense"),
    presets={"hunyuan-7b": Preset(_HUNYUAN_7B, "https://huggingface.co/tencent/Hunyuan-7B-Instruct")},
)
