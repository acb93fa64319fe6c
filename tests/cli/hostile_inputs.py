"""Hostile inputs to every command: what to run, and the exit codes and words that are right."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.hostile_files import lines, make_files
from tests.support import shared_path

MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@dataclass(frozen=True)
class Case:
    """A command line, in which IN stands for the folder of inputs and OUT for an empty one; what is right for it."""

    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (2,)
    words: str = ""
    stdin: str = "/dev/null"
    environment: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        return " ".join(self.arguments)[:90]


def _case(line: str, codes: tuple[int, ...] | int = 2, words: str = "", **how: Any) -> Case:
    return Case(tuple(line.split(" ")), (codes,) if isinstance(codes, int) else codes, words, **how)


def cases() -> list[Case]:
    """All of them."""
    export = "-o OUT/b --no-compare -M 32 -q"
    pipes = [_case(f"onnx IN/pipe-{name} {export}", words="is a pipe") for name in MODEL_FILES]
    values = [_case(f"onnx IN/value-{name} {export}", words=f"{name.split('=')[0]} is") for name in VALUES]
    told = f"{export} --json"  # notes are told, and the output is removed with the folder
    made = told.replace(" -q", "")
    return [
        *(_case(*line) for line in lines()),
        *pipes,
        *values,
        _case(f"onnx IN/pipe-chat_template.jinja {export}", words="is a pipe"),
        _case(f"onnx IN/pipe-model.safetensors.index.json {export}", words="index.json"),
        _case(f"onnx IN/zero-config.json {export}", words="is a character device"),
        _case(f"onnx IN/hole-config.json {export}", words="more than 268435456 bytes"),
        _case(f"onnx IN/gone-tokenizer.json {export}", words="link to"),
        _case(f"onnx IN/deep-generation_config.json {export}", words="is not valid JSON"),
        _case(f"onnx IN/list-generation_config.json {export}", words="has to hold one JSON object"),
        _case(f"onnx IN/bytes-chat_template.jinja {export}", words="is not UTF-8"),
        _case(f"onnx IN/pipe {export}", words="is a pipe"),
        _case(f"onnx IN/pipe.gguf {export}", words="is a pipe"),
        _case(f"onnx /dev/zero {export}", words="is a character device"),
        _case(f"onnx IN/zeros.gguf {export}", words="is not a GGUF file"),
        _case(f"onnx {'x' * 5000} {export}", (2,)),
        _case(f"onnx \udcff {export}", (2,)),
        _case("onnx tiny -o OUT/\udcff --no-compare -q", words="is not UTF-8: rename it"),
        _case(f"onnx IN/\udcff {export}", words="is not UTF-8: rename it"),
        _case(f"onnx IN/digits-config.json {export}", words="a number of 401 digits"),
        _case(f"onnx  {export}", words="there is no model"),
        _case(f"onnx tiny -o IN/pipe/b {export.partition(' ')[2].partition(' ')[2]}", (2,)),
        _case(f"onnx IN/template-loop {made}", 0, "more than 2 s of processor time"),
        _case(f"onnx IN/template-product {made}", 0, "MiB of memory"),
        _case(f"onnx IN/template-fails {made}", 0, "the chat template failed: no"),
        _case(f"onnx IN/template-number {export}", words="chat_template"),
        _case(f"onnx IN/tokenizer-empty {export}", words="is not a tokenizer"),
        _case(f"onnx IN/tokenizer-another {export}", words="another model's"),
        _case(f"onnx IN/tokenizer-decoder {export}", words="the checkpoint's tokenizer.json is not a tokenizer"),
        _case("ablate IN/pipe -o OUT/b", words="IN/pipe"),
        _case("inspect IN/pipe", words="is a pipe"),
        _case("inspect IN/pipe-config.json", words="is a pipe"),
        _case("inspect /dev/zero", words="is a character device"),
        _case("inspect IN/missing", words="there is no model"),
        _case("inspect IN/gone", words="it is a link to nowhere"),
        _case("inspect IN/circle", words="links lead in a circle"),
        _case(f"onnx IN/gone {export}", words="it is a link to nowhere"),
        _case(f"onnx IN/gone-model.safetensors {export}", words="it is a link to gone"),
        _case("onnx tiny --ouput OUT/b", words="(did you mean --output"),
        _case("inspect tiny --json", 0, environment={"PYTHONIOENCODING": "ascii"}),
        _case("generate IN/bundle-pipe-tokenizer.json hello", words="is a pipe"),
        _case("generate IN/bundle-pipe-manifest.json hello", words="is a pipe"),
        _case("generate IN/bundle-pipe-model.onnx hello", words="is a pipe"),
        _case("generate IN/bundle-top_p hello", words="top_p is"),
        _case("generate IN/bundle-eos hello -n 2", 0),
        _case("generate IN/bundle-loop hello", words="more than 2 s of processor time"),
        _case("generate IN/bundle-expression xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", words="cannot read this text"),
        _case("generate IN/bundle-surrogate hello --raw -n 2", words="half of a character"),
        _case("generate IN/bundle - --raw", words="more than 16777216 bytes", stdin="/dev/zero"),
        _case("generate IN/bundle \udcff", words="not UTF-8"),
        _case("generate IN/bundle -", words="nothing came from stdin"),
        _case("generate hello IN/bundle", words="comes before the prompt"),
        _case("generate IN/value-top_p=word hello", words="not a bundle, but a model"),
        _case("generate IN/gone/b hello", words="is a link to nowhere"),
        _case("generate IN/pipe hello", words="not a bundle"),
        _case("generate IN/\udcff hello", words="is not UTF-8: rename it"),
        _case("selftest IN/\udcff", words="is not UTF-8: rename it"),
        _case("aoti IN/\udcff --no-compare", words="is not UTF-8: rename it"),
        _case("trt IN/\udcff --compute-capability 8.9 --backend tensorrt-rtx", words="is not UTF-8: rename it"),
        _case("compare IN/bundle --report OUT/\udcff --check determinism", words="is not UTF-8: rename it"),
        _case("compare IN/bundle --text IN/pipe --check determinism", words="is a pipe"),
        _case("compare IN/bundle --text /dev/zero --check determinism", words="is a character device"),
        _case("compare IN/bundle --tokens 99999999999999999999 --check determinism", words="outside the vocabulary"),
        _case("compare IN/bundle --model IN/pipe --check determinism", words="is a pipe"),
        _case("compare IN/bundle --report IN/pipe --check determinism", words="is not a folder"),
        _case("compare IN/bundle-another --check determinism", words="another model's"),
        _case("compare --onnx IN/pipe --model tiny", words="is a pipe"),
        _case("compare --onnx IN/doubling-functions.onnx --model tiny", words="nodes"),
        _case("lint IN/pipe", words="is a pipe"),
        _case("lint IN/gone", words="it is a link to nowhere"),
        _case("lint IN/value-top_p=word", words="is a folder without model.onnx"),
        _case("compare IN/bundle --text IN/gone", words="is a link to nowhere"),
        _case("bench IN/bundle --against IN/gone", words="it is a link to nowhere"),
        _case("lint /dev/zero", words="is a character device"),
        _case("lint IN/doubling-functions.onnx", words="2,199,023,255,551 nodes"),
        _case("lint IN/name-not-utf8.onnx", words="not UTF-8"),
        _case("lint IN/bundle-pipe-model.onnx", words="is a pipe"),
        _case("selftest IN/bundle-pipe-tokenizer.json", 1, "tokenizer.json is a pipe"),
        _case("selftest IN/bundle-pipe-manifest.json", words="is a pipe"),
        _case("selftest IN/bundle-top_p", 1, "generation_config.json has 35 bytes"),
        _case("trt IN/pipe -o OUT/b --compute-capability 8.9 --backend tensorrt-rtx", (2, 3), ""),
        _case("trt IN/bundle --timing-cache IN/pipe --compute-capability 8.9 --backend tensorrt-rtx", (2, 3)),
        _case("aoti IN/pipe -o OUT/b --no-compare", words="is a pipe"),
        _case("aoti tiny -o OUT/b", 3, "does not run", environment={"CXX": "/dev/null"}),
        _case("cpp IN/pipe -o OUT/chat", words="not a bundle"),
        _case("cpp IN/bundle -o IN/pipe", words="IN/pipe"),
        _case("redeclare IN/pipe -M 16", words="not a bundle"),
        _case("redeclare IN/bundle-pipe-model.onnx -M 16 -o OUT/b", words="is a pipe"),
        _case("redeclare IN/bundle-genai -M 16 -o OUT/b", words="genai_config.json"),
        _case("redeclare IN/bundle -M 99999999999999999999 -o OUT/b"),
        _case("verify IN/bundle-pipe-tokenizer.json", 1),
        _case("verify IN/bundle-pipe-manifest.json", words="is a pipe"),
        _case("verify IN/bundle --source IN/pipe", words="is a pipe"),
        _case("diff IN/bundle IN/bundle-pipe-manifest.json", words="is a pipe"),
        _case("diff IN/bundle IN/zeros.gguf", words="is not a bundle"),
        _case("serve IN/bundle-pipe-manifest.json", words="is a pipe"),
        _case("serve IN/bundle --host 256.1.1.1 --port 0 --threads 1", words="256.1.1.1"),
        _case("doctor IN/pipe", (2, 3)),
        _case("doctor IN/zeros.gguf", words="is a file, and has to be a folder"),
        _case("triton IN/pipe -o OUT/models", words="not a bundle"),
        _case("triton IN/bundle-pipe-manifest.json -o OUT/models", words="is a pipe"),
        _case("triton IN/bundle -o IN/pipe", words="IN/pipe"),
        _case("triton IN/bundle -o OUT/models --name ../out", words="'../out' cannot name a model"),
        _case("bench IN/pipe", words="is not a bundle"),
        _case("bench IN/bundle-pipe-manifest.json", words="is a pipe"),
        _case("bench IN/\udcff", words="is not UTF-8: rename it"),
        _case("bench IN/bundle --against IN/pipe", words="of no known kind"),
        _case("bench IN/bundle --html IN/pipe", words="IN/pipe"),
        _case("bench IN/bundle -B 99999999999", 3, "and this machine has"),
    ]


VALUES: Mapping[str, Any] = {
    "top_p=word": "abc",
    "top_k=fraction": 1.5,
    "temperature=list": [],
    "eos_token_id=text": "2",
    "eos_token_id=nested": [[2]],
    "eos_token_id=large": 2**31,
    "top_p=huge": 10**99,
    "do_sample=word": "yes",
}


def make_inputs(folder: Path, bundle: Path) -> None:
    """Everything that `cases` names, in `folder`; `bundle` is a sound one to make bad ones from."""
    stories = shared_path("models/stories260K")
    config, tokenizer = _json(stories / "tokenizer_config.json"), _json(stories / "tokenizer.json")

    def model(name: str, file: str, make: Callable[[Path], object]) -> None:
        (folder / name).mkdir()
        for each in MODEL_FILES:
            shutil.copyfile(stories / each, folder / name / each)
        (folder / name / file).unlink(missing_ok=True)
        make(folder / name / file)

    def changed(name: str, file: str, make: Callable[[Path], object]) -> None:
        shutil.copytree(bundle, folder / name)
        (folder / name / file).unlink(missing_ok=True)
        make(folder / name / file)

    def holding(value: Any) -> Callable[[Path], object]:
        return lambda path: path.write_text(json.dumps(value))

    make_files(folder, bundle)
    for name in (*MODEL_FILES, "chat_template.jinja", "model.safetensors.index.json"):
        model(f"pipe-{name}", name, os.mkfifo)
    for name, value in VALUES.items():
        model(f"value-{name}", "generation_config.json", holding({name.split("=")[0]: value}))
    for name, template in {
        "loop": LOOP,
        "product": "{{ 'a' * 10**10 }}",
        "fails": "{{ raise_exception('no') }}",
    }.items():
        model(f"template-{name}", "tokenizer_config.json", holding({**config, "chat_template": template}))
    model("template-number", "tokenizer_config.json", holding({**config, "chat_template": 5}))
    model("tokenizer-empty", "tokenizer.json", holding({}))
    model("tokenizer-decoder", "tokenizer.json", holding({**tokenizer, "decoder": {"type": "BPEDecoder"}}))
    vocab = {token: i + 1000 for token, i in tokenizer["model"]["vocab"].items()}
    another = {**tokenizer, "model": {**tokenizer["model"], "vocab": vocab}, "added_tokens": [], "post_processor": None}
    model("tokenizer-another", "tokenizer.json", holding(another))
    model("zero-config.json", "config.json", lambda path: path.symlink_to("/dev/zero"))
    model("digits-config.json", "config.json", holding({**_json(stories / "config.json"), "rms_norm_eps": 10**400}))
    model("gone-tokenizer.json", "tokenizer.json", lambda path: path.symlink_to("gone"))
    model("gone-model.safetensors", "model.safetensors", lambda path: path.symlink_to("gone"))
    (folder / "gone").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")
    model("deep-generation_config.json", "generation_config.json", lambda path: path.write_text("[" * 100_000))
    model("list-generation_config.json", "generation_config.json", holding([1]))
    model("bytes-chat_template.jinja", "chat_template.jinja", lambda path: path.write_bytes(b"\xff\xfe"))
    model("hole-config.json", "config.json", _hole)
    for name in ("pipe", "pipe.gguf"):
        os.mkfifo(folder / name)
    (folder / "zeros.gguf").write_bytes(bytes(1000))
    for name in ("doubling-functions.onnx", "name-not-utf8.onnx"):
        shutil.copyfile(shared_path("faults") / name, folder / name)
    for name in ("bundle", "\udcff"):
        shutil.copytree(bundle, folder / name)
    for name in ("tokenizer.json", "manifest.json", "model.onnx"):
        changed(f"bundle-pipe-{name}", name, os.mkfifo)
    changed("bundle-top_p", "generation_config.json", holding({"do_sample": True, "top_p": "abc"}))
    changed("bundle-eos", "config.json", holding({"eos_token_id": {"a": 1}}))
    changed("bundle-genai", "genai_config.json", holding({"model": 5}))
    changed("bundle-loop", "chat_template.jinja", lambda path: path.write_text(LOOP))
    changed("bundle-surrogate", "tokenizer_config.json", holding({**config, "bos_token": "\ud800"}))
    changed("bundle-another", "tokenizer.json", holding(another))
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    changed("bundle-expression", "tokenizer.json", holding({**tokenizer, "pre_tokenizer": split}))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)
