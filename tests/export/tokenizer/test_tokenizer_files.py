"""Which tokenizer files a bundle gets from each kind of checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from blockexport.export.tokenizer.sentencepiece_model import read_sentencepiece
from blockexport.export.tokenizer.tokenizer_files import write_tokenizer_files
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from tests.mixed_text import mixed_lines
from tests.support import shared_path

MODEL = "models/stories260K"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """stories260K's safetensors folder, free to be edited, under a name with a space and an umlaut."""
    folder = tmp_path / "störies 260K"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(shared_path(MODEL) / name, folder / name)
    return folder


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    return folder


def _write(source: Path | str, bundle: Path) -> tuple[list[str], list[str]]:
    """The names written (which must be what is in the folder) and the notes."""
    notes: list[str] = []
    names = write_tokenizer_files(open_checkpoint(str(source)), bundle, notes.append)
    assert sorted(names) == sorted(path.name for path in bundle.iterdir())
    return sorted(names), notes


def test_a_folders_files_are_copied_byte_for_byte(checkpoint: Path, bundle: Path) -> None:
    wanted = ["chat_template.jinja", "generation_config.json", "special_tokens_map.json"]
    wanted += ["tokenizer.json", "tokenizer_config.json"]
    for name in wanted:
        (checkpoint / name).write_bytes(b'{ "x": "\xc3\xa9" }\n')
    (checkpoint / "vocab.json").write_bytes(b"{}")
    (checkpoint / "tokenizer.json").chmod(0o400)
    names, notes = _write(checkpoint, bundle)
    assert (names, notes) == (wanted, [])
    for name in wanted:
        assert (bundle / name).read_bytes() == (checkpoint / name).read_bytes()
    assert (bundle / "tokenizer.json").stat().st_mode & 0o200  # the source's permissions stay with the source


def test_generation_config_is_made_from_the_config(checkpoint: Path, bundle: Path) -> None:
    shutil.copyfile(shared_path(MODEL) / "tokenizer.json", checkpoint / "tokenizer.json")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (checkpoint / "config.json").write_text(json.dumps(config | {"eos_token_id": [2, 7]}), encoding="utf-8")
    names, notes = _write(checkpoint, bundle)
    assert (names, notes) == (["generation_config.json", "tokenizer.json"], [])
    made = json.loads((bundle / "generation_config.json").read_text(encoding="utf-8"))
    assert made == {"do_sample": False, "bos_token_id": 1, "eos_token_id": [2, 7]}


def test_a_folder_without_tokenizer_is_noted(checkpoint: Path, bundle: Path) -> None:
    names, notes = _write(checkpoint, bundle)
    assert names == ["generation_config.json"]
    assert len(notes) == 1
    assert "has no tokenizer.json" in notes[0]
    assert "token ids only" in notes[0]


def test_a_preset_has_no_tokenizer(bundle: Path) -> None:
    names, notes = _write("tiny", bundle)
    assert names == ["generation_config.json"]
    assert len(notes) == 1
    assert "random weights" in notes[0]


def test_damaged_json_is_refused_by_name(checkpoint: Path, bundle: Path) -> None:
    (checkpoint / "tokenizer_config.json").write_text('{"a": ', encoding="utf-8")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json is not valid JSON"):
        _write(checkpoint, bundle)
    assert list(bundle.iterdir()) == []


def test_sentencepiece_alone_is_converted(checkpoint: Path, bundle: Path) -> None:
    shutil.copyfile(shared_path(MODEL) / "tokenizer.model", checkpoint / "tokenizer.model")
    (checkpoint / "tokenizer_config.json").write_text('{"bos_token": "<s>"}', encoding="utf-8")
    names, notes = _write(checkpoint, bundle)
    assert (names, notes) == (["generation_config.json", "tokenizer.json", "tokenizer_config.json"], [])
    assert (bundle / "tokenizer_config.json").read_text(encoding="utf-8") == '{"bos_token": "<s>"}'
    made = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    own = Tokenizer.from_file(str(shared_path(MODEL) / "tokenizer.json"))
    for line in mixed_lines(500):
        assert made.encode(line).ids == own.encode(line).ids


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def _sentencepiece(model_type: int = 2, normalizer: bytes = b"\x20\x00") -> bytes:
    """A model of one piece: trainer_spec.model_type, and a normalizer_spec (0x20 0x00: keep repeated spaces)."""
    piece = _field(1, _field(1, "▁a".encode()))
    return piece + _field(2, bytes([3 << 3, model_type])) + _field(3, normalizer)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_sentencepiece(model_type=1), "not BPE"),
        (_sentencepiece(normalizer=b""), "repeated spaces"),
        (_sentencepiece(normalizer=b"\x20\x00" + _field(2, b"map")), "rewrites characters"),
        (_sentencepiece()[:-1], "damaged"),
        (b"\xff\xff\xff", "damaged"),
    ],
)
def test_sentencepiece_that_cannot_be_converted_is_noted(
    data: bytes, words: str, checkpoint: Path, bundle: Path
) -> None:
    (checkpoint / "tokenizer.model").write_bytes(data)
    names, notes = _write(checkpoint, bundle)
    assert names == ["generation_config.json"]
    assert len(notes) == 1
    assert words in notes[0]


def test_sentencepiece_defaults_and_negative_ids(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    trainer = bytes([3 << 3, 2]) + b"\xc8\x02\xac\x02" + b"\xd8\x02" + b"\xff" * 9 + b"\x01"  # bos 300, pad -1
    path.write_bytes(_sentencepiece() + _field(2, trainer))
    metadata = read_sentencepiece(path)
    assert metadata["tokenizer.ggml.tokens"] == ["▁a"]
    assert metadata["tokenizer.ggml.scores"] == [0.0]
    assert metadata["tokenizer.ggml.token_type"] == [1]
    assert metadata["tokenizer.ggml.add_space_prefix"] is True
    assert metadata["tokenizer.ggml.bos_token_id"] == 300
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert "tokenizer.ggml.padding_token_id" not in metadata  # -1 means none
