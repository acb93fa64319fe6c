"""Small random models for the tests: every dimension different, weights large enough that a mistake shows.

At the usual standard deviation of 0.02 logits stay under 1 and nearly everything agrees; here it is 0.2, and norm gains
lie between 0.25 and 1.75.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.formats.config_hf_write import config_to_hf

Weights = dict[str, torch.Tensor]


def small_config(model_type: str = "llama", **changes: Any) -> ModelConfig:
    """A config of a family with its options on (Qwen2's biases, Qwen3's QK-norm); `changes` replace fields."""
    config = ModelConfig(
        model_type=model_type,
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        qkv_bias=model_type in ("qwen2", "seed_oss"),
        qk_norm=model_type in ("qwen3", "olmo2"),
        bos_token_id=1,
        eos_token_ids=(2,),
    )
    return FAMILIES[model_type].completed(replace(config, **changes))


def small_weights(config: ModelConfig, seed: int = 0, std: float = 0.2) -> Weights:
    """Random weights under Hugging Face names, in the config's dtype."""
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, shape in expected_tensors(config).items():
        if name.endswith("norm.weight"):
            values = torch.rand(shape, generator=generator) * 1.5 + 0.25 - float(config.norm_gain_offset)
        else:
            values = torch.randn(shape, generator=generator) * std
        weights[name] = values.to(getattr(torch, config.dtype))
    return weights


def write_folder(folder: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor], shards: int = 1) -> Path:
    """A Hugging Face checkpoint: config.json and one safetensors file, or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    data = config_to_hf(config)
    assert data is not None, "this config has no config.json"
    (folder / "config.json").write_text(json.dumps(data))
    if shards == 1:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(weights)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in weights.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_odd_folder(folder: Path) -> tuple[ModelConfig, Weights]:
    """A checkpoint whose float32 tensors lie off the grid of four bytes, after a float16 vector of odd length."""
    config = small_config(num_hidden_layers=1, hidden_size=15, head_dim=4)
    weights = small_weights(config)
    weights["model.norm.weight"] = weights["model.norm.weight"].half()
    write_folder(folder, config, weights)
    header: dict[str, object] = {}
    data = b""
    for name in ["model.norm.weight", *sorted(weights.keys() - {"model.norm.weight"})]:
        raw = weights[name].numpy().tobytes()
        kind = "F16" if name == "model.norm.weight" else "F32"
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(weights[name].shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode().ljust(4096)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return config, weights


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.embed_positions": "position_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


_GGUF_NORMS = {
    "attention_in": "attn_norm",
    "attention_out": "post_attention_norm",
    "mlp_in": "ffn_norm",
    "mlp_out": "post_ffw_norm",
}


def gguf_name(name: str, config: ModelConfig) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    norms = {norm: _GGUF_NORMS[place] for place, norm in config.layer_norms.items()}
    if config.model_type == "seed_oss":
        norms["post_attention_layernorm"] = "post_attention_norm"
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{({**norms, **_GGUF_NAMES})[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def neighbour_pairs(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """`permute` of llama.cpp's conversion of Llama models: half-split rows become neighbouring pairs."""
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    permuted: np.ndarray[Any, Any] = split.swapaxes(1, 2).reshape(values.shape)
    return permuted


def gguf_writer(path: Path, config: ModelConfig) -> gguf.GGUFWriter:
    """A writer that already holds the metadata of `config`; tensors are added by the caller."""
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"<{i}> é" for i in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id or 0)
    writer.add_eos_token_id(config.eos_token_ids[0])
    return writer


def add_options(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """The keys of options that few families have."""
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    if config.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "gpt_neox":
        writer.add_parallel_residual(config.residual == "parallel")
    if config.model_type == "granite":
        writer.add_attention_scale(config.score_scale)
    if config.model_type in ("granite", "minicpm"):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(1.0 / config.logits_multiplier)


def stacked(weights: Mapping[str, torch.Tensor], arch: str) -> Weights:
    """Weights with q, k and v in one matrix, and gate and up in the place of up, as llama.cpp has Phi-3's; GLM-4-0414's
    q, k and v are apart."""
    made = dict(weights)
    if arch not in ("chatglm", "glm4", "gpt2", "gptneox", "phi3"):
        return made
    for name in weights:
        stem, found, kind = name.partition("self_attn.q_proj")
        if found and arch != "glm4":
            attention = [made.pop(f"{stem}self_attn.{part}_proj{kind}") for part in "qkv"]
            made[f"{stem}self_attn.qkv_proj{kind}"] = torch.cat(attention)
        stem, found, kind = name.partition("mlp.gate_proj")
        if found:
            made[f"{stem}mlp.up_proj{kind}"] = torch.cat([made.pop(name), made[f"{stem}mlp.up_proj{kind}"]])
    return made


def add_weights(
    writer: gguf.GGUFWriter,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """Add weights as llama.cpp's conversion does: its names, and its row order for q and k of Llama models.

    Those of `kinds` are quantised, the others F32.
    """
    for name, tensor in stacked(weights, writer.arch).items():
        values = tensor.float().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None and writer.arch in ("arcee", "llama", "granite", "minicpm", "mistral3", "olmo", "smollm3"):
            values = neighbour_pairs(values, heads)
        if config.norm_gain_offset and name.endswith("norm.weight"):
            values = values + np.float32(1)
        kind = (kinds or {}).get(name, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(
            gguf_name(name, config), gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind
        )


def close_gguf(writer: gguf.GGUFWriter) -> None:
    """Write everything to the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """A GGUF file of a model, laid out as llama.cpp's conversion lays it out: F32, but for those of `kinds`."""
    writer = gguf_writer(path, config)
    add_weights(writer, config, weights, kinds)
    close_gguf(writer)
    return path
