"""The trained model stories260K, from safetensors and from GGUF, against its golden logits and text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.cli.main import main
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from tests.support import shared_path

SOURCES = {"safetensors": ".", "gguf": "stories260K-F32.gguf"}
Bundles = dict[str, Path]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(shared_path("models/stories260K/golden.json").read_text())
    return data


@pytest.fixture(scope="module")
def bundles(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """A judged bundle of each source, 512 cache slots; that of the GGUF file has a .pt2, too."""
    made = tmp_path_factory.mktemp("stories") / "gguf"
    source = shared_path("models/stories260K") / SOURCES["gguf"]
    assert main(["onnx", str(source), "-o", str(made), "--pt2"]) == 0
    return {"safetensors": judged_stories, "gguf": made}


@pytest.mark.parametrize(
    ("source", "backend"), [("safetensors", "onnxruntime"), ("gguf", "onnxruntime"), ("gguf", "pt2")]
)
def test_golden_logits_and_text(source: str, backend: str, bundles: Bundles, golden: dict[str, Any]) -> None:
    decoder = open_decoder(bundles[source], backend)
    logits_SV = decoder.prefill(torch.tensor([golden["prompt_ids"]]))[0]
    first = torch.tensor(golden["logits_step0_f64"], dtype=torch.float64)
    torch.testing.assert_close(logits_SV[-1].double(), first, rtol=0, atol=1e-4)
    ids = list(golden["prompt_ids"])
    while len(ids) < len(golden["ids"]):
        ids.append(int(logits_SV[-1].argmax()))
        logits_SV = decoder.step(torch.tensor([[ids[-1]]]))[0]
    assert len(ids) == 201 and ids == golden["ids"]
    last = torch.tensor(golden["logits_last_f64"], dtype=torch.float64)
    torch.testing.assert_close(logits_SV[-1].double(), last, rtol=0, atol=1e-4)
    assert BundleTokenizer(bundles[source]).decode(ids[1:]) == golden["text"]


def test_both_sources_give_the_same_logits(bundles: Bundles, golden: dict[str, Any]) -> None:
    ids_BS = torch.tensor([golden["ids"]])
    one, other = (open_decoder(bundles[source]).prefill(ids_BS) for source in SOURCES)
    assert torch.equal(one, other)


@pytest.mark.parametrize("source", SOURCES)
def test_generate_prints_the_golden_text(
    source: str, bundles: Bundles, golden: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(bundles[source]), "", "--max-new-tokens", "200"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == golden["text"].rstrip("\n")


@pytest.mark.parametrize("source", SOURCES)
def test_the_last_of_512_slots_agrees_with_the_whole_sequence(source: str, bundles: Bundles) -> None:
    report = json.loads((bundles[source] / "parity" / "report.json").read_text())
    assert report["verdict"] == "pass"
    assert report["positions"]["position"][-1] == 511
    assert report["positions"]["max"][-1] < 1e-4


def test_the_pt2_passes_its_own_judgement(bundles: Bundles, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(bundles["gguf"]), "--backend", "pt2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["positions"]["position"][-1] == 511


def test_gguf_and_safetensors_are_the_same_weights() -> None:
    folder = shared_path("models/stories260K")
    ours, theirs = open_checkpoint(str(folder)), open_checkpoint(str(folder / SOURCES["gguf"]))
    assert ours.entries.keys() == theirs.entries.keys()
    assert all(torch.equal(ours.read(name), theirs.read(name)) for name in ours.entries)
