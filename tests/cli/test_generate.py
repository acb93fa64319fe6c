"""`blockexport generate` on a bundle of stories260K."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from blockexport.cli.main import main
from tests.support import shared_path

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = shared_path("models/stories260K"), tmp_path_factory.mktemp("generate") / "ein Bündel"
    arguments = [
        "onnx",
        str(source),
        "-o",
        str(folder),
        "--max-sequence-length",
        "64",
        "--no-compare",
        "--quiet",
    ]
    assert main(arguments) == 0
    return folder


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A copy whose text files may be edited."""
    return shutil.copytree(exported, tmp_path / "bundle")


def _run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["generate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    code, out, _ = _run(capsys, *arguments, "--json")
    assert code == 0
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_text_goes_to_stdout_and_the_speed_to_stderr(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, exported, PROMPT, "-n", "12")
    assert code == 0
    golden = json.loads((shared_path("models/stories260K") / "golden.json").read_text("utf-8"))
    assert golden["text"].strip().startswith(PROMPT + out.rstrip("\n"))
    assert len(out) > 20
    assert "[12 tokens at " in err
    assert "ended by: length]" in err
    assert _run(capsys, exported, PROMPT, "-n", "12", "--quiet") == (0, out, "")


@pytest.mark.parametrize("backend", ["onnxruntime", "eager"])
def test_backends_agree(backend: str, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json(capsys, exported, PROMPT, "--backend", backend)
    golden = json.loads((shared_path("models/stories260K") / "golden.json").read_text("utf-8"))
    prompt_ids = answer["prompt_ids"]
    assert prompt_ids + answer["token_ids"] == golden["ids"][:65]
    assert golden["text"].strip().startswith(PROMPT + answer["text"])
    assert (answer["backend"], answer["finish_reason"]) == (backend, "cache full")


def test_the_text_comes_piece_by_piece(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces: list[str] = []
    stream = io.StringIO()
    monkeypatch.setattr(stream, "write", pieces.append)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["generate", str(exported), PROMPT, "-n", "12"]) == 0
    assert len(pieces) > 8
    assert pieces[-1].endswith("\n")


def test_seeds_repeat_and_differ(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--temperature", "1.2", "--top-k", "50", "--top-p", "0.95", "-n", "30")
    first = _json(capsys, exported, PROMPT, *options, "--seed", "5")
    assert first["sampling"] == {"temperature": 1.2, "top_k": 50, "top_p": 0.95, "seed": 5}
    assert _json(capsys, exported, PROMPT, *options, "--seed", "5")["token_ids"] == first["token_ids"]
    assert _json(capsys, exported, PROMPT, *options, "--seed", "6")["token_ids"] != first["token_ids"]
    greedy = _json(capsys, exported, PROMPT, *options, "--temperature", "0")
    assert greedy["token_ids"] == _json(capsys, exported, PROMPT, "-n", "30")["token_ids"]


def test_the_prompt_may_come_from_stdin(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = _json(capsys, exported, PROMPT, "-n", "4")["prompt_ids"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode() + b"\n")))
    assert _json(capsys, exported, "-", "-n", "4")["prompt_ids"] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    code, out, err = _run(capsys, exported, "-")
    assert (code, out) == (2, "")
    assert "not UTF-8" in err


def test_chat_template_and_raw(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "chat_template.jinja").write_text("{{ bos_token }}The {{ messages[0].content }}", encoding="utf-8")
    chat = _json(capsys, bundle, "dog", "-n", "3")
    raw = _json(capsys, bundle, "dog", "-n", "3", "--raw")
    assert chat["prompt_ids"][0] == raw["prompt_ids"][0] == 1
    assert chat["prompt_ids"] != raw["prompt_ids"]
    assert chat["prompt_ids"] == _json(capsys, bundle, "The dog", "-n", "3", "--raw")["prompt_ids"]
    (bundle / "chat_template.jinja").write_text("{{ raise_exception('no users') }}", encoding="utf-8")
    code, out, err = _run(capsys, bundle, "dog")
    assert (code, out) == (2, "")
    assert "no users" in err


def test_defaults_come_from_generation_config(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"do_sample": True, "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.3, "eos_token_id": [2]}
    (bundle / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    answer = _json(capsys, bundle, PROMPT, "-n", "3")
    assert answer["sampling"] == {"temperature": 0.5, "top_k": 7, "top_p": 1.0, "seed": 0}
    _, _, err = _run(capsys, bundle, PROMPT, "-n", "3")
    assert "repetition_penalty = 1.3, which is not applied" in err
    stop = _json(capsys, bundle, PROMPT, "-n", "9", "--temperature", "0")["token_ids"][4]
    (bundle / "generation_config.json").write_text(json.dumps({"eos_token_id": stop}), encoding="utf-8")
    stopped = _json(capsys, bundle, PROMPT, "-n", "9")
    assert len(stopped["token_ids"]) == 4
    assert stopped["finish_reason"] == "stop token"


def test_a_prompt_beyond_the_cache_goes_with_more_slots(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json(capsys, bundle, "word " * 100, "-M", "400", "-n", "3")
    assert len(answer["prompt_ids"]) > 64 and len(answer["token_ids"]) == 3
    advised = re.search(r"\(-M\) from (\d+) to (\d+)", _run(capsys, bundle, "word " * 100)[2])
    assert advised is not None and (advised[1], advised[2]) == (str(len(answer["prompt_ids"])), "512")
    assert _run(capsys, bundle, "word " * 100, "-M", advised[1])[0] == 0
    code, _, err = _run(capsys, bundle, PROMPT, "-M", "513")
    assert code == 2 and "513 is outside 1..512, the rows of this file's RoPE table" in err


@pytest.mark.parametrize("given", [b"", b"\n", None])
def test_nothing_from_stdin_is_no_prompt(
    given: bytes | None, exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdin", closed if given is None else io.TextIOWrapper(io.BytesIO(given)))
    code, out, err = _run(capsys, exported, "-")
    assert (code, out) == (2, "") and "nothing came from stdin: pipe the prompt in" in err


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_spaces_alone_are_a_prompt(
    raw: list[str], exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = _json(capsys, exported, "  ", "-n", "1", *raw)["prompt_ids"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"  \n")))
    assert _json(capsys, exported, "-", "-n", "1", *raw)["prompt_ids"] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["word " * 100], ["the cache 64 slots", "max_sequence_length (-M) from"]),
        (
            ["word " * 400],
            ["shorten the prompt to at most 512,", "--max-sequence-length 1202", " --beyond-trained-range"],
        ),
        (["word " * 400, "--backend", "eager", "-M", "64"], ["the prompt to at most 512", " --beyond-trained-range"]),
        ([PROMPT, "--temperature", "-1"], ["temperature is -1"]),
        ([PROMPT, "--top-p", "0"], ["top-p is 0"]),
        ([PROMPT, "--backend", "abacus"], ["abacus", "onnxruntime"]),
        (["\udcff"], ["not UTF-8"]),
    ],
)
def test_wrong_use_is_one_message(
    arguments: list[str], words: list[str], exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(capsys, exported, *arguments)
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err
    assert err.count("\n") == 1


def test_a_bundle_without_tokenizer(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "tokenizer.json").unlink()
    code, _, err = _run(capsys, bundle, PROMPT)
    assert code == 2
    assert "token ids only" in err


def test_a_missing_engine_is_told_before_a_missing_tokenizer(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "tokenizer.json").unlink()
    code, _, err = _run(capsys, bundle, "hi", "--backend", "tensorrt-rtx")
    assert code == 2 and "holds no tensorrt-rtx engine" in err
    code, _, err = _run(capsys, bundle, "hi")
    assert code == 2 and "tokenizer.json" in err


def test_drafts_give_the_same_text_and_tell_their_rate(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = _json(capsys, bundle, PROMPT, "-n", "20")
    assert plain["draft"] is None
    for draft in ("ngram", str(bundle)):
        answer = _json(capsys, bundle, PROMPT, "-n", "20", "--draft", draft, "--draft-tokens", "3")
        assert answer["token_ids"] == plain["token_ids"]
        assert answer["decode_steps"] == answer["draft"]["calls"] + answer["draft"]["accepted"] == 19
    assert answer["draft"]["acceptance_rate"] > 0.9  # the model is its own draft
    assert "tokens accepted in" in _run(capsys, bundle, PROMPT, "-n", "20", "--draft", "ngram")[2]


def test_a_draft_of_another_vocabulary_is_refused(
    exported: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((bundle / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["\u2581time"], vocabulary["\u2581day"] = vocabulary["\u2581day"], vocabulary["\u2581time"]
    (bundle / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    code, out, err = _run(capsys, exported, PROMPT, "--draft", bundle)
    assert (code, out) == (2, "") and "another vocabulary" in err and " in the other." in err and err.count("\n") == 1
    code, out, err = _run(capsys, exported, PROMPT, "--draft", "nowhere")
    assert (code, out) == (2, "") and "nowhere is not a bundle" in err
