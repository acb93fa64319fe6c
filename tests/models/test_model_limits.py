"""What a device allows and a memory holds, against sums by hand."""

from __future__ import annotations

import math

import pytest

from blockexport.models.devices import DEVICES, read_device, read_memory
from blockexport.models.errors import UsageError
from blockexport.models.model_cost import inspect_model
from blockexport.models.precision import Precision

HEAD = 128_256 * 4_096  # of Llama-3-8B, of 32 blocks with 218,112,000 parameters
READ = 2 * (32 * 218_112_000 + 4_096 + HEAD)  # bytes of its weights in bf16, without the embedding
CACHE = 131_072  # bytes per token
ATTENTION = 4 * 32 * 128 * 32  # operations per token and slot, in all layers


def test_a_step_that_reads_longer_than_it_computes() -> None:
    device = inspect_model("llama-3-8b", device="h200", tokens=8_192)["device"]
    assert device["step"]["bytes"] == READ + 8_192 * CACHE == 16_083_591_168
    assert device["step"]["flops"] == READ + 8_192 * ATTENTION  # two operations a parameter, two bytes a parameter
    assert device["step"]["bound_by"] == "memory"
    assert math.isclose(device["step"]["tokens_per_second"], 298.4408, rel_tol=1e-6)  # 4.8e12 / 16,083,591,168


def test_a_batch_reads_the_weights_once() -> None:
    device = inspect_model("llama-3-8b", device="h200", tokens=8_192, batch_size=32)["device"]
    assert device["batched_step"]["bytes"] == READ + 32 * 8_192 * CACHE == 49_369_587_712
    assert math.isclose(device["batched_step"]["tokens_per_second"], 32 * 4.8e12 / 49_369_587_712, rel_tol=1e-12)


def test_a_prompt_that_computes_longer_than_it_reads() -> None:
    prompt = inspect_model("llama-3-8b", device="l4", tokens=1_000)["device"]["prompt"]
    flops = 1_000 * (READ - 2 * HEAD) + 2 * HEAD + ATTENTION * 1_000 * 1_001 // 2  # logits of the last token alone
    assert (prompt["flops"], prompt["bytes"]) == (flops, READ + 1_000 * CACHE)
    assert prompt["bound_by"] == "arithmetic"
    assert math.isclose(prompt["tokens_per_second"], 1_000 * 121e12 / flops, rel_tol=1e-12)


def test_a_type_has_its_own_peak_and_its_own_bytes() -> None:
    device = inspect_model("llama-3-8b", device="h200", tokens=64, precision="fp32")["device"]
    assert device["matrix_peak"] == 67e12 and device["step"]["bytes"] == 2 * (READ + 64 * CACHE)


def test_what_fits_beside_the_weights() -> None:
    fits = inspect_model("llama-3-8b", device="l4", tokens=3_000)["fits"]
    left = 24_000_000_000 - 16_060_522_496
    assert fits["left_bytes"] == left == 7_939_477_504
    assert fits["cache_slots"] == left // CACHE == 60_573
    assert fits["longest_context"] == 8_192, "the model has no more positions"
    batches = {one["tokens"]: one["batch_size"] for one in fits["batches"]}
    assert batches == {1_024: 59, 2_048: 29, 3_000: 20, 4_096: 14, 8_192: 7}


def test_weights_that_do_not_fit() -> None:
    fits = inspect_model("llama-3-8b", memory="16GB")["fits"]
    assert fits["left_bytes"] == 16_000_000_000 - 16_060_522_496 and fits["longest_context"] == 0
    assert {one["batch_size"] for one in fits["batches"]} == {0}


def test_how_attention_grows() -> None:
    growth = {row["tokens"]: row for row in inspect_model("llama-3-8b", tokens=8_192)["growth"]}
    assert list(growth) == [1_024, 2_048, 4_096, 8_192]
    for tokens, row in growth.items():
        assert (row["attention_flops"], row["cache_bytes_read"]) == (tokens * ATTENTION, tokens * CACHE)
        assert math.isclose(row["attention_share"], tokens * ATTENTION / (tokens * ATTENTION + READ))
        assert math.isclose(row["cache_share"], tokens * CACHE / (tokens * CACHE + READ))


def test_a_window_ends_the_growth() -> None:
    growth = {row["tokens"]: row for row in inspect_model("mistral-7b", tokens=8_192)["growth"]}
    assert growth[8_192]["attention_flops"] == growth[4_096]["attention_flops"]
    assert growth[8_192]["cache_bytes_read"] == growth[4_096]["cache_bytes_read"]


def test_a_device_of_numbers() -> None:
    device = read_device("300, 121,24")
    assert (device.memory, device.bandwidth, device.half_peak) == (24e9, 300e9, 121e12)
    own = inspect_model("tiny", device="300,121,24", precision="fp16")["device"]["step"]
    assert own == inspect_model("tiny", device="L4", precision="fp16")["device"]["step"]


def test_every_device_is_of_this_world() -> None:
    for name, device in DEVICES.items():
        assert 1e11 < device.bandwidth < 1e13 and 8e9 <= device.memory < 1e12, name
        assert 1 < device.half_peak / device.single_peak < 20, name
        assert device.speed(Precision.BF16) != device.speed(Precision.FP32)


@pytest.mark.parametrize("text", ["h300", "300,121", "300,121,0", "a,b,c", "1,2,3,4", "", "-1,2,3"])
def test_no_device(text: str) -> None:
    with pytest.raises(UsageError, match="give one of h200, h100") as caught:
        read_device(text)
    assert ("did you mean h200?" in str(caught.value)) == (text == "h300")


@pytest.mark.parametrize(
    ("text", "count"), [("24", 24e9), ("24GB", 24e9), ("22.5 GiB", 22.5 * 2**30), ("512MiB", 2**29), ("2TB", 2e12)]
)
def test_sizes(text: str, count: float) -> None:
    assert read_memory(text) == count


@pytest.mark.parametrize("text", ["", "GB", "0GB", "24 gigs", "-3GB", "1e9"])
def test_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="24GB"):
        read_memory(text)
