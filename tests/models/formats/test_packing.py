"""`quantization_config`: what is read of three tools, and that nothing in it is skipped in silence."""

from __future__ import annotations

from typing import Any

import pytest

from blockexport.models.errors import UsageError
from blockexport.models.formats.packing import PackedLayout, Packing, read_packing

UP, DOWN, QUERY = "model.layers.3.mlp.up_proj", "model.layers.3.mlp.down_proj", "model.layers.3.self_attn.q_proj"
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"}
ARGUMENTS: dict[str, Any] = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 32,
    "dynamic": False,
    "actorder": "weight",
    "block_structure": None,
    "observer": "mse",
    "observer_kwargs": {},
    "zp_dtype": None,
}


def tensors(*groups: tuple[list[str], dict[str, Any]], **others: Any) -> dict[str, Any]:
    """A config of compressed-tensors; each group has targets, and differs from `ARGUMENTS` in what is given."""
    named = {
        f"group_{i}": {"targets": targets, "weights": {**ARGUMENTS, **weights}, "input_activations": None}
        for i, (targets, weights) in enumerate(groups or [(["Linear"], {})])
    }
    content = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": named}
    return {**content, "quantization_status": "compressed", "ignore": ["lm_head"], **others}


def packing(content: dict[str, Any], module: str = UP) -> Packing | None:
    model = read_packing({"quantization_config": content}, "config.json")
    assert model is not None
    return model.packing_of(module)


def test_a_config_without_it_says_that_nothing_is_packed() -> None:
    assert read_packing({}, "x") is None and read_packing({"quantization_config": None}, "x") is None


def test_what_three_tools_say_is_read() -> None:
    assert packing(GPTQ) == Packing(PackedLayout.GPTQ, 4, 128, True, 1, ordered=True)
    later = {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False, "format": "gptq_v2", "lm_head": False}
    assert packing(later) == Packing(PackedLayout.GPTQ, 8, None, False, 0)
    assert packing(AWQ) == Packing(PackedLayout.AWQ, 4, 64, False)
    assert packing(tensors()) == Packing(PackedLayout.COMPRESSED_TENSORS, 4, 32)
    channels = {"strategy": "channel", "group_size": None, "num_bits": 8, "actorder": "group", "symmetric": False}
    wanted = Packing(PackedLayout.COMPRESSED_TENSORS, 8, None, False, ordered=True)
    assert packing(tensors((["Linear"], channels))) == wanted


def test_a_module_is_of_the_group_that_means_it_most_closely() -> None:
    groups = [(["Linear"], {"group_size": 128}), (["re:.*mlp\\.(up|down)_proj$"], {"group_size": 64}), ([DOWN], {})]
    content = tensors(*groups, ignore=["re:.*layers.2.", "lm_head"])
    found = {module: packing(content, module) for module in (QUERY, UP, DOWN)}
    assert [one.group_size for one in found.values() if one is not None] == [128, 64, 32]
    assert packing(content, "lm_head") is None and packing(content, UP.replace(".3.", ".2.")) is None
    assert packing(content, "model.embed_tokens") is None  # no Linear
    assert packing(tensors(([UP], {})), DOWN) is None


REFUSED: list[tuple[Any, list[str]]] = [
    ("gptq", ["quantization_config is", "an object"]),
    ({"bits": 4}, ["'quant_method' is missing"]),
    ({"quant_method": "bitsandbytes"}, ["'bitsandbytes' is not implemented", "compressed-tensors, gptq, awq", "GGUF"]),
    # GPTQ
    (GPTQ | {"bits": 3}, ["bits is 3", "4 or 8"]),
    (GPTQ | {"group_size": 0}, ["group_size is 0"]),
    (GPTQ | {"checkpoint_format": "marlin"}, ["checkpoint_format is 'marlin'", "gptq and gptq_v2"]),
    (GPTQ | {"checkpoint_format": "gptq", "format": "gptq_v2"}, ["checkpoint_format and format contradict"]),
    (GPTQ | {"is_marlin_format": True}, ["is_marlin_format is true"]),
    (GPTQ | {"pack_dtype": "int16"}, ["pack_dtype"]),
    (GPTQ | {"rotation": "hadamard"}, ["rotation", "activations"]),
    (GPTQ | {"dynamic": {"-:lm_head": {}, "+:.*down.*": {"bits": 8}}}, ["dynamic", "+:.*down.*"]),
    (GPTQ | {"dynamic": 3}, ["dynamic is 3"]),
    (GPTQ | {"sym": "yes"}, ["sym is"]),
    (GPTQ | {"planar": True}, ["unknown: planar = true", "none is skipped"]),
    # AWQ
    (AWQ | {"version": "gemv"}, ["version is 'gemv'", "gemm"]),
    (AWQ | {"bits": 8}, ["bits is 8"]),
    (AWQ | {"zero_point": False}, ["zero_point is false"]),
    (AWQ | {"backend": "llm-awq"}, ["backend is llm-awq"]),
    # compressed-tensors
    (tensors(format="int-quantized"), ["format is 'int-quantized'", "pack-quantized"]),
    (tensors(format=None), ["format"]),
    (tensors(quantization_status="calibration"), ["quantization_status"]),
    (tensors(kv_cache_scheme={"num_bits": 8}), ["kv_cache_scheme"]),
    (tensors(sparsity_config={"format": "sparse-24-bitmask"}), ["sparsity_config"]),
    (tensors(transform_config={"R1": {}}), ["transform_config", "rotated"]),
    (tensors(config_groups={}), ["config_groups is {}"]),
    (tensors(config_groups={"group_0": []}), ["group_0 is []"]),
    (tensors(config_groups={"group_0": {"targets": ["Linear"]}}), ["group_0: weights is null"]),
    (
        tensors(config_groups={"a": {"targets": ["Linear"], "weights": ARGUMENTS, "input_activations": ARGUMENTS}}),
        ["a: input_activations", "activations would be quantised"],
    ),
    (tensors(("Linear", {})), ["targets is", "a list of names"]),  # type: ignore[arg-type]
    (tensors((["Linear"], {"num_bits": 2})), ["num_bits is 2"]),
    (tensors((["Linear"], {"type": "float"})), ['type is "float"']),
    (tensors((["Linear"], {"strategy": "tensor", "group_size": None})), ["strategy is 'tensor'"]),
    (tensors((["Linear"], {"group_size": None})), ["do not agree"]),
    (tensors((["Linear"], {"dynamic": True})), ["dynamic is true"]),
    (tensors((["Linear"], {"actorder": "odd"})), ['actorder is "odd"']),
    (tensors((["Linear"], {"zeal": 1})), ["weights: unknown: zeal = 1"]),
    (tensors(surprise=1), ["unknown: surprise = 1"]),
    (tensors(ignore="lm_head"), ["ignore is", "a list of names"]),
    (tensors((["re:(.*)*x"], {})), ["is not run", "very long"]),
    (tensors((["re:" + ".*" * 5], {})), ["is not run"]),
    (tensors((["re:(["], {})), ["which is none"]),
    (tensors(ignore=[f"re:{i}" for i in range(101)]), ["101 regular expressions; at most 100"]),
]


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_not_implemented_or_not_understood_is_refused(content: Any, said: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        read_packing({"quantization_config": content}, "config.json")
    assert str(caught.value).startswith("config.json: quantization_config")
    for part in said:
        assert part in str(caught.value)
