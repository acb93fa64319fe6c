"""The tokenizer rebuilt from a GGUF file against llama.cpp, which reads the same file with its own code."""

from __future__ import annotations

import json
import unicodedata
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from blockexport.export.bundle.pre_tokenizers import PRE_TOKENIZERS
from blockexport.export.tokenizer.gguf_tokenizer import merges_from_scores, rebuild_tokenizer
from blockexport.models.checkpoints.gguf_header import read_gguf
from blockexport.models.errors import UsageError
from tests.mixed_text import mixed_lines, scattered_code_points
from tests.support import shared_path, smollm2_gguf

Tokenize = Callable[[str], list[int]]


@cache
def _metadata(path: Path) -> dict[str, Any]:
    return dict(read_gguf(path)[0])


def _rebuilt(metadata: dict[str, Any]) -> Tokenizer:
    tokenizer: Tokenizer = Tokenizer.from_str(json.dumps(rebuild_tokenizer(metadata)["tokenizer.json"]))
    return tokenizer


def _llama_cpp(path: Path) -> Tokenize:
    """llama.cpp's own tokenization of a file, specials parsed and BOS added, over its local server."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp (xllamacpp) is not installed: nothing to compare")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = params.n_batch = 64
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)

    def tokenize(text: str) -> list[int]:
        body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(f"{server.listening_address}/tokenize", body)
        with urllib.request.urlopen(request) as reply:
            ids: list[int] = json.load(reply)["tokens"]
        return ids

    return tokenize


def _tiny_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A one-layer llama of zeros with the tokenizer of another file, so that llama.cpp will load it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    for key, value in metadata.items():
        if not key.startswith("tokenizer.ggml."):
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(32, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((32, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    writer.add_tensor("token_embd.weight", np.zeros((len(metadata["tokenizer.ggml.tokens"]), 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stories_gguf() -> Path:
    return shared_path("models/stories260K") / "stories260K-F32.gguf"


def _differences(tokenizer: Tokenizer, tokenize: Tokenize, lines: list[str]) -> list[str]:
    return [line for line in lines if tokenizer.encode(line).ids != tokenize(line)]


@pytest.mark.parametrize("path", [smollm2_gguf, _stories_gguf])
def test_a_thousand_mixed_lines_give_llama_cpps_ids(path: Callable[[], Path]) -> None:
    lines = mixed_lines(1000) + scattered_code_points(300)
    assert len(set(lines)) > 1250
    assert _differences(_rebuilt(_metadata(path())), _llama_cpp(path()), lines) == []


def test_smollm2_decodes_what_it_encoded() -> None:
    tokenizer = _rebuilt(_metadata(smollm2_gguf()))
    for line in mixed_lines(1000):
        assert tokenizer.decode(tokenizer.encode(line).ids, skip_special_tokens=False) == line
    # A turn marker is one token and comes back when asked for.
    assert tokenizer.encode("<|im_start|>user").ids[0] == 1
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""


def test_sentencepiece_decodes_what_it_encoded() -> None:
    tokenizer = _rebuilt(_metadata(_stories_gguf()))
    for line in mixed_lines(1000):
        # Two things cannot come back: U+2581 is SentencePiece's space, and text that spells a special token is one.
        text = line.replace("▁", " ")
        for special in ("<s>", "</s>", "<unk>"):
            text = text.replace(special, "")
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.fixture(scope="module")
def uncut() -> dict[str, Any]:
    """Metadata whose merges were learnt from lines cut nowhere: they join digits, spaces and letters across every
    border, so that a border set one character off shows in the ids. Every fifth merge is missing, so that some tokens
    are reached only as whole words (`ignore_merges`)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    # llama.cpp takes a token spelt like an end marker for one, whatever its type: none is learnt here.
    tokenizer.train_from_iterator((line.replace("</s>", "") for line in mixed_lines(2000, seed=5)), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, "<|begin|>"],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3],
        "tokenizer.ggml.merges": [" ".join(pair) for i, pair in enumerate(model["merges"]) if i % 5],
        "tokenizer.ggml.bos_token_id": len(tokens),
    }


def _alike(name: str, line: str) -> str:
    """The line without what llama.cpp is known to read otherwise than the model's own tokenizer.json."""
    if PRE_TOKENIZERS[name].nfc:
        return unicodedata.normalize("NFC", line)  # llama.cpp does not normalise
    if name == "tekken":
        # llama.cpp's expression knows case in ASCII only and counts no combining mark as part of a word.
        line = "".join(
            c for c in line if c.isascii() or unicodedata.category(c) not in ("Lu", "Ll", "Lt", "Mn", "Mc", "Me")
        )
    return line


_WAYS = {pre: name for name, pre in PRE_TOKENIZERS.items()}  # one name for each way of cutting


@pytest.mark.parametrize("name", _WAYS.values())
def test_every_pre_tokenizer_cuts_like_llama_cpp(name: str, uncut: dict[str, Any], tmp_path: Path) -> None:
    metadata = uncut | {"tokenizer.ggml.pre": name}
    lines = [_alike(name, line) for line in mixed_lines(600) + scattered_code_points(100)]
    tokenizer = _rebuilt(metadata)
    assert _differences(tokenizer, _llama_cpp(_tiny_gguf(tmp_path / "tiny.gguf", metadata)), lines) == []
    others = [_rebuilt(metadata | {"tokenizer.ggml.pre": other}) for other in _WAYS.values() if other != name]
    # The merges are a sharp enough instrument to tell this way of cutting from all others.
    for other in others:
        assert any(other.encode(x).ids[-9:] != tokenizer.encode(x).ids[-9:] for x in mixed_lines(600))


@pytest.mark.parametrize("name", sorted(set(PRE_TOKENIZERS) - set(_WAYS.values())))
def test_every_other_name_is_one_of_those_ways(name: str, uncut: dict[str, Any], tmp_path: Path) -> None:
    metadata = uncut | {"tokenizer.ggml.pre": name}
    lines = [_alike(name, line) for line in mixed_lines(100)]
    assert _differences(_rebuilt(metadata), _llama_cpp(_tiny_gguf(tmp_path / "tiny.gguf", metadata)), lines) == []


def test_added_tokens_and_flags_match_llama_cpp(tmp_path: Path) -> None:
    """SentencePiece with a user-defined token, EOS added, and no space in front."""
    metadata = _metadata(_stories_gguf())
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.token_type"])
    types[tokens.index("▁little")] = 4
    for space in (True, False):
        overrides = {
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.add_space_prefix": space,
            "tokenizer.ggml.add_eos_token": True,
        }
        path = _tiny_gguf(tmp_path / f"tiny-{space}.gguf", metadata | overrides)
        lines = [*mixed_lines(300), "a▁littleb", "▁little <s>x</s> y", "", " ", "   three"]
        tokenizer = _rebuilt(metadata | overrides)
        assert _differences(tokenizer, _llama_cpp(path), lines) == []
        assert tokenizer.encode("one").ids[-1] == 2


def test_stories_agree_with_their_own_tokenizer_json() -> None:
    rebuilt = rebuild_tokenizer(_metadata(_stories_gguf()))["tokenizer.json"]
    own = json.loads((shared_path("models/stories260K") / "tokenizer.json").read_text(encoding="utf-8"))
    # Splits of one piece may be listed in another order; nothing else differs.
    assert sorted(rebuilt["model"].pop("merges")) == sorted(own["model"].pop("merges"))
    assert rebuilt == own


def test_companion_files_of_smollm2() -> None:
    metadata = _metadata(smollm2_gguf())
    files = rebuild_tokenizer(metadata)
    assert files["generation_config.json"] == {
        "do_sample": False,
        "bos_token_id": 1,
        "eos_token_id": [2, 0],
        "pad_token_id": 2,
    }
    config = files["tokenizer_config.json"]
    assert (config["bos_token"], config["eos_token"], config["add_bos_token"]) == ("<|im_start|>", "<|im_end|>", False)
    assert config["chat_template"] == metadata["tokenizer.chat_template"]
    assert config["model_max_length"] == 8192


def _small() -> dict[str, Any]:
    alphabet = [chr(code) for code in range(0x21, 0x7F)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<|endoftext|>", *alphabet, "ab"],
        "tokenizer.ggml.token_type": [3] + [1] * (len(alphabet) + 1),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.pre": "kimi-k2"}, ["kimi-k2", "smollm"]),
        ({"tokenizer.ggml.pre": None}, ["'none'", "safetensors"]),
        ({"tokenizer.ggml.model": "t5"}, ["t5", "gpt2 and llama"]),
        ({"tokenizer.ggml.suppress_tokens": [3]}, ["suppress_tokens", "[3]"]),
        ({"tokenizer.ggml.remove_extra_whitespaces": True}, ["remove_extra_whitespaces"]),
        ({"tokenizer.ggml.eos_token_id": 4096}, ["eos_token_id is 4096", "95"]),
        ({"tokenizer.ggml.add_bos_token": True}, ["bos_token_id"]),
        ({"tokenizer.ggml.merges": ["a é"]}, ["'a é'"]),
        ({"tokenizer.ggml.merges": ["ab"]}, ["'ab'"]),
        ({"tokenizer.ggml.token_type": [1, 1]}, ["96 tokens", "2 token types"]),
        ({"tokenizer.ggml.tokens": ["a"] * 96}, ["'a'", "0 and 1"]),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0]}, ["96 tokens", "1 scores"]),
        ({"tokenizer.ggml.tokens": None}, ["'tokenizer.ggml.tokens' is missing", "a list of texts"]),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [float("nan")] * 96}, ["scores", "no numbers"]),
        # Each key in another type than the format's.
        ({"tokenizer.ggml.model": ["gpt2"]}, ["tokenizer.ggml.model is", "a string"]),
        ({"tokenizer.ggml.tokens": 96}, ["tokenizer.ggml.tokens is 96", "a list of texts"]),
        ({"tokenizer.ggml.token_type": 1}, ["token_type is 1", "a list of whole numbers"]),
        ({"tokenizer.ggml.token_type": [1.5] * 96}, ["token_type is [1.5", "whole numbers"]),
        ({"tokenizer.ggml.merges": [1, 2]}, ["merges is [1, 2]", "texts"]),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": ["0"] * 96}, ["scores", "a fraction"]),
        ({"tokenizer.ggml.eos_token_id": "0"}, ['eos_token_id is "0"', "a whole number"]),
        ({"tokenizer.ggml.eot_token_id": [0]}, ["eot_token_id is [0]", "a whole number"]),
        ({"tokenizer.ggml.unknown_token_id": 1.5}, ["unknown_token_id is 1.5", "a whole number"]),
        ({"tokenizer.ggml.add_bos_token": "no"}, ["add_bos_token", "true or false"]),
        ({"tokenizer.ggml.add_sep_token": ""}, ["add_sep_token", "true or false"]),
        ({"tokenizer.chat_template": 7}, ["chat_template is 7", "a string"]),
        ({"tokenizer.chat_template.tool_use": ["x"]}, ["chat_template.tool_use", "a string"]),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, Any], words: list[str]) -> None:
    assert rebuild_tokenizer(_small())["tokenizer.json"]["post_processor"] is None
    metadata = {key: value for key, value in (_small() | change).items() if value is not None}
    with pytest.raises(UsageError) as caught:
        rebuild_tokenizer(metadata)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_named_chat_templates_and_end_tokens() -> None:
    metadata = _small() | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.ggml.eot_token_id": 5,
    }
    files = rebuild_tokenizer(metadata)
    assert files["tokenizer_config.json"]["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]
    assert files["generation_config.json"]["eos_token_id"] == [0, 5]


def test_merges_follow_the_scores() -> None:
    tokens, scores = ["a", "b", "c", "ab", "bc", "abc"], [-9.0, -9.0, -9.0, -2.0, -1.0, -3.0]
    merges = merges_from_scores(tokens, [1] * len(tokens), scores)
    assert merges == [["b", "c"], ["a", "b"], ["ab", "c"], ["a", "bc"]]
    # Control tokens are never the product or the part of a merge.
    assert merges_from_scores(tokens, [1, 1, 1, 1, 3, 1], scores) == [["a", "b"], ["ab", "c"]]


def test_qwen2_composes_characters_first(uncut: dict[str, Any]) -> None:
    tokenizer = _rebuilt(uncut | {"tokenizer.ggml.pre": "qwen2"})
    assert tokenizer.encode("cafe\u0301").ids == tokenizer.encode("caf\u00e9").ids
    assert tokenizer.decode(tokenizer.encode("cafe\u0301").ids) == "caf\u00e9"
