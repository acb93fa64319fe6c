"""A tiny ablation whole: checkpoints for transformers, page and record, going on after an interrupt, refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from blockexport.compare.ablation import ablate as ablating
from blockexport.compare.ablation.ablate import Ablation, ablate
from blockexport.compare.ablation.swaps import SWAPS
from blockexport.compare.ablation.training import train
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from tests.support import REPOSITORY

SIZES: dict[str, Any] = {"seeds": 2, "steps": 1, "size": 24, "threads": 1}
TWO = ["layernorm", "learned-positions"]
FOLDERS = [
    f"{name}-seed{seed}"
    for name in ("baseline", "layernorm", "learned-positions-baseline", "learned-positions")
    for seed in (0, 1)
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes((REPOSITORY / "LICENSE").read_bytes()[:3000])
    return path


@pytest.fixture(scope="module")
def every(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """Every swap, trained for a step."""
    return ablate(text, tmp_path_factory.mktemp("ablation") / "every", swaps=list(SWAPS), **SIZES)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["baseline", "norms-around-baseline", *SWAPS])
def test_a_checkpoint_is_one_of_transformers(every: Ablation, name: str) -> None:
    folder = every.folder / f"{name}-seed1"
    theirs: Any
    told: Any
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)  # type: ignore[misc]
    assert not any(told.values()), told
    ours = load_model(open_checkpoint(str(folder)), torch.float32, 128)
    ids = torch.randint(256, (2, 21), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, _ = ours(ids, torch.arange(21).expand(2, 21), empty_cache(ours.config, 2, 30, torch.float32))
        torch.testing.assert_close(found, theirs(ids).logits)
    assert found.std() > 0.05
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("Ein 'Ü' \n  z").input_ids == list("Ein 'Ü' \n  z".encode())
    assert tokenizer.decode(list("Ü  \n".encode())) == "Ü  \n"


def test_the_record_and_the_page_have_every_swap(every: Ablation) -> None:
    record = json.loads((every.folder / "ablation.json").read_text())
    assert [swap["name"] for swap in record["swaps"]] == list(SWAPS)
    assert record == every.to_json()
    for swap in record["swaps"]:
        for side in ("base", "changed"):
            looks = record["curves"][swap[side]["model"]]
            assert swap[side]["bits_per_byte"] == pytest.approx(
                [min(look["held_out"] for look in run) for run in looks], rel=1e-5
            )
    page = (every.folder / "ablation.html").read_text()
    assert page.count("<figure") == len(SWAPS)
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith("data:")


def test_what_was_interrupted_goes_on(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()

    def interrupted(*arguments: Any) -> Any:
        if len(begun) == 3:
            raise KeyboardInterrupt
        begun.append("")
        return train(*arguments)

    monkeypatch.setattr(ablating, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ablate(text, tmp_path / "out", swaps=TWO, **SIZES)
    whole = names_in(tmp_path / "out")
    assert whole == ["ablation.json", "baseline-seed0", "layernorm-seed0", "learned-positions-baseline-seed0"]
    before = (tmp_path / "out" / "layernorm-seed0" / "model.safetensors").stat().st_ino
    monkeypatch.setattr(ablating, "train", train)
    steps = list[tuple[int, int]]()
    gone_on = ablate(
        text, tmp_path / "out", swaps=TWO, **SIZES, progress=lambda label, done, total: steps.append((done, total))
    )
    assert steps == [(done, 8) for done in range(1, 9)]
    assert names_in(tmp_path / "out") == ["ablation.html", "ablation.json", *FOLDERS]
    assert (tmp_path / "out" / "layernorm-seed0" / "model.safetensors").stat().st_ino == before
    at_once = ablate(text, tmp_path / "at-once", swaps=TWO, **SIZES)
    assert gone_on.to_json() == at_once.to_json()


def test_an_interrupt_before_the_first_checkpoint_leaves_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(ablating, "write_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ablate(text, tmp_path / "deep" / "out", swaps=TWO, **SIZES)
    assert names_in(tmp_path) == []


def test_other_folders_and_other_settings_are_refused(every: Ablation, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(every.folder, folder)
    with pytest.raises(UsageError, match=r"copy holds runs with another steps \(1, and not 3\): name another folder"):
        ablate(text, folder, swaps=TWO, **{**SIZES, "steps": 3})
    (folder / "layernorm-seed1" / "training.json").write_text('{"seed": 1}')
    with pytest.raises(UsageError, match=r"training\.json is damaged \('looks'\): remove its folder to train it again"):
        ablate(text, folder, swaps=TWO, **SIZES)
    shutil.rmtree(folder / "layernorm-seed1")
    shutil.copytree(folder / "mqa-seed1", folder / "layernorm-seed1")
    with pytest.raises(UsageError, match="layernorm-seed1 holds another model than the swap layernorm has"):
        ablate(text, folder, swaps=TWO, **SIZES)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "diary.txt").write_text("mine")
    with pytest.raises(UsageError, match="strange holds files that are not an ablation's: name another folder"):
        ablate(text, tmp_path / "strange", swaps=TWO, **SIZES)
    assert names_in(tmp_path / "strange") == ["diary.txt"]


def test_texts_are_read_by_name_and_have_a_least_length(text: Path, tmp_path: Path) -> None:
    for name, count in (("b.txt", 700), ("a.txt", 1300), ("c.md", 5000)):
        (tmp_path / name).write_bytes(name[:1].encode() * count)
    with pytest.raises(UsageError, match="has 2000 bytes of text, and training takes at least 2048: give more"):
        ablating.read_texts(tmp_path)
    (tmp_path / "d.txt").write_bytes(b"d" * 48)
    assert ablating.read_texts(tmp_path) == [b"a" * 1300, b"b" * 700, b"d" * 48]
    with pytest.raises(UsageError, match="no-such-file cannot be read"):
        ablating.read_texts(tmp_path / "no-such-file")
    with pytest.raises(UsageError, match="no swap was named"):
        ablate(text, tmp_path / "out", swaps=[])
    with pytest.raises(UsageError, match="seeds is 1, and has to be a whole number of at least 2"):
        ablate(text, tmp_path / "out", seeds=1)
