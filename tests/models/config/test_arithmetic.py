"""The counting: against the models themselves, torch's own operation counter, and the published figures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.config import arithmetic
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.families.every_family import PRESETS

TINY = PRESETS["tiny"].config
LLAMA_3_8B = PRESETS["llama-3-8b"].config
CONFIGS = {
    "plain": TINY,
    "tied": replace(TINY, tie_word_embeddings=True),
    "biases": replace(TINY, qkv_bias=True, o_bias=True, mlp_bias=True),
    "q, k, v biases": replace(TINY, qkv_bias=True),
    "QK-norm": replace(TINY, qk_norm=True),
    "no GQA": replace(TINY, num_key_value_heads=6),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        model = DecoderModel(config, table_rows=8)
    counted = arithmetic.count_parameters(config)
    assert counted.total == sum(p.numel() for p in model.parameters())
    block = model.model.layers[0]
    sizes = {key: p.numel() for key, p in block.named_parameters()}
    assert counted.block == sum(sizes.values())
    assert counted.mlp == sum(size for key, size in sizes.items() if key.startswith("mlp."))
    assert counted.attention == sum(size for key, size in sizes.items() if key.startswith("self_attn."))
    assert counted.blocks == config.num_hidden_layers * counted.block


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_name_the_parameters_of_the_block(name: str) -> None:
    config = CONFIGS[name]
    with torch.device("meta"):
        block = DecoderModel(config, table_rows=8).model.layers[0]
    by_module: dict[str, int] = {}
    for key, parameter in block.named_parameters():
        module = key.split(".")[-2]
        by_module[module] = by_module.get(module, 0) + parameter.numel()
    operations = arithmetic.block_operations(config, tokens=5)
    assert {o.name: o.parameters for o in operations if o.parameters} == by_module


@pytest.mark.parametrize("name", ["plain", "tied", "no GQA"])
@pytest.mark.parametrize("slots", [7, 200])
def test_operations_are_those_torch_counts(name: str, slots: int) -> None:
    """torch counts matrix products alone, so the gains (two operations each here) come off."""
    config = CONFIGS[name]
    model = DecoderModel(config, table_rows=slots)
    # The fused kernels of a CPU are not counted; the plain one is two matrix products.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(
            torch.zeros(1, 1, dtype=torch.int64),
            torch.full((1, 1), slots - 1),
            empty_cache(config, 1, slots, torch.float32),
        )
    gains = 2 * (2 * config.num_hidden_layers + 1) * config.hidden_size
    expected = arithmetic.weight_flops(config) - gains + arithmetic.all_attention_flops(config, slots)
    assert counter.get_total_flops() == expected


def test_the_block_s_operations_sum_to_the_model_s() -> None:
    config = CONFIGS["biases"]
    one_block = sum(o.flops for o in arithmetic.block_operations(config, tokens=50))
    outside = 2 * (config.hidden_size + config.vocab_size * config.hidden_size)
    total = arithmetic.weight_flops(config) + arithmetic.all_attention_flops(config, 50)
    assert config.num_hidden_layers * one_block + outside == total


def test_shapes_are_those_of_the_modules() -> None:
    """The shape each named module gives, seen by a hook, with B = 2 and S = 3."""
    config = replace(TINY, qk_norm=True)
    model = DecoderModel(config, table_rows=9)
    seen: dict[str, int] = {}

    def hook(module: torch.nn.Module, inputs: object, out: torch.Tensor) -> None:
        seen[names[module]] = out.numel()

    leaves = [(name, m) for name, m in model.model.layers[0].named_modules() if not list(m.children())]
    names = {module: name.split(".")[-1] for name, module in leaves}
    for module in names:
        module.register_forward_hook(hook)
    positions = torch.arange(3).expand(2, 3)
    with torch.no_grad():
        model(torch.zeros(2, 3, dtype=torch.int64), positions, empty_cache(config, 2, 9, torch.float32))
    letters = {"B": 2, "S": 3}
    for operation in arithmetic.block_operations(config, tokens=3):
        if operation.name in seen:
            size = 1
            for dim in operation.shape:
                size *= letters[dim] if isinstance(dim, str) else dim
            assert size == seen.pop(operation.name), operation.name
    assert not seen


def test_a_window_bounds_what_a_layer_sees() -> None:
    config = replace(TINY, sliding_window=20, layer_types=("full_attention", "sliding_attention", "sliding_attention"))
    by_layer = [arithmetic.attention_flops(config, 50, layer) for layer in range(3)]
    assert by_layer == [4 * 50 * 60, 4 * 20 * 60, 4 * 20 * 60]
    assert arithmetic.all_attention_flops(config, 50) == sum(by_layer)
    assert arithmetic.attention_flops(config, 15, layer=1) == 4 * 15 * 60


def test_a_layer_without_rope_has_no_step_for_it() -> None:
    config = replace(TINY, layers_without_rope=(1,))
    turning, still = (arithmetic.block_operations(config, 50, layer) for layer in (0, 1))
    assert [o.name for o in turning if o not in still] == ["RoPE on q", "RoPE on k"]
    assert [o for o in still if o not in turning] == []


def test_parallel_sublayers_are_added_together() -> None:
    def sums(config: ModelConfig) -> list[str]:
        return [step.part for step in arithmetic.block_operations(config, 50) if step.name == "+ residual"]

    assert sums(TINY) == ["attention", "mlp"]
    assert sums(replace(TINY, residual="parallel")) == sums(replace(TINY, residual="parallel_one_norm")) == ["mlp"]


def test_the_cache_is_what_empty_cache_makes() -> None:
    cache = empty_cache(TINY, 3, 40, torch.float16)
    assert arithmetic.cache_bytes(TINY, 2, tokens=40, batch_size=3) == sum(c.numel() * c.itemsize for c in cache)


def test_llama_3_8b() -> None:
    """The figures of the reference configuration, exact."""
    counted = arithmetic.count_parameters(LLAMA_3_8B)
    assert counted.block == 218_112_000
    assert counted.mlp_share == pytest.approx(0.8077, abs=1e-4)
    assert counted.blocks == 6_979_584_000
    assert counted.total == 8_030_261_248
    assert arithmetic.weight_flops(LLAMA_3_8B) == 2 * (8_030_261_248 - 128_256 * 4096)
    assert arithmetic.attention_flops(LLAMA_3_8B, 8192) == 134_217_728
    assert arithmetic.all_attention_flops(LLAMA_3_8B, 8192) == 4_294_967_296
    assert arithmetic.cache_bytes(LLAMA_3_8B, 2) == 131_072
    assert arithmetic.cache_bytes(LLAMA_3_8B, 2, tokens=8192) == 2**30
    assert arithmetic.cache_bytes(LLAMA_3_8B, 2, tokens=8192, batch_size=32) == 32 * 2**30
    assert arithmetic.gqa_saving(LLAMA_3_8B) == 4
    without: ModelConfig = replace(LLAMA_3_8B, num_key_value_heads=32)
    assert arithmetic.cache_bytes(without, 2) == 4 * 131_072


def test_needs_no_torch() -> None:
    modules = "blockexport.models.config.arithmetic, blockexport.models.families.every_family"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
