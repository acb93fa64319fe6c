"""`blockexport selftest`, golden vectors and the chat frame, on small models."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from blockexport.cli.main import main
from blockexport.export.bundle.golden_file import (
    GOLDEN_FILE,
    MAX_BYTES,
    GoldenVectors,
    choose_positions,
    read_golden,
    write_golden,
)
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.onnx_session import _remedy
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.chat_template import Message
from blockexport.runtime.text.chat_turns import chat_turns_of
from blockexport.runtime.text.template_worker import render_all
from tests.exported import export, random_model
from tests.support import shared_path


@pytest.mark.parametrize("options", [["--headless"], ["--logits", "last"], ["--fp16"], ["-M", "40"]])
def test_every_kind_of_bundle_proves_itself(tmp_path: Path, options: list[str]) -> None:
    bundle = tmp_path / "bundle"
    assert main(["onnx", str(shared_path("models/stories260K")), "-o", str(bundle), "--quiet", *options]) == 0
    assert GOLDEN_FILE in read_manifest(bundle).files
    assert main(["selftest", str(bundle)]) == 0


def test_a_bundle_in_bfloat16_is_not_told_to_upgrade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime has no such kernels on a CPU in any version; what is advised instead works."""
    bundle = tmp_path / "bundle"
    assert main(["onnx", str(shared_path("models/stories260K")), "-o", str(bundle), "--bf16", "--quiet"]) == 0
    capsys.readouterr()
    for command in (["selftest", str(bundle)], ["generate", str(bundle), "Once", "--quiet", "--max-new-tokens", "2"]):
        assert main(command) == 3
        message = capsys.readouterr().err
        assert "--backend replay" in message and "upgrade" not in message
        assert main([*command, "--backend", "replay"]) == 0


@pytest.mark.parametrize("ends", [{}, {"headless": True}, {"last_logits_only": True}])
def test_no_kind_of_bundle_in_bfloat16_is_told_to_upgrade(ends: dict[str, bool], tmp_path: Path) -> None:
    export(random_model(num_hidden_layers=1, layer_types=("full_attention",)), tmp_path, Precision.BF16, **ends)
    with pytest.raises(NotJudgedError, match="--backend replay") as caught:
        open_decoder(tmp_path, "onnxruntime")
    assert "upgrade" not in str(caught.value)
    open_decoder(tmp_path, "replay")


@pytest.mark.parametrize(("version", "upgrades"), [("1.24.4", True), ("1.25.0", False), ("2.0.1", False)])
def test_a_library_that_lacks_the_operator_itself_is_to_be_upgraded(version: str, upgrades: bool) -> None:
    assert ("--upgrade onnxruntime" in _remedy("Could not find an implementation for X(24)", version)) is upgrades


def test_json_and_text(judged_stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", str(judged_stories), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is True and data["positions"] == 10 and 0 < data["rms"] < data["rms_tolerance"]
    assert main(["selftest", str(judged_stories)]) == 0
    assert "10 golden positions on onnxruntime: passed" in capsys.readouterr().out


def test_a_bundle_without_vectors_says_how_to_get_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "bundle"
    assert main(["onnx", str(shared_path("models/stories260K")), "-o", str(bundle), "--quiet", "--no-compare"]) == 0
    assert main(["selftest", str(bundle)]) == 2
    assert "--no-compare" in capsys.readouterr().err


def test_positions_stay_within_the_size(judged_stories: Path) -> None:
    assert choose_positions(256, 320, 512) == [0, 1, 64, 128, 192, 255, 256, 288, 304, 319]
    assert choose_positions(256, 320, 512, one_a_row=True) == [255, 256, 288, 304, 319]
    for width in (512, 49_152, 128_256, 2_000_000):
        chosen = choose_positions(256, 320, width)
        assert {255, 319} <= set(chosen)
        assert 4 * width * len(chosen) <= max(MAX_BYTES, 2 * 4 * width)
    assert choose_positions(5, 5, 512) == [0, 1, 2, 3, 4]
    assert read_golden(judged_stories).positions_P.tolist() == choose_positions(256, 320, 512)


def test_damaged_vectors_are_refused(judged_stories: Path, tmp_path: Path) -> None:
    golden = read_golden(judged_stories)
    write_golden(tmp_path, golden)
    assert (tmp_path / GOLDEN_FILE).read_bytes() == (judged_stories / GOLDEN_FILE).read_bytes()
    content = (tmp_path / GOLDEN_FILE).read_bytes()
    (tmp_path / GOLDEN_FILE).write_bytes(content[:-5])
    with pytest.raises(UsageError, match="damaged"):
        read_golden(tmp_path)
    wrong: list[GoldenVectors] = [
        replace(golden, prefill=0),
        replace(golden, rms_tolerance=0.0),
        replace(golden, tolerance_P=golden.tolerance_P[:-1]),
        replace(golden, positions_P=golden.positions_P.flip(0)),
        replace(golden, outputs_PV=golden.outputs_PV * torch.inf),
    ]
    for vectors in wrong:
        with pytest.raises(ValueError, match=r"prefill|limit|positions|finite"):
            write_golden(tmp_path, vectors)


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }}</s>{% else %}"
    "{{ raise_exception('no system messages') }}{% endif %}{% endfor %}"
)
CHANGING = "{% for m in messages %}{{ loop.index }}:{{ m['content'] }}\n{% endfor %}"
UPPER = "{% for m in messages %}{{ m['role'] }}{{ m['content'] | upper }}{% endfor %}"
# What Qwen3 does: earlier answers lose what they thought.
THINKING = CHATML.replace(
    "m['content'] +",
    "(m['content'].split('</think>')[-1].lstrip('\n') if m['role'] == 'assistant' else m['content']) +",
)


def _render(template: str, messages: Sequence[Message]) -> str:
    """In this process: the templates are ours."""
    request = {"template": template, "conversations": [messages], "special_tokens": {"bos_token": "<s>"}}
    (answer,) = render_all({**request, "characters": 10_000})
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer["text"]


@pytest.mark.parametrize(
    ("template", "system", "trim"), [(CHATML, True, False), (LLAMA2, False, True), (THINKING, True, False)]
)
def test_the_frame_of_a_chat_template(template: str, system: bool, trim: bool) -> None:
    turns = chat_turns_of(lambda messages: _render(template, messages))
    assert turns is not None
    assert (turns.system is not None, turns.trim) == (system, trim)
    conversation: list[Message] = [
        {"role": "user", "content": " a\n"},
        {"role": "assistant", "content": "b "},
        {"role": "user", "content": ""},
    ]
    assert turns.render(conversation) == _render(template, conversation)


@pytest.mark.parametrize("template", [CHANGING, UPPER, "fixed"])
def test_a_template_that_is_no_frame_has_none(template: str) -> None:
    assert chat_turns_of(lambda messages: _render(template, messages)) is None


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx", "golden.safetensors"])
def test_a_damaged_bundle_is_judged_and_bad(
    name: str, judged_stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "a bundle"
    shutil.copytree(judged_stories, bundle)
    content = (bundle / name).read_bytes()
    (bundle / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert main(["selftest", str(bundle), "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and f"{name} has the SHA-256" in captured.err
    (bundle / name).unlink()
    assert main(["selftest", str(bundle)]) == 1
    assert f"{name} is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "parity/report.md", "config.json"])
def test_a_file_that_may_not_be_read_is_not_judged(
    name: str, judged_stories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = os.open

    def refuse(path: Any, *rest: Any, **options: Any) -> int:
        if path == judged_stories / name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert main(["selftest", str(judged_stories)]) == 2
    assert f"{name} cannot be read: Permission denied" in capsys.readouterr().err
