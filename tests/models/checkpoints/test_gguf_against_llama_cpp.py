"""A GGUF file is read as llama.cpp reads it, or refused: the probabilities of the next token are compared."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.model_config import LAYER_TYPES, ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import GGUF_FAMILIES
from tests.small_models import add_options, add_weights, close_gguf, small_config, small_weights

TOKENS = 90
SIZES: dict[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
PROMPT = [1, *torch.randint(3, TOKENS, (60,), generator=torch.Generator().manual_seed(1)).tolist()]
Add = Callable[[gguf.GGUFWriter], object]


def nothing(writer: gguf.GGUFWriter) -> None:
    pass


def window(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(7)


def window_of_layers(writer: gguf.GGUFWriter) -> None:
    window(writer)
    writer.add_array(f"{writer.arch}.attention.sliding_window_pattern", [True, False])


def window_as_long_as_the_context(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(128)


def linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def yarn(**more: float) -> Add:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(16)
        for name, value in more.items():
            getattr(writer, f"add_{name}")(value)

    return add


GROWING = {"attn_temperature_scale": 0.6, "rope_scaling_yarn_log_mul": 0.5}


def old_linear(writer: gguf.GGUFWriter) -> None:
    writer.add_float32(f"{writer.arch}.rope.scale_linear", 4.0)


def factor_without_a_type(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_factor(4.0)


def old_length(writer: gguf.GGUFWriter) -> None:
    linear(writer)
    writer.add_rope_scaling_orig_ctx_len(16)


def factors(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, 8, dtype=np.float32))


def biases(*names: str) -> Add:
    rows = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64, "ffn_gate": 96, "ffn_up": 96, "ffn_down": 64}

    def add(writer: gguf.GGUFWriter) -> None:
        values = np.random.default_rng(2)
        for layer in range(config_of(writer.arch).num_hidden_layers):
            for name in names:
                bias = values.normal(size=rows[name]).astype(np.float32) * 0.3
                writer.add_tensor(f"blk.{layer}.{name}.bias", bias)

    return add


def capped(writer: gguf.GGUFWriter) -> None:
    writer.add_final_logit_softcapping(5.0)


def scaled_logits(writer: gguf.GGUFWriter) -> None:
    writer.add_logit_scale(0.5)


def another_scale(writer: gguf.GGUFWriter) -> None:
    writer.add_attention_scale(0.125)


def part_of_the_head(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32(f"{writer.arch}.rope.dimension_count", 8)


WITH_LAYER_NORM = ("command-r", "jais2", "gpt2", "gptneox", "phi2", "nemotron", "olmo", "stablelm", "starcoder2")
OF_LLAMAS = (
    "arcee",
    "exaone",
    "ernie4_5",
    "granite",
    "llama",
    "minicpm",
    "phi3",
    "qwen2",
    "qwen3",
    "seed_oss",
    "smollm3",
)
WINDOWLESS = (*OF_LLAMAS, "chatglm", "exaone4", "gemma", "glm4", "hunyuan-dense", "mistral3", "olmo2", *WITH_LAYER_NORM)
EVERY = (*WINDOWLESS, "cohere2", "gemma2", "gemma3")
EQUAL: list[tuple[str, Add]] = [
    *((arch, nothing) for arch in EVERY),
    *((arch, linear) for arch in EVERY),
    ("mistral3", yarn()),
    ("mistral3", yarn(**GROWING)),
    ("mistral3", yarn(**GROWING, rope_scaling_yarn_beta_fast=4.0, rope_scaling_yarn_beta_slow=0.5)),
    ("stablelm, parallel", nothing),
    ("gptneox, serial", nothing),
    ("exaone4, windows", nothing),
    ("llama", old_linear),
    ("qwen2", old_length),
    ("llama", factors),
    ("llama", window_as_long_as_the_context),
    ("llama", biases("attn_q", "attn_k", "attn_v")),
    ("llama", biases("attn_output")),
    ("llama", biases("ffn_gate", "ffn_up", "ffn_down")),
    ("qwen3", biases("attn_q", "attn_k", "attn_v")),
    ("smollm3", biases("attn_q", "attn_k", "attn_v")),
]
REFUSED: list[tuple[str, Add, str]] = [
    *((arch, window, "sliding_window is 7, which llama.cpp ignores") for arch in WINDOWLESS),
    *((arch, window_of_layers, "sliding_window is 7, which llama.cpp ignores") for arch in WINDOWLESS),
    ("llama", factor_without_a_type, "rope.scaling.factor is 4.0"),
    ("mistral3", yarn(rope_scaling_yarn_ext_factor=0.5), "yarn_ext_factor is 0.5"),
    ("mistral3", yarn(rope_scaling_yarn_attn_factor=1.2), "yarn_attn_factor is 1.2"),
    ("mistral3", yarn(attn_temperature_length=8), "attention.temperature_length"),
    ("qwen2", yarn(), "'yarn' is not implemented for GGUF files of qwen2"),
    ("qwen2", factors, "refuses in qwen2"),
    ("qwen3", factors, "refuses in qwen3"),
    ("smollm3", factors, "refuses in smollm3"),
    ("qwen2", biases("attn_output"), "bias"),
    ("qwen3", biases("attn_output"), "bias"),
    ("qwen2", biases("ffn_gate", "ffn_up", "ffn_down"), "bias"),
    ("qwen3", biases("ffn_down"), "bias"),
    ("smollm3", biases("attn_output"), "bias"),
    ("smollm3", biases("ffn_gate", "ffn_up", "ffn_down"), "bias"),
    ("llama", capped, "final_logit_softcapping"),
    ("llama", scaled_logits, "logit_scale"),
    ("llama", another_scale, "attention.scale"),
    ("llama", part_of_the_head, "dimension_count"),
]


_EVERY_BIAS = dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True)
_NEOX: dict[str, Any] = {
    **_EVERY_BIAS,
    "num_key_value_heads": 4,
    "rotary_dim": 6,
    "hidden_act": "gelu_pytorch_tanh",
}

FAMILY_OF = {
    "phi2": "phi",
    "gptneox": "gpt_neox",
    "command-r": "cohere",
    "gemma3": "gemma3_text",
    "chatglm": "glm",
    "hunyuan-dense": "hunyuan_v1_dense",
    "mistral3": "ministral3",
}


def config_of(arch: str) -> ModelConfig:
    options: dict[str, dict[str, Any]] = {
        "smollm3": {"num_hidden_layers": 9, "layers_without_rope": (3, 7)},
        "stablelm": {"rotary_dim": 6},
        "gptneox": {**_NEOX, "residual": "parallel"},
        "gptneox, serial": _NEOX,
        "phi2": _NEOX,
        "gpt2": {
            **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "tie_word_embeddings", "learned_positions"), True),
            "num_key_value_heads": 4,
            "hidden_act": "gelu_pytorch_tanh",
        },
        "starcoder2": {
            **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "tie_word_embeddings"), True),
            "hidden_act": "gelu_pytorch_tanh",
        },
        "nemotron": {"rotary_dim": 6, "hidden_act": "relu2"},
        "arcee": {"hidden_act": "relu2"},
        "jais2": {**_EVERY_BIAS, "hidden_act": "relu2"},
        "chatglm": {"rotary_dim": 8, "qkv_bias": True},
        "glm4": {"rotary_dim": 8, "qkv_bias": True},
        "cohere2": {
            "num_hidden_layers": 5,
            "logits_multiplier": 1.5,
            "tie_word_embeddings": True,
            "sliding_window": 7,
            "layer_types": tuple(LAYER_TYPES[layer != 3] for layer in range(5)),
            "layers_without_rope": (3,),
        },
        "exaone4": {"qk_norm": True},
        "hunyuan-dense": {"qk_norm": True},
        "exaone4, windows": {
            "qk_norm": True,
            "num_hidden_layers": 64,
            "sliding_window": 7,
            "layer_types": tuple(LAYER_TYPES[layer % 4 != 3] for layer in range(64)),
            "layers_without_rope": tuple(range(3, 64, 4)),
        },
        "command-r": {"logits_multiplier": 1.5, "tie_word_embeddings": True},
        "stablelm, parallel": {"rotary_dim": 6, "residual": "parallel_one_norm", "qkv_bias": True},
        "gemma": {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True},
        "gemma2": {
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "sliding_window": 7,
            "layer_types": ("sliding_attention", "full_attention"),
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
        "gemma3": {
            "num_hidden_layers": 7,
            "hidden_act": "gelu_pytorch_tanh",
            "qk_norm": True,
            "tie_word_embeddings": True,
            "sliding_window": 7,
            "layer_types": tuple(LAYER_TYPES[layer != 5] for layer in range(7)),
            "rope_theta": 300.0,
            "sliding_rope_theta": 10_000.0,
        },
        "minicpm": {"embedding_multiplier": 12.0, "residual_multiplier": 0.4, "logits_multiplier": 2.0},
        "granite": {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "query_scale": 0.0625,
            "logits_multiplier": 2.0,
        },
    }
    model_type = arch.partition(",")[0]
    return small_config(FAMILY_OF.get(model_type, model_type), **{**SIZES, **options.get(arch, {})})


def write(path: Path, arch: str, add: Add) -> Path:
    """A model of an architecture with a vocabulary that llama.cpp loads, and what `add` adds."""
    config = config_of(arch)
    writer = gguf.GGUFWriter(path, arch.partition(",")[0])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_theta)
    (writer.add_layer_norm_rms_eps if config.norm == "rms_norm" else writer.add_layer_norm_eps)(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.turned_dims)
    if config.model_type in ("cohere", "cohere2"):
        writer.add_logit_scale(config.logits_multiplier)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(TOKENS - 3))])
    writer.add_token_scores([0.0] * TOKENS)
    writer.add_token_types([2, 3, 3, *[1] * (TOKENS - 3)])
    add_options(writer, config)
    add_weights(writer, config, small_weights(config))
    add(writer)
    close_gguf(writer)
    return path


def llama_cpp(path: Path) -> np.ndarray[Any, Any]:
    """llama.cpp's log probabilities [V] of the token after `PROMPT`."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp (xllamacpp) is not installed: nothing to compare")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = params.n_batch = 128
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    body = {"prompt": PROMPT, "n_predict": 1, "n_probs": TOKENS, "cache_prompt": False, "samplers": []}
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        chances = json.load(reply)["completion_probabilities"][0]["top_logprobs"]
    found = np.full(TOKENS, np.nan)
    for chance in chances:
        found[chance["id"]] = chance["logprob"]
    return found


def eager(path: Path) -> np.ndarray[Any, Any]:
    """The same, of the checkpoint as this project reads it."""
    checkpoint = open_checkpoint(str(path))
    model = load_model(checkpoint, torch.float32, 128)
    past = empty_cache(checkpoint.config, 1, 128, torch.float32)
    logits = model(torch.tensor([PROMPT]), torch.arange(len(PROMPT))[None], past)[0]
    found: np.ndarray[Any, Any] = logits[0, -1].log_softmax(-1).numpy()
    return found


@pytest.mark.parametrize(("arch", "add"), EQUAL)
def test_the_probabilities_are_llama_cpps(arch: str, add: Add, tmp_path: Path) -> None:
    """Within the rounding of llama.cpp's half-precision cache; a window of 7 moves them by 7."""
    path = write(tmp_path / "model.gguf", arch, add)
    found, expected = eager(path), llama_cpp(path)
    assert expected.std() > 1, "a model whose logits are all alike proves nothing"
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_no_architecture_is_without_a_file_here() -> None:
    assert set(EVERY) == GGUF_FAMILIES.keys()


@pytest.mark.parametrize(("arch", "add", "said"), REFUSED)
def test_what_llama_cpp_ignores_or_we_do_not_compute_is_refused(arch: str, add: Add, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        open_checkpoint(str(write(tmp_path / "model.gguf", arch, add)))
