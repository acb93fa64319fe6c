"""A bundle of `onnx --task embed` in other commands: those that the guide lists run it, the rest refuse it by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockexport.cli.main import main
from blockexport.runtime.open import open_decoder
from tests.made_once import MadeOnce
from tests.support import shared_path


@pytest.fixture(scope="module")
def embedding(made_once: MadeOnce) -> Path:
    """stories260K with mean pooling and 60 slots, judged; its RoPE table has 512 rows. To read."""

    def make(folder: Path) -> None:
        command = ["onnx", str(shared_path("models/stories260K")), "-o", str(folder), "-M", "60", "--quiet"]
        assert main([*command, "--task", "embed", "--pooling", "mean"]) == 0

    return made_once.path("embedding", make)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cpp BUNDLE -o MADE", "the C++ library runs what gives logits or hidden states"),
        ("aoti BUNDLE", "aoti compiles what gives logits or hidden states"),
        ("trt BUNDLE --backend tensorrt-rtx --compute-capability 8.9", "engines are built of what gives logits"),
        ("triton BUNDLE -o MADE", "its models for Triton take and give text"),
        ("generate BUNDLE Once", "generate needs one made without it"),
        ("serve BUNDLE", "serve needs one made without it"),
        ("redeclare BUNDLE -M 20 -o MADE", "20 is less than the 60 slots that the bundle's golden vectors need"),
    ],
)
def test_what_needs_logits_refuses_it(
    command: str, said: str, embedding: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, made = sorted(embedding.rglob("*")), tmp_path / "made"
    named = {"BUNDLE": str(embedding), "MADE": str(made)}
    assert main([named.get(word, word) for word in command.split()]) == 2
    assert said in capsys.readouterr().err
    assert not made.exists() and sorted(embedding.rglob("*")) == before


def test_a_copy_with_more_slots_gives_the_same(embedding: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert main(["redeclare", str(embedding), "-M", "300", "-o", str(copy), "--quiet"]) == 0
    assert main(["selftest", str(copy), "--quiet"]) == 0
    assert main(["compare", str(copy), "--check", "last-slot", "--quiet"]) == 0
    ids_BS = torch.arange(1, 2 * 50 + 1).reshape(2, 50)
    vectors = []
    for bundle in (embedding, copy):
        decoder = open_decoder(bundle, threads=1)
        decoder.reset(2)
        vectors.append(decoder.prefill(ids_BS, torch.tensor([50, 31])))
    torch.testing.assert_close(*vectors, rtol=0, atol=1e-6)


@pytest.mark.full
def test_its_speed_is_measured(embedding: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", str(embedding), "-T", "9", "-B", "2", "--steps", "3", "--rounds", "1", "--threads", "1"]
    assert main([*command, "--json"]) == 0
    (side,) = json.loads(capsys.readouterr().out)["sides"]
    assert side["notes"] == ["gives embeddings: a step is one of a single token more, and chooses none"]
    assert side["cases"][0]["decode"]["tokens_per_second"] > 0
