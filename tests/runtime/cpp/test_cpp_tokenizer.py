"""The C++ tokenizer against Python's `tokenizers`: the same ids, the same text back."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from blockexport.export.bundle.pre_tokenizers import PRE_TOKENIZERS
from blockexport.export.tokenizer.gguf_tokenizer import rebuild_tokenizer
from blockexport.models.checkpoints.gguf_header import read_gguf
from tests.runtime.cpp import cpp_build
from tests.runtime.cpp.cpp_texts import random_texts
from tests.support import shared_path, smollm2_gguf


@pytest.fixture(scope="module")
def tool() -> Path:
    """The program that encodes and decodes lines of JSON."""
    return cpp_build.build("onnxruntime", cpp_build.onnxruntime_options()) / "tests" / "tokenizer_tool"


@pytest.fixture(scope="module")
def smollm2() -> dict[str, Any]:
    """SmolLM2's tokenizer.json, rebuilt from its GGUF file."""
    return rebuild_tokenizer(read_gguf(smollm2_gguf())[0])["tokenizer.json"]


def stories() -> dict[str, Any]:
    """The tokenizer.json of stories260K."""
    data: dict[str, Any] = json.loads(shared_path("models/stories260K/tokenizer.json").read_text(encoding="utf-8"))
    return data


def in_cpp(tool: Path, folder: Path, tokenizer: dict[str, Any], lines: Sequence[Any]) -> list[dict[str, Any]]:
    path, given = folder / "tokenizer.json", folder / "lines.jsonl"
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [json.loads(line) for line in cpp_build.run([str(tool), str(path), str(given)]).split("\n") if line]


def compare_texts(tool: Path, folder: Path, data: dict[str, Any], count: int, seed: int = 0) -> None:
    """Encode and decode `count` texts on both sides; every one must come out the same."""
    python = Tokenizer.from_str(json.dumps(data))
    texts = random_texts(count, [token["content"] for token in data["added_tokens"]], seed)
    results = in_cpp(tool, folder, data, texts)
    assert len(results) == count
    for text, encoding, found in zip(texts, python.encode_batch(texts), results, strict=True):
        whole = python.decode(encoding.ids)
        expected = {
            "ids": encoding.ids,
            "text": whole,
            "special": python.decode(encoding.ids, skip_special_tokens=False),
            "stream": whole,
        }
        assert found == expected, repr(text)


@pytest.mark.slow
def test_smollm2_on_60000_texts(tool: Path, tmp_path: Path, smollm2: dict[str, Any]) -> None:
    compare_texts(tool, tmp_path, smollm2, 60_000)


@pytest.mark.slow
def test_stories260k_on_60000_texts(tool: Path, tmp_path: Path) -> None:
    compare_texts(tool, tmp_path, stories(), 60_000, seed=1)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_way_of_cutting_text(tool: Path, tmp_path: Path, smollm2: dict[str, Any], name: str) -> None:
    """Llama 3, Qwen (with NFC), GPT-2, Mistral: their expressions over SmolLM2's vocabulary."""
    cutting = PRE_TOKENIZERS[name]
    cuts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in cutting.patterns
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    data = {
        **smollm2,
        "normalizer": {"type": "NFC"} if cutting.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, bytes_]},
        "model": {**smollm2["model"], "ignore_merges": cutting.ignore_merges},
    }
    compare_texts(tool, tmp_path, data, 2000, seed=2)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@pytest.mark.parametrize("split", [True, False])
def test_metaspace(tool: Path, tmp_path: Path, scheme: str, split: bool) -> None:
    """How newer Llama 2 and Mistral files mark spaces."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
    data = {**stories(), "normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace}
    compare_texts(tool, tmp_path, data, 2000, seed=3)


def test_digits_and_the_byte_level_cut_of_its_own(tool: Path, tmp_path: Path, smollm2: dict[str, Any]) -> None:
    for individual in (True, False):
        digits = {"type": "Digits", "individual_digits": individual}
        bytes_ = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        data = {**smollm2, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, bytes_]}}
        compare_texts(tool, tmp_path, data, 2000, seed=4)


def test_added_tokens_that_take_the_spaces_around(tool: Path, tmp_path: Path) -> None:
    data = stories()
    for token, changes in zip(data["added_tokens"], ({"lstrip": True}, {"rstrip": True}, {}), strict=True):
        token.update(changes)
    # Of two that begin alike the longer one is taken.
    data["added_tokens"] += [
        {**data["added_tokens"][2], "id": 512 + i, "content": content} for i, content in enumerate(("<s><s>", "<unk>1"))
    ]
    compare_texts(tool, tmp_path, data, 2000, seed=5)


@pytest.mark.parametrize("which", ["smollm2", "stories260K"])
def test_decoding_of_any_ids(tool: Path, tmp_path: Path, smollm2: dict[str, Any], which: str) -> None:
    """Random ids, most of which are broken UTF-8; ids outside of the vocabulary are skipped."""
    data = smollm2 if which == "smollm2" else stories()
    python, rng = Tokenizer.from_str(json.dumps(data)), random.Random(6)
    size = python.get_vocab_size()
    lines = [
        [rng.randrange(size if rng.random() < 0.5 else 260) for _ in range(rng.randint(1, 12))] for _ in range(5000)
    ]
    for ids, found in zip(lines, in_cpp(tool, tmp_path, data, lines), strict=True):
        assert found["text"] == python.decode(ids), ids
        assert found["special"] == python.decode(ids, skip_special_tokens=False), ids
    (found,) = in_cpp(tool, tmp_path, data, [[size + 5, -1, 300]])
    assert found["text"] == python.decode([300])


REFUSED: dict[str, dict[str, Any]] = {
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "BertPreTokenizer": {"pre_tokenizer": {"type": "BertPreTokenizer"}},
    "RobertaProcessing": {"post_processor": {"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2]}},
    "WordPiece": {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
    "Unigram": {"model": {"type": "Unigram", "vocab": []}},
    "dropout": {"model": {"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []}},
    "single_word": {"added_tokens": [{"id": 0, "content": "x", "single_word": True}]},
    "surprise": {"surprise": 1},
    "truncation": {"truncation": {"max_length": 3}},
    "MergedWithNext": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext", "invert": False}
    },
    "lazy or possessive": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a++"}, "behavior": "Isolated", "invert": False}
    },
}


@pytest.mark.parametrize("word", REFUSED)
def test_an_unknown_part_is_refused_by_name(tool: Path, tmp_path: Path, word: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**stories(), **REFUSED[word]}))
    done = cpp_build.attempt([str(tool), str(path), str(path)])
    assert done.returncode == 1
    assert word in done.stderr
    assert "Tokenizer of your own" in done.stderr
