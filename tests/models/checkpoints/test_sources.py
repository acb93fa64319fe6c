"""What MODEL may be, and what is said when it is something else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from blockexport.cli.main import main
from blockexport.models.checkpoints.sources import open_checkpoint, open_config
from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import PRESETS
from tests.small_models import small_config, small_weights, write_folder, write_gguf


def refused(model: str, *fragments: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_checkpoint(model)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_a_folder_and_a_gguf_file_give_the_same_tensors(tmp_path: Path) -> None:
    config = small_config()
    weights = small_weights(config)
    folder = open_checkpoint(str(write_folder(tmp_path / "a b é", config, weights)))
    file = open_checkpoint(str(write_gguf(tmp_path / "c d ü.gguf", config, weights)))
    assert (folder.source.kind, file.source.kind) == ("safetensors", "gguf")
    for checkpoint in (folder, file):
        assert Path(checkpoint.source.reference).is_absolute()
        assert open_checkpoint(checkpoint.source.reference).entries == checkpoint.entries
        assert all(torch.equal(checkpoint.read(name), saved) for name, saved in weights.items())


def test_gguf_is_known_by_its_bytes_too(tmp_path: Path) -> None:
    config = small_config()
    write_gguf(tmp_path / "model.gguf", config, small_weights(config)).rename(tmp_path / "blob")
    assert open_checkpoint("blob").source.kind == "gguf"


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_is_random_weights(preset: str) -> None:
    checkpoint = open_checkpoint(preset, seed=3)
    assert checkpoint.config == PRESETS[preset].config
    assert (checkpoint.source.kind, checkpoint.source.reference, checkpoint.source.seed) == ("random", preset, 3)
    assert checkpoint.source.files == ()


def test_a_folder_comes_before_a_preset_of_its_name(tmp_path: Path) -> None:
    config = small_config()
    write_folder(tmp_path / "tiny", config, small_weights(config))
    assert open_checkpoint("tiny").source.kind == "safetensors"


@pytest.mark.parametrize("preset", ["tiny", "smollm2-135m", "llama-3-8b"])
def test_a_path_that_hides_a_preset_is_noted(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert open_checkpoint("tiny").notes == ()
    config = small_config()
    write_folder(tmp_path / preset, config, small_weights(config))
    noted = f"{preset} is the path {tmp_path / preset}, and not the preset"
    assert noted in " ".join(open_checkpoint(preset).notes)
    assert open_checkpoint(f"./{preset}").notes == (), "a path as plain as that is meant"
    for command in (["onnx", preset, "-o", "out", "--no-compare"], ["inspect", preset]):
        capsys.readouterr()
        assert main(command) == 0
        assert f"note: {noted}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["nothing", "notes", "a checkpoint cut short", "a file"])
def test_a_path_that_hides_a_preset_and_is_no_model_says_so_too(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny"
    if content == "a file":
        path.write_text("notes")
    else:
        path.mkdir()
    if content == "notes":
        (path / "notes.txt").write_text("mine")
    if content == "a checkpoint cut short":
        (path / "config.json").write_text("{")
    with pytest.raises(UsageError) as plain:
        open_checkpoint("./tiny")
    told = "tiny is the path .*/tiny, and not the preset: rename the one to have the other"
    with pytest.raises(UsageError, match=rf"{re.escape(str(plain.value))}\. {told}$"):
        open_checkpoint("tiny")


def test_what_is_no_model(tmp_path: Path) -> None:
    for model in ("", "lama-3-8b", "nowhere/at/all", "missing.gguf", "models/missing.gguf", "a b/c"):
        refused(model, repr(model), "MODEL is", "llama-3-8b", ".gguf")
    (tmp_path / "notes.txt").write_text("hello")
    refused("notes.txt", "notes.txt", "no known kind")


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    refused(str(folder), "is empty")
    (folder / "model.safetensors").write_bytes(b"")
    refused(str(folder), "has no config.json")
    (folder / "manifest.json").write_text("{}")
    refused(str(folder), "bundle")
    shutil.rmtree(folder)
    config = small_config()
    folder.mkdir()
    write_gguf(folder / "model.Q8_0.gguf", config, small_weights(config))
    refused(str(folder), "give the file", "model.Q8_0.gguf")


def test_a_folder_named_like_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "d.gguf").mkdir()
    refused("d.gguf", "d.gguf is a folder, not a GGUF file, and is empty")
    (tmp_path / "d.gguf" / "x.gguf").mkdir()
    refused("d.gguf", "is a folder, not a GGUF file, and has no config.json, only x.gguf")


def test_an_adapter_is_not_called_a_broken_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    refused(str(tmp_path), "LoRA adapter", f"--lora {tmp_path}")


def test_a_config_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(tmp_path / "blobs" / "0123")
    refused(str(tmp_path), "config.json", "link to", "0123")


LINKS = {
    "a link to nothing": ("gone", r"it is a link to gone \(.*/gone\), and there is nothing there"),
    "a link to a link to nothing": ("first", r"it is a link to second \(.*/gone\), and there is nothing there"),
    "a link in a circle": ("itself", "links lead in a circle"),
    "a path through a link to nothing": ("first/model", r"first is a link to second \(.*/gone\), and there is nothing"),
    "a GGUF that is a link to nothing": ("m.gguf", "it is a link to .*blobs/0123, and there is nothing there"),
}


@pytest.mark.parametrize("case", LINKS)
def test_a_link_that_leads_nowhere_is_told_as_one(case: str, tmp_path: Path) -> None:
    model, said = LINKS[case]
    for name, target in (
        ("model", "gone"),
        ("first", "second"),
        ("second", "gone"),
        ("itself", "itself"),
        ("m.gguf", "/blobs/0123"),
    ):
        (tmp_path / name).symlink_to(target)
    model = "model" if model == "gone" else model
    for ask in (open_checkpoint, open_config):
        with pytest.raises(UsageError, match=f"^{model} cannot be read: .*{said}"):
            ask(model)
    (tmp_path / "gone").mkdir()
    refused("model", "is empty")


def test_a_folder_that_may_not_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may look into all, the system's answer is made up."""
    (tmp_path / "link").symlink_to(tmp_path / "closed" / "model")

    def stat(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(UsageError, match=r"^link cannot be read: .*closed/model: Permission denied") as checkpoint:
        open_checkpoint("link")
    with pytest.raises(UsageError) as config:
        open_config("link")
    monkeypatch.undo()
    assert str(config.value) == str(checkpoint.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("modles/food", "models/food"),
        ("models/a/fodo", "models/a/food"),
        ("models/aa/food", "models/a/food"),
        ("./models/foo", "models/food"),
        ("models/food.guff", "models/food.gguf"),
        ("x/models/food", None),
        ("someone/food", None),
    ],
)
def test_a_path_here_that_is_spelt_almost_so_is_told(given: str, meant: str | None, tmp_path: Path) -> None:
    for name in ("food", "a/food"):
        (tmp_path / "models" / name).mkdir(parents=True)
    (tmp_path / "models" / "food.gguf").touch()
    with pytest.raises(UsageError) as caught:
        open_checkpoint(given)
    assert ("did you mean" in str(caught.value)) is (meant is not None)
    assert meant is None or f"(did you mean {meant}?)" in str(caught.value)
    assert ("in the local cache" in str(caught.value)) is (given == "someone/food"), "only this one is asked of the Hub"


def test_one_of_several_ggufs(tmp_path: Path) -> None:
    for name in ("a.Q4_K.gguf", "b.Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    refused(str(tmp_path), "give the file", "a.Q4_K.gguf, one of 2")


def test_a_part_of_a_checkpoint(tmp_path: Path) -> None:
    config = small_config()
    folder = write_folder(tmp_path / "model", config, small_weights(config))
    refused(str(folder / "model.safetensors"), "give its folder")
    refused(str(folder / "config.json"), "give its folder")


@pytest.mark.parametrize("content", ["{", "[]", "\xff\xfe"])
def test_an_unreadable_config(tmp_path: Path, content: str) -> None:
    config = small_config()
    folder = write_folder(tmp_path / "model", config, small_weights(config))
    (folder / "config.json").write_text(content, encoding="latin-1")
    refused(str(folder), "config.json")


@pytest.mark.parametrize(("given", "meant"), [("tniy", "tiny"), ("llama3-8b", "llama-3-8b")])
def test_a_misspelt_preset_is_told_which_is_meant(given: str, meant: str) -> None:
    refused(given, f"there is no model {given!r} (did you mean {meant}?): MODEL is a folder")
