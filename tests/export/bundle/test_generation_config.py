"""`generation_config.json`: every key that is read has its type and range; every other is named or harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockexport.export.bundle import generation_config
from blockexport.export.bundle.generation_config import GenerationConfig, read_generation_config
from blockexport.models.errors import UsageError


def _read(folder: Path, **values: Any) -> GenerationConfig:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(values))
    return read_generation_config(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("top_p", "abc"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", "50"),
        ("top_k", 1.5),
        ("top_k", -1),
        ("top_k", True),
        ("temperature", []),
        ("temperature", -1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("do_sample", "yes"),
        ("do_sample", 1),
        ("eos_token_id", "2"),
        ("eos_token_id", [2, "x"]),
        ("eos_token_id", [[2]]),
        ("eos_token_id", {"a": 1}),
        ("eos_token_id", True),
        ("eos_token_id", -1),
        ("bos_token_id", "<s>"),
        ("pad_token_id", 1.0),
        ("repetition_penalty", "x"),
        ("repetition_penalty", 0),
        ("no_repeat_ngram_size", 2.5),
        ("suppress_tokens", "x"),
        ("num_beams", 0),
        ("stop_strings", 5),
        ("max_length", "x"),
        ("max_new_tokens", [64]),
        ("use_cache", "yes"),
        ("output_scores", 0),
        ("cache_implementation", 7),
        ("decoder_start_token_id", "<s>"),
        ("top_p", 10**99),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"generation_config\.json: {key} is ") as caught:
        _read(tmp_path, **{key: value})
    assert "correct or remove it" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        '{"top_k": 5, "top_k": 7}',
        '{"eos_token_id": 2, "do_sample": true, "eos_token_id": [2]}',
        '{"unknown": 1, "unknown": 1}',
        '{"cache_config": {"a": 1, "a": 2}}',
    ],
)
def test_a_key_that_is_there_twice_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"generation_config\.json is not valid JSON \(the key '\w+' appears more"):
        read_generation_config(path)


def test_what_it_says_is_read(tmp_path: Path) -> None:
    made = _read(tmp_path, do_sample=True, temperature=0.6, top_k=40, top_p=0.9, eos_token_id=[2, 7], pad_token_id=-1)
    assert made == GenerationConfig(True, 0.6, 40, 0.9, (2, 7))
    assert _read(tmp_path, eos_token_id=0).eos_token_ids == (0,)
    assert _read(tmp_path, eos_token_id=None, top_p=None) == GenerationConfig()


def test_what_changes_the_answer_and_is_not_applied_is_named_unknown_keys_included(tmp_path: Path) -> None:
    neutral = {"repetition_penalty": 1.0, "num_beams": 1, "suppress_tokens": [], "max_length": 4096}
    assert _read(tmp_path, **neutral, transformers_version="5").unapplied == {}
    changing = {"repetition_penalty": 1.1, "stop_strings": ["x"], "surprise": 3}
    assert _read(tmp_path, **changing).unapplied == changing


def test_every_key_of_transformers_is_known(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    keys = transformers.GenerationConfig().to_dict().keys()
    known = {*generation_config._APPLIED, *generation_config._UNAPPLIED, *generation_config._HARMLESS}
    assert sorted(keys - known) == []
