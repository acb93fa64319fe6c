"""`blockexport onnx` on models made by transformers: every family's file passes its judgement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockexport.cli.main import main
from blockexport.compare.checks.catalogue import choose_checks
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.runtime.open import open_decoder
from tests.genai_rows import assert_genai_gives_the_same
from tests.transformers_models import FAMILIES, make_model, sampled, save_model, some_ids
from tests.zoo import Exhibit
from tests.zoo_edits_position import rope_everywhere, rope_missing
from tests.zoo_judge import Record, build_cage, judge_exhibit

MORE = (
    "arcee cwm exaone exaone4-full glm glm4 granite4 helium hunyuan-alpha hyperclovax internlm3 iquestcoder jais2 "
    "minicpm vaultgemma"
)
"""Families whose options others have too, in other combinations."""


@pytest.mark.parametrize("family", sampled(FAMILIES.keys() - set(MORE.split())))
def test_the_file_passes_equals_transformers_and_runs_in_genai(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = list(FAMILIES).index(family)
    tied, dtype = number % 2 == 1, (torch.float32, torch.bfloat16)[number % 2]
    theirs = save_model(make_model(family, tied=tied), tmp_path / "model", dtype=dtype, sharded=number % 3 == 0)
    assert main(["onnx", str(tmp_path / "model"), "-o", str(tmp_path / "bundle"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    integers = {"integers"}  # of quantised files
    assert verdicts.keys() == {entry.name for entry in choose_checks()} - integers - {"placement"}
    assert set(verdicts.values()) == {"pass"}
    assert report["positions"]["position"][-1] == 511
    # Rows of unequal length, prefilled with padding and then stepped each at its own position.
    decoder = open_decoder(tmp_path / "bundle")
    ids_BS, lengths_B = some_ids(90), torch.tensor([90, 61])
    decoder.reset(2)
    decoder.prefill(ids_BS, lengths_B)
    steps_BS = some_ids(3, seed=6)
    for i in range(3):
        logits_B1V = decoder.step(steps_BS[:, i : i + 1])
    for row, length in enumerate(lengths_B.tolist()):
        whole = torch.cat([ids_BS[row, :length], steps_BS[row]])[None]
        torch.testing.assert_close(logits_B1V[row, 0], theirs(whole).logits[0, -1], rtol=1e-4, atol=1e-4)
    assert_genai_gives_the_same(tmp_path / "bundle", [ids_BS[0, :6].tolist(), ids_BS[1, :3].tolist()])


SAMPLED_IN_INT4 = ("gpt2", "gpt_neox", "phi", "olmo", "gemma2", "phi3", "cohere", "starcoder2")
"""No gains; norms around the sublayers; tensors taken apart on load; one norm for two sublayers; no gate."""


@pytest.mark.parametrize("family", sampled(SAMPLED_IN_INT4))
def test_the_file_in_int4_passes(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tied = list(FAMILIES).index(family) % 2 == 0
    save_model(make_model(family, tied=tied), tmp_path / "model")
    command = [
        "onnx",
        str(tmp_path / "model"),
        "-o",
        str(tmp_path / "bundle"),
        "-M",
        "90",
        "--quantize",
        "int4",
        "--json",
    ]
    code = main(command)
    report = json.loads(capsys.readouterr().out)["report"]
    assert {check["name"]: check["message"] for check in report["checks"] if check["verdict"] != "pass"} == {}
    assert code == 0


@pytest.mark.parametrize(
    "exhibit",
    [
        Exhibit("rope_everywhere", rope_everywhere, ("k_rope",), layer=1),
        Exhibit("rope_missing", rope_missing, ("q_rope",), layer=0, layers=(0,)),
    ],
    ids=lambda exhibit: exhibit.defect,
)
def test_rope_in_the_wrong_layers_of_a_smollm3_fails_and_is_named(
    exhibit: Exhibit, tmp_path: Path, record_property: Record
) -> None:
    """Layer 0 has RoPE and layer 1 has none; the file has it in both, or in neither."""
    save_model(make_model("smollm3", tied=True), tmp_path / "model")
    cage = build_cage(open_checkpoint(str(tmp_path / "model")), tmp_path / "smollm3")
    judge_exhibit(exhibit, cage, tmp_path, record_property)
