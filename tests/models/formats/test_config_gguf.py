"""GGUF metadata into a config: real files, the kinds of scaling and windows, and what must be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockexport.models.checkpoints.gguf_header import read_gguf
from blockexport.models.config.model_config import ModelConfig, RopeScaling
from blockexport.models.errors import UsageError
from blockexport.models.formats.config_gguf import config_from_gguf
from blockexport.models.formats.config_hf import read_hf_config
from tests.support import shared_path, smollm2_gguf

NAMES = ["token_embd.weight", "output.weight", "output_norm.weight", "blk.0.attn_q.weight"]


def metadata(arch: str = "llama", **changes: Any) -> dict[str, Any]:
    """Metadata of a small model; a change names a key below the architecture, with `__` for a dot; None removes it."""
    below: dict[str, Any] = {
        "block_count": 3,
        "context_length": 512,
        "embedding_length": 48,
        "feed_forward_length": 88,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
        "rope.freq_base": 500000.0,
        "vocab_size": 5,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return {
        "general.architecture": arch,
        "general.name": "small",
        "general.file_type": 1,
        "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"{arch}.{key}": value for key, value in below.items() if value is not None},
    }


def read(data: dict[str, Any], factors: tuple[float, ...] | None = None, names: list[str] = NAMES) -> ModelConfig:
    return config_from_gguf(data, factors, names, "small.gguf")


def read_file(path: Path) -> ModelConfig:
    fields, tensors = read_gguf(path)
    return config_from_gguf(fields, None, [tensor.name for tensor in tensors], str(path))


def test_the_same_model_in_both_formats_has_one_config() -> None:
    folder = shared_path("models/stories260K")
    assert read_file(folder / "stories260K-F32.gguf") == read_hf_config(folder)


def test_reads_smollm2() -> None:
    config = read_file(smollm2_gguf())
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.rope_theta, config.rms_norm_eps, config.vocab_size) == (100_000.0, 1e-5, 49_152)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)


def test_every_field_lands_where_it_belongs() -> None:
    assert read(metadata()) == ModelConfig(
        model_type="llama",
        vocab_size=5,
        hidden_size=48,
        intermediate_size=88,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        dtype="float16",
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_optional_keys_have_the_defaults_of_the_format() -> None:
    data = metadata(attention__head_count_kv=None, rope__freq_base=None, vocab_size=None)
    del data["general.file_type"]
    config = read(data)
    assert (config.num_key_value_heads, config.rope_theta, config.vocab_size) == (6, 10_000.0, 5)
    assert config.dtype == "float32"


def test_head_width_biases_norms_and_head_are_seen() -> None:
    names = ["blk.2.attn_v.bias", "blk.0.attn_output.bias", "blk.1.ffn_up.bias"]
    data = metadata(attention__key_length=10, attention__value_length=10, rope__dimension_count=10)
    config = read(data, names=names)
    assert config.head_dim == 10
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (True, True, True)
    assert config.tie_word_embeddings
    assert not config.qk_norm and read(metadata("qwen3")).qk_norm
    plain = read(metadata("qwen2"))
    assert (plain.qkv_bias, plain.o_bias, plain.mlp_bias, plain.qk_norm) == (False, False, False, False)
    assert not plain.tie_word_embeddings


def test_equal_numbers_for_each_layer_are_one_number() -> None:
    assert read(metadata(feed_forward_length=[88, 88, 88])).intermediate_size == 88


@pytest.mark.parametrize(
    ("changes", "factors", "scaling"),
    [
        ({}, None, None),
        ({"rope__scaling__type": "none"}, None, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, None, RopeScaling("linear", factor=4.0)),
        ({"rope__scale_linear": 2.0}, None, RopeScaling("linear", factor=2.0)),
        ({"rope__scale_linear": 1.0}, None, None),
        ({}, (1.0, 2.0, 4.0, 8.0), RopeScaling("freq_factors", freq_factors=(1.0, 2.0, 4.0, 8.0))),
    ],
)
def test_rope_scaling(changes: dict[str, Any], factors: tuple[float, ...] | None, scaling: RopeScaling | None) -> None:
    assert read(metadata(**changes), factors).rope_scaling == scaling


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_window_that_no_reader_would_apply_is_no_window(arch: str) -> None:
    assert read(metadata(arch, attention__sliding_window=0)) == read(metadata(arch))
    assert read(metadata(arch, attention__sliding_window=512)) == read(metadata(arch)), "as long as the context"
    unused = metadata(arch, attention__sliding_window=17, attention__sliding_window_pattern=[False] * 3)
    assert read(unused) == read(metadata(arch))


def test_all_the_ends_of_a_chat_end_it() -> None:
    data = {**metadata(), "tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eom_token_id": 2}
    assert read(data).eos_token_ids == (2, 4)


def test_values_that_say_nothing_are_accepted() -> None:
    changes: dict[str, Any] = {
        "expert_count": 0,
        "attention__causal": True,
        "rope__scaling__attn_factor": 1.0,
        "logit_scale": 0.0,
    }
    data = metadata(**changes, attention__scale=0.3535533845424652, rope__scaling__original_context_length=256)
    assert read(data) == read(metadata())


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    (metadata("mamba"), ["'mamba'", "llama, ", "smollm3"]),
    (metadata(rope__scaling__type="yarn", rope__scaling__factor=4.0), ["'yarn'", "none, linear"]),
    (metadata(rope__scaling__type="none", rope__scaling__factor=4.0), ["factor is 4.0", 'type is "none"; set']),
    (metadata(rope__scaling__type="linear", rope__scaling__factor=4.0, rope__scale_linear=2.0), ["4.0", "2.0"]),
    (metadata(expert_count=8), ["llama.expert_count", "8"]),
    (metadata(attention__causal=False), ["attention.causal", "false"]),
    (metadata(attention__scale=0.5), ["attention.scale", "0.5"]),
    (metadata(attention__key_length=8, attention__value_length=16), ["8", "16"]),
    (metadata(attention__key_length=10), ["key_length", "state both"]),
    (metadata(rope__dimension_count=4), ["dimension_count", "4", "8"]),
    (metadata(attention__head_count_kv=[2, 1, 2]), ["differs between layers", "[2, 1, 2]"]),
    (metadata(attention__head_count_kv=4), ["6", "4"]),
    (metadata(embedding_length=50), ["50", "6"]),
    (metadata(embedding_length=54), ["attention.key_length is 9 (hidden size / heads", "does not state it"]),
    (metadata(rope__scaling__factor=4.0), ["factor is 4.0", 'type is "none" (the default, as the file does not']),
    (metadata(vocab_size=6), ["6", "5"]),
    (metadata(block_count=4_000_000_000), ["block_count", "10000"]),
    (metadata(context_length=None), ["llama.context_length"]),
    (metadata(attention__layer_norm_rms_epsilon=float("nan")), ["NaN"]),
    (metadata(attention__sliding_window=17), ["sliding_window is 17", "llama.cpp ignores", "architecture llama"]),
    (metadata("qwen2", attention__sliding_window=17), ["sliding_window is 17", "llama.cpp ignores"]),
    (metadata("qwen3", attention__sliding_window=511), ["sliding_window is 511", "llama.cpp ignores"]),
    (metadata(attention__sliding_window=17, attention__sliding_window_pattern=[True, False]), ["llama.cpp ignores"]),
    (metadata("qwen2", attention__sliding_window=17, attention__sliding_window_pattern=2), ["llama.cpp ignores"]),
    (metadata(attention__new_trick=3), ["llama.attention.new_trick = 3"]),
    ({**metadata(), "qwen2.block_count": 3}, ["qwen2.block_count = 3"]),
    ({**metadata(), "clip.vision.block_count": 3}, ["clip.vision.block_count"]),
    ({**metadata(), "split.count": 2, "split.no": 0}, ["2 parts", "merge"]),
    ({"general.name": "x"}, ["general.architecture"]),
    ({**metadata(), "tokenizer.ggml.tokens": 5}, ["tokenizer.ggml.tokens is 5", "a list of texts"]),
    ({**metadata(), "tokenizer.ggml.tokens": [1.5] * 5}, ["tokenizer.ggml.tokens is [1.5", "a list of texts"]),
]


@pytest.mark.parametrize(("data", "said"), REFUSED)
def test_refuses_by_name(data: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        read(data)
    message = str(caught.value)
    assert message.startswith("small.gguf: ")
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("factors", "changes", "said"),
    [
        ((1.0, 2.0, 4.0, 8.0), {"arch": "qwen2"}, "refuses in qwen2"),
        ((1.0, 2.0), {}, "has 2 values"),
        ((1.0, 2.0, 0.0, 8.0), {}, "above zero"),
        ((1.0, 2.0, float("nan"), 8.0), {}, "finite"),
        ((1.0, 2.0, 4.0, 8.0), {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}, "both at once"),
    ],
)
def test_refuses_frequency_factors(factors: tuple[float, ...], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(metadata(**changes), factors)
