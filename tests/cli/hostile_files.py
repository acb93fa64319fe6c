"""Hostile files by kind: headers, JSON, pickles, places outside, programs of strangers, forged bundles."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from tests.fuzzing import seeds

Files = Mapping[str, Callable[[Path], object]]  # what makes each file of a folder


def _header(content: bytes | dict[str, Any], data: int = 8) -> Files:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return _weights(struct.pack("<Q", len(raw)) + raw + bytes(data))


def _tensor(begin: Any, end: Any, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _weights(content: bytes) -> Files:
    return {"config.json": _holding(seeds.configs()[0]), "model.safetensors": _holding(content)}


def _config(text: str) -> Files:
    """A config.json in which `text`, of keys and values, comes last."""
    return {"config.json": _holding(seeds.configs()[0].rstrip(b"}") + b", " + text.encode() + b"}")}


def _holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _gguf(at: int | bytes, code: str, value: int, skipped: int = 0) -> bytes:
    """A sound file with one number replaced: at a place, or behind a text and what is skipped after it."""
    content = bytearray(seeds.gguf_file())
    place = at if isinstance(at, int) else content.index(at) + len(at) + skipped
    struct.pack_into(code, content, place, value)
    return bytes(content)


def _external(**where: str) -> bytes:
    model = onnx.ModelProto.FromString(seeds.graphs()[1])
    tensor = next(one for one in model.graph.initializer if one.name == "far")
    del tensor.external_data[:]
    for key, value in {"location": "weights", "offset": "0", "length": "24", **where}.items():
        tensor.external_data.add(key=key, value=value)
    content: bytes = model.SerializeToString()
    return content


def _graph(content: bytes, weights: Callable[[Path], object] | None = None) -> Files:
    return {"model.onnx": _holding(content), "weights": weights or _holding(bytes(24))}


_ROWS = b"token_embd.weight"
_PICKLE = pickle.dumps({"a": 1})
HEADERS: Mapping[str, tuple[Files, str]] = {
    "length-huge": (_weights(struct.pack("<Q", 2**63) + b"{}"), "announce a header of 9223372036854775808"),
    "length-beyond": (_weights(struct.pack("<Q", 100) + b"{}"), "announce a header of 100"),
    "empty": (_weights(b""), "is not a safetensors file"),
    "deep": (_header(b"[" * 100_000), "is not JSON"),
    "list": (_header(b"[]"), "not a JSON object"),
    "overlapping": (_header({"a": _tensor(0, 8), "b": _tensor(4, 12)}, 12), "overlaps"),
    "gap": (_header({"a": _tensor(4, 12)}, 12), "leaves a gap"),
    "negative": (_header({"a": _tensor(-8, 0)}), "describes a as"),
    "backwards": (_header({"a": _tensor(8, 0)}), "describes a as"),
    "overflowing": (_header({"a": _tensor(2**64 - 8, 2**64)}), "leaves a gap"),
    "shape-overflowing": (_header({"a": _tensor(0, 8, [2**62, 8])}), "needs 147573952589676412928 bytes"),
    "shape-negative": (_header({"a": _tensor(0, 8, [-2])}), "describes a as"),
    "not-a-number": (_header({"a": _tensor(float("nan"), 8)}), "describes a as"),
    "type": (_header({"a": _tensor(0, 8, dtype="PICKLE")}), "describes a as"),
    "twice": (_header(b'{"a": 1, "a": 2}'), "more than once"),
    "trailing": (_header({"a": _tensor(0, 8)}, 99), "91 bytes follow"),
    "cut-off": (_header({"a": _tensor(0, 8)}, 3), "is truncated"),
    "metadata": (_header({"__metadata__": 5}), "__metadata__ is 5"),
}
GGUF: Mapping[str, tuple[bytes, str]] = {
    "tensors": (_gguf(8, "<Q", 2**63), "damaged or truncated"),
    "keys": (_gguf(16, "<Q", 2**63), "damaged or truncated"),
    "text": (_gguf(24, "<Q", 2**64 - 1), "in the middle of its header"),
    "array": (_gguf(b"tokenizer.ggml.scores", "<Q", 2**62, 8), "in the middle of its header"),
    "dimensions": (_gguf(_ROWS, "<I", 2**31), "2147483648 dimensions"),
    "rows": (_gguf(_ROWS, "<Q", 2**63, 4), "ends at byte"),
    "type": (_gguf(_ROWS, "<I", 999, 20), "has the type 999"),
    "offset": (_gguf(_ROWS, "<Q", 2**64 - 32, 24), "ends at byte"),
    "overlap": (_gguf(b"output_norm.weight", "<Q", 0, 16), "overlaps"),
    "version": (_gguf(4, ">I", 3), "big-endian"),
}
JSON: Mapping[str, tuple[Files, str]] = {
    "nan": (_config('"rms_norm_eps": NaN'), "more than once"),
    "infinite": (_config('"attention_dropout": 1e999, "partial_rotary_factor": -Infinity'), "partial_rotary_factor"),
    "deep": (_config('"a": ' + "[" * 100_000), "is not valid JSON"),
    "digits": (_config(f'"a": {"9" * 5000}'), "a number of 5000 digits"),
    "layers": (
        {"config.json": _holding(seeds.configs()[0].replace(b'layers": 3', b'layers": 999999999'))},
        "layers is",
    ),
    "unknown": (_config('"__class__": "os.system"'), "unknown: __class__"),
}
PICKLES: Mapping[str, tuple[Files, str]] = {
    "bin": ({"config.json": _holding(seeds.configs()[0]), "pytorch_model.bin": _holding(_PICKLE)}, "save_pretrained"),
    "pth": ({"config.json": _holding(seeds.configs()[0]), "consolidated.00.pth": _holding(_PICKLE)}, "save_pretrained"),
    "disguised": (_weights(_PICKLE), "is not a safetensors file"),
}
LORA: Mapping[str, tuple[Files, str]] = {
    "pickle": (
        {"adapter_config.json": _holding(seeds.adapter_config()), "adapter_model.bin": _holding(_PICKLE)},
        "pickled weights can run code",
    ),
    "expression": (
        {
            "adapter_config.json": _holding(
                b'{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": "(a+)+$"}'
            )
        },
        "could take very long",
    ),
}
PLACES: Mapping[str, tuple[Files, str]] = {
    "above": (_graph(_external(location="../weights")), "a file in its folder"),
    "above-within": (_graph(_external(location="a/../../weights")), "a file in its folder"),
    "absolute": (_graph(_external(location="/etc/passwd")), "a file in its folder"),
    "nowhere": (_graph(_external(location="")), "a file in its folder"),
    "null": (_graph(_external(location="a\0b")), "is missing"),
    "folder": (_graph(_external(), lambda path: path.mkdir()), "is a folder"),
    "pipe": (_graph(_external(), os.mkfifo), "is a pipe"),
    "device": (_graph(_external(), lambda path: path.symlink_to("/dev/zero")), "is a character device"),
    "circle": (_graph(_external(), lambda path: path.symlink_to("weights")), "links lead in a circle"),
    "offset-negative": (_graph(_external(offset="-1")), "must be a number of bytes"),
    "offset-huge": (_graph(_external(offset="9" * 18)), "ends before"),
    "offset-text": (_graph(_external(offset="0x10")), "must be a number of bytes"),
    "length-wrong": (_graph(_external(length="8")), "its shape and type need 24"),
    "length-digits": (_graph(_external(length="9" * 400)), "must be a number of bytes"),
}
TEMPLATES: Mapping[str, tuple[str, str]] = {
    "attribute": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "globals": ("{{ cycler.__init__.__globals__.os.system('x') }}", "unsafe"),
    "include": ("{% include '/etc/passwd' %}", "no loader"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "string": ("{{ 'a' * 10**10 }}", "MiB of memory"),
    "power": ("{{ 7 ** (7 ** (7 ** 7)) }}", "2 s of processor time"),
    "syntax": ("{% for %}", "chat template failed"),
}
_DOUBLED = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
TOKENIZERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "doubling": ({"normalizer": {"type": "Sequence", "normalizers": [_DOUBLED] * 40}}, "cannot read this text"),
    "strip": ({"decoder": {"type": "Strip", "content": " ", "start": 2**50, "stop": 0}}, "known decoders"),
    "special": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "z", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
        "tokenizer",
    ),
}
MANIFESTS: Mapping[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "above": (lambda m: m["files"].update({"../a": m["files"]["model.onnx"]}), "outside of the bundle"),
    "absolute": (lambda m: m["files"].update({"/etc/passwd": m["files"]["model.onnx"]}), "outside of the bundle"),
    "version": (lambda m: m.update(schema_version=99), "schema version 99"),
    "layers": (lambda m: m["config"].update(num_hidden_layers=10**9), "must be at most 10000"),
    "slots": (lambda m: m.update(max_sequence_length=2**70), "must be within"),
    "nan": (lambda m: m["config"].update(rope_theta=float("nan")), "a finite number"),
    "hash": (lambda m: m["files"]["model.onnx"].update(sha256="0"), "64 hexadecimal digits"),
    "origin": (lambda m: m["files"]["model.onnx"].update(made_from={"a": "0" * 64}), "made from a"),
    "list": (lambda m: m.update(files=[]), "files is []"),
    "null": (lambda m: m["files"].update({"a\0b": m["files"]["model.onnx"]}), "which no file is called"),
    "half": (lambda m: m["files"].update({"\ud800": m["files"]["model.onnx"]}), "which no file is called"),
}


def lines() -> list[tuple[str, int, str]]:
    """Command lines, in which IN stands for the folder of inputs and OUT for an empty one; exit codes; words."""
    export = "-o OUT/b --no-compare -M 32 -q"
    return [
        *((f"onnx IN/header-{name} {export}", 2, words) for name, (_, words) in HEADERS.items()),
        *((f"inspect IN/{name}.gguf", 2, words) for name, (_, words) in GGUF.items()),
        *((f"inspect IN/json-{name}", 2, words) for name, (_, words) in JSON.items()),
        *((f"onnx IN/pickle-{name} {export}", 2, words) for name, (_, words) in PICKLES.items()),
        *((f"onnx IN/{name} {export}", 2, "run code") for name in ("model.pt", "model.bin")),
        *((f"onnx tiny --lora IN/lora-{name} {export}", 2, words) for name, (_, words) in LORA.items()),
        *((f"compare --onnx IN/place-{name}/model.onnx --model tiny", 2, words) for name, (_, words) in PLACES.items()),
        *((f"generate IN/bundle-template-{name} hello", 2, words) for name, (_, words) in TEMPLATES.items()),
        *((f"generate IN/bundle-tokenizer-{name} hello", 2, words) for name, (_, words) in TOKENIZERS.items()),
        *((f"generate IN/bundle-manifest-{name} hello", 2, words) for name, (_, words) in MANIFESTS.items()),
        ("verify IN/bundle --key nonsense", 2, "neither a public key"),
        ("verify IN/bundle --key IN/pipe", 2, "neither a public key"),
        ("verify IN/bundle-golden", 1, ""),
        ("selftest IN/bundle-golden", 2, "golden.safetensors is of another model"),
        ("generate IN/bundle-pt2 hello --raw --backend pt2", 2, "is not in the manifest"),
        ("generate IN/bundle-aoti hello --raw --backend aoti", 2, "aoti.json cannot be read"),
    ]


def make_files(folder: Path, bundle: Path) -> None:
    """Everything that `lines` names, in `folder`; `bundle` is a sound one to make bad ones from."""
    made = {f"header-{name}": files for name, (files, _) in HEADERS.items()}
    made |= {f"json-{name}": files for name, (files, _) in JSON.items()}
    made |= {f"pickle-{name}": files for name, (files, _) in PICKLES.items()}
    made |= {f"lora-{name}": files for name, (files, _) in LORA.items()}
    made |= {f"place-{name}": files for name, (files, _) in PLACES.items()}
    for name, files in made.items():
        (folder / name).mkdir()
        for file, make in files.items():
            make(folder / name / file)
    for name, (content, _) in GGUF.items():
        (folder / f"{name}.gguf").write_bytes(content)
    for name in ("model.pt", "model.bin"):
        (folder / name).write_bytes(_PICKLE)
    for name, (template, _) in TEMPLATES.items():
        (_copied(bundle, folder / f"bundle-template-{name}") / "chat_template.jinja").write_text(template)
    for name, (changes, _) in TOKENIZERS.items():
        _update(_copied(bundle, folder / f"bundle-tokenizer-{name}") / "tokenizer.json", changes)
    for name, (change, _) in MANIFESTS.items():
        _change(_copied(bundle, folder / f"bundle-manifest-{name}") / "manifest.json", change)
    (_copied(bundle, folder / "bundle-golden") / "golden.safetensors").write_bytes(seeds.golden())
    for name in ("pt2", "aoti"):
        (_copied(bundle, folder / f"bundle-{name}") / f"model.{name.replace('aoti', 'aoti.pt2')}").write_bytes(_PICKLE)


def _copied(bundle: Path, folder: Path) -> Path:
    shutil.copytree(bundle, folder)
    return folder


def _update(path: Path, changes: Mapping[str, Any]) -> None:
    _change(path, lambda value: value.update(changes))


def _change(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")
