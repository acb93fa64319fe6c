"""`blockexport inspect`: the published figures as printed, the sources it reads, and its errors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockexport.cli.inspect_view import count, flop, options_in_words
from blockexport.cli.main import main
from blockexport.models.config.model_config import RopeScaling
from blockexport.models.families.every_family import PRESETS
from blockexport.models.wording import size
from tests.support import shared_path


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines on stdout, runs of spaces as one."""
    assert main(["inspect", *arguments]) == 0
    return [re.sub(r"\s+", " ", line).strip() for line in capsys.readouterr().out.splitlines()]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


@pytest.mark.parametrize(
    "line",
    [
        "one block 218.1 M 218,112,000",
        "the MLP's share of it 81 % 176,160,768",
        "in 32 blocks 6.98 B 6,979,584,000",
        "in all 8.03 B 8,030,261,248",
        "Operations per generated token, T = 8,192",
        "weights (2 per parameter, no lookup) 15 GFLOP 15,009,849,344",
        "attention, each of 32 layers 134 MFLOP 134,217,728",
        "attention, all layers 4.3 GFLOP 4,294,967,296",
        "KV cache in bf16",
        "per token 128 KiB 131,072 bytes",
        "8,192 tokens 1 GiB 1,073,741,824 bytes",
        "a batch of 32 such 32 GiB 34,359,738,368 bytes",
        "without GQA, 4 times as much 128 GiB 137,438,953,472 bytes",
        "q_proj B, S, 32, 128 16,777,216 33,554,432",
        "scores q·k B, 32, S, 8192 67,108,864",
        "down_proj B, S, 4096 58,720,256 117,440,512",
        "block 218,112,000 570,441,728",
    ],
)
def test_prints_the_figures_of_llama_3_8b(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in printed(capsys, "llama-3-8b")


def test_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("llama-3-8b", "mistral-7b", "qwen3-0.6b", "smollm3-3b"):
        main(["inspect", name])
        assert max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) <= 80


def test_the_json_document_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "llama-3-8b")
    assert found["parameters"]["block"] == 218_112_000
    assert found["parameters"]["total"] == 8_030_261_248
    assert found["flops_per_token"]["attention"] == 4_294_967_296
    assert found["cache_bytes"]["batch"] == 32 * 2**30
    assert sum(operation["parameters"] for operation in found["block"]) == 218_112_000


def test_options_change_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    base = document(capsys, "tiny", "--fp16", "--tokens", "100", "--batch-size", "2")
    wide = document(capsys, "tiny", "--fp32", "--tokens", "200", "--batch-size", "6")
    assert base["cache_bytes"]["per_token"] == 2 * 3 * 2 * 10 * 2
    assert wide["cache_bytes"]["batch"] == 2 * 2 * 3 * base["cache_bytes"]["batch"]
    assert wide["weight_bytes"] == 2 * base["weight_bytes"]
    assert wide["flops_per_token"]["attention"] == 2 * base["flops_per_token"]["attention"]
    assert (base["precision"], document(capsys, "tiny", "--bf16")["precision"]) == ("fp16", "bf16")


def test_layers_with_and_without_a_window_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "qwen2",
        "vocab_size": 331,
        "hidden_size": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    lines = printed(capsys, str(tmp_path))
    assert "attention, each of 2 layers 98 kFLOP 98,304" in lines
    assert "attention, each of 3 layers 6.1 kFLOP 6,144" in lines
    assert "biases on q, k, v · a window of 32 tokens in 3 of 5 layers" in " ".join(lines)


def test_layers_without_rope_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "smollm3-3b")
    assert "in all 3.08 B 3,075,098,624" in lines
    assert "RoPE (theta 5,000,000) in 27 of 36 layers" in " ".join(lines)


def test_the_base_of_layers_with_a_window_is_told() -> None:
    config = PRESETS["gemma-3-1b"].config
    assert "RoPE (theta 1,000,000), theta 10,000 in layers with a window · " in options_in_words(config)
    scaled = replace(config, rope_scaling=RopeScaling("linear", factor=8.0))
    said = "RoPE (theta 1,000,000) with linear scaling by 8, theta 10,000 without scaling in layers with a window · "
    assert said in options_in_words(scaled)


def test_a_folder_and_a_gguf_of_one_model_give_one_description(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shared_path("models/stories260K")
    folder = tmp_path / "modèle sans poids"
    folder.mkdir()
    shutil.copy(source / "config.json", folder)  # no weights beside it
    first = document(capsys, str(folder))
    second = document(capsys, str(source / "stories260K-F32.gguf"))
    del first["model"], second["model"]
    assert first == second
    assert first["parameters"]["total"] == 260_032


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "manifest.json is damaged"),
        (b'{"name": "of a web page"}', "manifest.json has schema version None"),
        (None, "manifest.json cannot be read: it is a link to"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_not_passed_over_in_silence(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(shared_path("models/stories260K/config.json"), tmp_path)
    manifest = tmp_path / "manifest.json"
    if content is None:
        manifest.symlink_to("nowhere")
    else:
        manifest.write_bytes(content)
    assert main(["inspect", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.rstrip().endswith("Counted here is the model of config.json alone")
    assert "260,032" in captured.out


def test_of_a_hub_model_only_the_config_is_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(shared_path("models/stories260K/config.json"), tmp_path)

    def download(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert (repository, revision, allow_patterns) == ("someone/stories", "v2", ["config.json"])
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert document(capsys, "someone/stories@v2")["parameters"]["total"] == 260_032


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-model"], "no-such-model"),
        (["tiny", "--tokens", "257"], "at most 256"),
        (["tiny", "--fp16", "--bf16"], "--fp16 and --bf16"),
        (["tiny", "--batch-size", "0"], "batch-size"),
    ],
)
def test_wrong_use_is_one_message(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert not captured.out


def test_needs_no_torch() -> None:
    code = (
        "import sys; from blockexport.cli.main import main; code = main(['inspect', 'llama-3-8b']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(999), "999"),
        (count(45_440), "45.4 k"),
        (flop(9_949_999), "9.9 MFLOP"),
        (flop(9_960_000), "10 MFLOP"),
        (flop(500), "500 FLOP"),
        (size(0), "0 bytes"),
        (size(1), "1 byte"),
        (size(1023), "1,023 bytes"),
        (size(1_300_000), "1.24 MiB"),
        (size(1024), "1 KiB"),
        (size(16_060_522_496), "14.96 GiB"),
    ],
)
def test_rounding(shown: str, expected: str) -> None:
    assert shown == expected


def test_a_device_and_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "llama-3-8b", "--device", "l4", "--growth")
    assert "NVIDIA L4 at most, in bf16, T = 8,192" in lines
    assert "step, one row, bound by memory 18.7 tok/s 53.6 ms" in lines
    assert "step, 32 rows, if it fitted 194 tok/s 165 ms" in lines
    assert "largest batch at 8,192 tokens 7 rows" in lines
    assert "8,192 4.3 GFLOP 22.2 % 1 GiB 6.7 %" in lines
    assert "the weights do not fit 14.96 GiB 16,060,522,496 bytes" in printed(capsys, "llama-3-8b", "--memory", "15GB")


def test_two_models_are_counted_for_one_context(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "llama-3-8b", "--compare", "smollm2-135m")
    assert "hidden_size 4,096 576 0.14" in lines
    both = document(capsys, "llama-3-8b", "--compare", "smollm2-135m")["models"]
    assert [one["model"] for one in both] == ["llama-3-8b", "smollm2-135m"]
    assert {one["tokens"] for one in both} == {min(8192, both[1]["config"]["max_position_embeddings"])}


def test_a_drawing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "tiny", "--drawing", str(tmp_path / "block.svg"))
    assert (tmp_path / "block.svg").read_text().startswith("<svg ")
    printed(capsys, "tiny", "--drawing", str(tmp_path / "block.svg"))  # its own is replaced


def test_no_drawing_takes_the_place_of_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.svg").write_text("<svg/>")
    assert main(["inspect", "tiny", "--drawing", str(tmp_path / "mine.svg")]) == 2
    assert "would replace a file that is not a drawing of blockexport's" in capsys.readouterr().err
    assert (tmp_path / "mine.svg").read_text() == "<svg/>"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "h300"], "did you mean h200?"),
        (["--memory", "much"], "24GB"),
        (["--compare", "tiny"], "the model itself"),
        (["--drawing", "block.png"], "ends in .svg"),
        (["--drawing", "no/such/folder/block.svg"], "no/such/folder. Make it first"),
    ],
)
def test_wrong_use_of_the_additions(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tiny", *arguments]) == 2
    assert said in capsys.readouterr().err
