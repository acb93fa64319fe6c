"""Chat templates and tokenizers are programs of strangers: none of them hangs, fills memory or crashes us."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockexport.models.errors import UsageError
from blockexport.runtime.text.bounded_process import Bounds, OutOfBounds, run_bounded
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer, check_tokenizer
from blockexport.runtime.text.chat_template import TEMPLATE_BOUNDS, render_chat
from blockexport.runtime.text.chat_turns import write_chat_turns
from blockexport.runtime.text.tokenizer_pipeline import is_bounded
from tests.support import shared_path

NESTED_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (NESTED_LOOPS, "more than 2 s of processor time"),
        ("{{ 7 ** (7 ** (7 ** 7)) }}", "more than 2 s of processor time"),
        ("{{ 'a' * 10**10 }}", "more than 512 MiB of memory"),
        ("{{ 'a'.center(10**10) }}", "more than 512 MiB of memory"),
        ("{{ '{:>10000000000}'.format('a') }}", "more than 512 MiB of memory"),
        ("{{ ([0] * 10**10) | length }}", "more than 512 MiB of memory"),
        (DOUBLING, "more than 512 MiB of memory"),
        ("{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}", "has 9999000 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{" + "(" * 100_000, "RecursionError"),
        ('{{ "\\ud800" }}', "UnicodeEncodeError"),
    ],
)
def test_a_template_is_ended_where_its_limits_are(template: str, words: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(UsageError, match=words) as caught:
        render_chat(template, [{"role": "user", "content": "x"}], {})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "--raw" in str(caught.value) and len(str(caught.value)) < 400
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < TEMPLATE_BOUNDS.cpu_seconds + 1.5


def test_long_messages_are_no_fault_of_the_template() -> None:
    content = "word " * 1_000_000
    assert render_chat("{{ messages[0].content }}", [{"role": "user", "content": content}], {}) == content


def test_a_process_that_breaks_down_is_out_of_bounds() -> None:
    with pytest.raises(OutOfBounds, match="No module named"):
        run_bounded("blockexport.no_such_module", {}, Bounds(1, 1 << 30))


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
        shutil.copyfile(shared_path("models/stories260K") / name, tmp_path / name)
    return tmp_path


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_template_that_fails_is_noted_at_export(stories: Path) -> None:
    _edit(stories / "tokenizer_config.json", chat_template="{{ raise_exception('no') }}")
    notes: list[str] = []
    assert write_chat_turns(stories, notes.append) == []
    assert notes == ["the chat template failed: no. Use --raw to send the prompt as it is"]
    _edit(stories / "tokenizer_config.json", chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    notes.clear()
    assert (write_chat_turns(stories, notes.append), notes) == (["chat_turns.json"], [])


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _replaced(count: int) -> dict[str, Any]:
    doubling = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    return {"type": "Sequence", "normalizers": [doubling] * count}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre_tokenizer": _split(r"(x+x+)+y")}, "processor time|retry-limit"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""}}, "time|retry-limit"),
        ({"normalizer": _replaced(40)}, "memory|processor time"),
    ],
    ids=["nested", "normalizer", "doubling"],
)
def test_a_tokenizer_is_ended_where_its_limits_are(changes: dict[str, Any], words: str, stories: Path) -> None:
    _edit(stories / "tokenizer.json", **changes)
    tokenizer = BundleTokenizer(stories)
    assert tokenizer.decode([9038, 263]) is not None
    with pytest.raises(UsageError, match=words) as caught:
        tokenizer.encode((("x" * 19 + "z") * 400) + "a")
    assert "cannot read this text" in str(caught.value)


def test_a_tokenizer_with_an_expression_of_its_own_gives_the_librarys_ids(stories: Path) -> None:
    from tokenizers import Tokenizer

    _edit(stories / "tokenizer.json", pre_tokenizer=_split(r"\d|[^\d]+"))
    library = Tokenizer.from_file(str(stories / "tokenizer.json"))
    tokenizer = BundleTokenizer(stories)
    assert tokenizer.encode("Once 12 upon") == library.encode("Once 12 upon").ids
    assert (
        tokenizer.encode("Once 12", add_special_tokens=False) == library.encode("Once 12", add_special_tokens=False).ids
    )


@pytest.mark.parametrize("expression", ["((", "\\"])
def test_an_expression_that_does_not_compile_is_the_files_fault(expression: str, stories: Path) -> None:
    _edit(stories / "tokenizer.json", pre_tokenizer=_split(expression))
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        BundleTokenizer(stories).encode("a text")


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", "null", "5", '{"model": 5}', '{"model": {"type": "BPE"}, "normalizer": []}', "[" * 100_000],
)
def test_what_is_no_tokenizer_is_refused_at_export(content: str, stories: Path) -> None:
    (stories / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a tokenizer"):
        check_tokenizer(stories, 512, lambda line: None)


def _shifted(data: dict[str, Any]) -> dict[str, Any]:
    vocab = {token: i + 1000 for token, i in data["model"]["vocab"].items()}
    return {"model": data["model"] | {"vocab": vocab}, "added_tokens": [], "post_processor": None}


def _with_pad(data: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens": [*data["added_tokens"], data["added_tokens"][0] | {"id": 512, "content": "[PAD]"}]}


@pytest.mark.parametrize(
    ("change", "refused", "noted"),
    [(_shifted, "another model's tokenizer", ""), (_with_pad, "", r"'\[PAD\]', have ids beyond"), (dict, "", "")],
    ids=["another", "padding", "own"],
)
def test_a_tokenizer_that_does_not_fit_the_vocabulary(
    change: Callable[[dict[str, Any]], dict[str, Any]], refused: str, noted: str, stories: Path
) -> None:
    path, notes = stories / "tokenizer.json", list[str]()
    _edit(path, **(change(json.loads(path.read_text(encoding="utf-8"))) if change is not dict else {}))
    if refused:
        with pytest.raises(UsageError, match=refused):
            check_tokenizer(stories, 512, notes.append)
        return
    check_tokenizer(stories, 512, notes.append)
    assert len(notes) == bool(noted)
    for note in notes:
        assert "[PAD]" in note


@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"normalizer": _replaced(4)},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 17}},
        {"pre_tokenizer": _split("a+")},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, _split("a+")]}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}] * 2}},
        {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}},
        {"model": None},
        {"normalizer": 5},
    ],
)
def test_only_parts_that_are_known_to_be_quick_run_without_limits(part: dict[str, Any]) -> None:
    ordinary = {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE"}}
    assert is_bounded(ordinary) and is_bounded(ordinary | {"normalizer": _replaced(3)})
    assert not is_bounded(ordinary | part)
