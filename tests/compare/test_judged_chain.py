"""A model in stages: judged together it is the model, what is wrong in a stage is found there, and no other bundles are
taken for a chain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport import compare_chain, export_bundle, open_chain, open_decoder
from blockexport.cli.main import main
from blockexport.compare.core.check import Verdict
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.errors import UsageError
from blockexport.models.exit_codes import ExitCode
from tests.small_models import small_config, small_weights, write_folder
from tests.transformers_models import make_model, save_model

SLOTS = 40
CHECKS = ("prefill", "decode", "batch", "serving", "parameters", "types", "constants")
LAYERS = ("0:1", "1:3", "3:4")


def checkpoint(folder: Path, seed: int = 0) -> Path:
    config = small_config("smollm3", num_hidden_layers=4, layers_without_rope=(1,), tie_word_embeddings=True)
    return write_folder(folder, config, small_weights(config, seed))


def stages(source: Path, folder: Path, layers: tuple[str, ...] = LAYERS, **options: Any) -> list[Path]:
    made = [folder / f"part{number}" for number in range(len(layers))]
    for place, some in zip(made, layers, strict=True):
        options = {"max_sequence_length": SLOTS, "compare": False, **options}
        export_bundle(source, place, layers=some, **options)
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def parts(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return stages(source, tmp_path_factory.mktemp("parts"))


def judged(parts: list[Path], *checks: str, **options: Any) -> Report:
    return compare_chain(parts, checks=checks or CHECKS, token_ids=list(range(3, 90)) * 2, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "fp16"}, {"quantize": "int4"}, {"precision": "bf16"}],
    ids=["fp32", "fp16", "int4", "bf16"],
)
def test_the_chain_is_the_model(source: Path, parts: list[Path], tmp_path: Path, options: dict[str, Any]) -> None:
    found = judged(stages(source, tmp_path, **options) if options else parts)
    assert found.verdict is Verdict.PASS, [one.message for one in found.checks]
    assert [one.name for one in found.checks] == list(CHECKS)
    assert "3 stages: part0 has layer 0 of 4; part1 has layers 1 to 2 of 4; part2 has layer 3 of 4" in found.notes[-2:]


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_what_begins_a_model_and_what_differs_by_layer_finds_its_place(tmp_path: Path, family: str) -> None:
    """Windows with a RoPE of their own, and a multiplier of the embedding; learned positions."""
    source = tmp_path / "source"
    save_model(make_model(family, tied=True), source)
    export_bundle(source, tmp_path / "whole", max_sequence_length=SLOTS, compare=False)
    whole, chain = open_decoder(tmp_path / "whole"), open_chain(stages(source, tmp_path, ("0:1", "1:2")))
    ids_BS = torch.arange(3, 25).reshape(2, 11)
    for decoder in (whole, chain):
        decoder.reset(2)
    lengths_B = torch.tensor([11, 4])
    assert torch.allclose(whole.prefill(ids_BS, lengths_B)[0], chain.prefill(ids_BS, lengths_B)[0], atol=1e-4)
    for rows in (range(1, 2), range(2)):
        ours, theirs = (decoder.prefill_rows(rows, ids_BS[: len(rows), :3]) for decoder in (whole, chain))
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert chain.lengths_B.tolist() == whole.lengths_B.tolist() == [14, 10]
    assert torch.allclose(whole.cache(1)[0], chain.cache(1)[0], atol=1e-4)


def spoil(bundle: Path, name: str, factor: int = 0x40) -> None:
    """Change one weight, as a defect of the disk would."""
    stored = read_header(bundle / "model.safetensors")[name]
    with (bundle / "model.safetensors").open("r+b") as file:
        file.seek(stored.offset + 3)  # the upper byte of the first value: its sign and most of its exponent
        last = file.read(1)[0]
        file.seek(stored.offset + 3)
        file.write(bytes([last ^ factor]))


def test_one_wrong_weight_is_found_in_its_stage_and_layer(source: Path, tmp_path: Path) -> None:
    parts = stages(source, tmp_path)
    spoil(parts[1], "model.layers.1.mlp.down_proj.weight")
    found = judged(parts, "decode", "parameters")
    assert found.verdict is Verdict.FAIL
    assert "model.layers.2.mlp.down_proj.weight" in found.checks[1].message
    assert found.explanation is not None
    said = " ".join(found.explanation.sentences)
    assert f"layer 2 is in the stage {parts[1]} (its layer 1)" in said
    assert any("part1/model.safetensors" in note or "model.safetensors is not" in note for note in found.notes)


def refusal(parts: list[Path]) -> str:
    with pytest.raises(UsageError) as raised:
        open_chain(parts)
    return str(raised.value)


def test_no_others_are_taken_for_a_chain(source: Path, parts: list[Path], tmp_path: Path) -> None:
    a, b, c = parts
    assert "no stage has layer 3 of 4: name that stage as well (--layers 3:4)" in refusal([a, b])
    assert "no stage has layers 1 to 2 of 4" in refusal([a, c])
    assert "no stage has layer 0 of 4" in refusal([b, c])
    assert f"give them as {a} {b} {c}" in refusal([b, a, c])
    assert "of which layer 1 is in the stage before it, too" in refusal(
        [*stages(source, tmp_path / "o", ("0:2",)), b, c]
    )
    stranger = stages(checkpoint(tmp_path / "other", seed=1), tmp_path / "s", ("1:3",))
    assert "their source is not the same" in refusal([a, *stranger, c])
    (half,) = stages(source, tmp_path / "h", ("1:3",), precision="fp16")
    assert "their precision is not the same (fp16 and fp32)" in refusal([a, half, c])
    (longer,) = stages(source, tmp_path / "l", ("1:3",), max_sequence_length=SLOTS + 1)
    assert "their max_sequence_length is not the same" in refusal([a, longer, c])
    export_bundle(source, tmp_path / "whole", max_sequence_length=SLOTS, compare=False)
    assert "is a whole model, and no stage of one" in refusal([tmp_path / "whole", b])


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("0:5", "which has 4"),
        ("2:2", "FIRST must be below STOP"),
        ("0:4", "is the whole model"),
        ("-1:2", "is no range"),
    ],
)
def test_layers_that_are_none(source: Path, tmp_path: Path, layers: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        export_bundle(source, tmp_path / "bundle", layers=layers)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "option", [{"headless": True}, {"last_logits_only": True}, {"pt2": True}, {"calibrate": "text", "quantize": "int4"}]
)
def test_options_of_whole_models(source: Path, tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--layers asks for a stage"):
        export_bundle(source, tmp_path / "bundle", layers="0:1", **option)


@pytest.fixture
def blockexport(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        code = main([str(one) for one in arguments])
        return code, " ".join("".join(capsys.readouterr()).split())

    return run


Run = Callable[..., tuple[int, str]]


def test_on_the_command_line(blockexport: Run, source: Path, parts: list[Path], tmp_path: Path) -> None:
    code, said = blockexport("onnx", source, "-o", tmp_path / "p", "--layers", "0:1", "-M", SLOTS)
    assert code == ExitCode.NOT_JUDGED and "a stage is judged with the others" in said
    code, said = blockexport("compare", *parts, "--check", "decode", "--tokens", ",".join(map(str, range(3, 90))))
    assert code == ExitCode.GOOD and said.startswith("PASS")
    assert blockexport("compare", *parts, "--cost")[0] == ExitCode.WRONG_USE
    assert blockexport("verify", parts[1])[0] == ExitCode.GOOD
    assert blockexport("lint", parts[1])[0] == ExitCode.GOOD
    code, said = blockexport("diff", parts[0], parts[2])
    assert code == ExitCode.BAD and "stage" in said


@pytest.mark.parametrize(
    "command",
    [
        ("compare",),
        ("bench",),
        ("serve",),
        ("cpp", "-o", "program"),
        ("aoti",),
        ("selftest",),
    ],
    ids=lambda command: command[0],
)
def test_a_stage_alone_is_refused(
    blockexport: Run, parts: list[Path], command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = blockexport(command[0], parts[1], *command[1:])
    assert code in (ExitCode.WRONG_USE, ExitCode.NOT_JUDGED), said
    assert "stage" in said or "golden" in said
    assert not list(tmp_path.iterdir())
