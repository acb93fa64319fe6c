"""SmolLM2-135M-Instruct from its GGUF: the whole way on a real model, and the same bundle in onnxruntime-genai."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from blockexport.cli.main import main
from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions, run_checks
from blockexport.compare.judged_bundle import bundle_options
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from tests.support import smollm2_gguf

QUESTION = "What is the capital of France?"


def prompt_ids(judged_smollm2: Path) -> list[int]:
    return BundleTokenizer(judged_smollm2).encode_chat([{"role": "user", "content": QUESTION}])


def test_the_report_covers_prefill_decode_and_the_last_slot(judged_smollm2: Path) -> None:
    report = json.loads((judged_smollm2 / "parity" / "report.json").read_text())
    assert report["verdict"] == "pass"
    assert report["tokens"]["prefill"] == 256 and report["tokens"]["decode"] >= 64
    assert report["positions"]["position"][-1] == 511
    greedy = next(check for check in report["checks"] if check["name"] == "greedy")
    assert greedy["verdict"] == "pass"


@pytest.mark.full
def test_one_wrong_weight_is_explained_in_a_minute_of_one_core(judged_smollm2: Path, tmp_path: Path) -> None:
    """In processor time, which a busy machine does not lengthen; measured: 5 s."""
    name, bad = "model.layers.12.mlp.down_proj.weight", tmp_path / "bad"
    shutil.copytree(judged_smollm2, bad)
    stored = read_header(bad / "model.safetensors")[name]
    with (bad / "model.safetensors").open("r+b") as file:
        file.seek(stored.offset + 4 * 1000)
        file.write(np.float32(1.0).tobytes())
    options = bundle_options(bad, asked=JudgeOptions(checks=("prefill", "parameters")))
    judgement = run_checks(open_decoder(bad), open_checkpoint(str(smollm2_gguf())), options)
    assert judgement.report.verdict is Verdict.FAIL
    start = time.process_time()
    report = judgement.explained()
    assert time.process_time() - start < 60
    assert report.explanation is not None and report.explanation.search is not None
    location = report.explanation.search.location
    assert location is not None and (location.layer, location.site) == (12, "down_proj")
    assert report.explanation.cause_sentences[0].startswith(f"likely cause: {name} differs in 1 of 884,736 values")


def test_it_answers(judged_smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(judged_smollm2), QUESTION]) == 0
    assert "Paris" in capsys.readouterr().out


def test_redeclaring_m_leaves_the_logits_unchanged(judged_smollm2: Path) -> None:
    ids_BS = torch.tensor([prompt_ids(judged_smollm2)])
    steps = [int(token) for token in np.arange(5) * 97 + 11]
    outcomes: list[torch.Tensor] = []
    for slots in (64, 512, 2048):
        decoder = open_decoder(judged_smollm2, max_sequence_length=slots)
        outcomes.append(
            torch.cat([decoder.prefill(ids_BS), *(decoder.step(torch.tensor([[t]])) for t in steps)], dim=1)
        )
        assert decoder.cache(0)[0].shape[2] == slots
    for other in outcomes[1:]:
        torch.testing.assert_close(other, outcomes[0], rtol=0, atol=2e-4)


def test_onnxruntime_genai_runs_the_bundle_as_it_is(judged_smollm2: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    prompt, count = BundleTokenizer(judged_smollm2).encode("The history of the city of Paris begins"), 40
    decoder = open_decoder(judged_smollm2)
    logits = decoder.prefill(torch.tensor([prompt]))
    ours: list[int] = []
    for _ in range(count):
        ours.append(int(logits[0, -1].argmax()))
        logits = decoder.step(torch.tensor([[ours[-1]]]))
    params = genai.GeneratorParams(model := genai.Model(str(judged_smollm2)))
    params.set_search_options(max_length=len(prompt) + count, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array(prompt, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    theirs = generator.get_sequence(0)[len(prompt) :].tolist()
    assert len(theirs) == count, "a prompt that is not answered in a word"
    assert theirs == ours
