"""What a checkpoint's digest depends on."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from blockexport.export.bundle.source_digest import hashed_meanwhile, source_digest
from blockexport.models.config.model_config import ModelConfig
from tests.exported import EVERYTHING, gainful


@dataclass(frozen=True)
class Later(ModelConfig):
    """The config of a version that knows one option more."""

    another_option: float = 1.0


def later(another_option: float = 1.0) -> Later:
    known: dict[str, Any] = {one.name: getattr(EVERYTHING, one.name) for one in fields(EVERYTHING)}
    return Later(**known, another_option=another_option)


def test_an_option_that_a_later_version_brings_changes_no_digest() -> None:
    now = source_digest(gainful(EVERYTHING))
    assert source_digest(gainful(later())) == now
    assert source_digest(gainful(later(another_option=2.0))) != now


def test_every_option_and_the_seed_count() -> None:
    now = source_digest(gainful(EVERYTHING))
    assert source_digest(gainful(EVERYTHING, seed=6)) != now
    assert source_digest(gainful(replace(EVERYTHING, rms_norm_eps=1e-6))) != now
    assert source_digest(gainful(replace(EVERYTHING, sliding_window=None))) != now


def test_files_are_hashed_meanwhile(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file in files:
        file.write_bytes(file.name.encode() * 700_000)
    with hashed_meanwhile(files) as digests:
        assert digests() == {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_an_error_does_not_wait_for_a_file_to_be_hashed(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 35)  # sparse
    before = time.process_time()
    with pytest.raises(KeyError), hashed_meanwhile([large]):
        raise KeyError
    assert time.process_time() - before < 5
