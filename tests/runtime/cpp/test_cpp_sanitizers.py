"""A whole generation, every refusal and two threads under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer. ONNX Runtime's own library is not instrumented."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import sha256_of
from tests.runtime.cpp import cpp_build
from tests.runtime.cpp.cpp_texts import random_texts
from tests.runtime.cpp.test_cpp import ENGINES
from tests.support import REPOSITORY

pytestmark = pytest.mark.slow

ADDRESS = "address,undefined"
PROGRAMS = ("decoder_tool", "selftest", "tokenizer_tool", "core_tests", "fuzz_readers")  # the threads are in the first
# ONNX Runtime keeps a few allocations to the end of the process.
_SUPPRESSIONS = {"lsan": "leak:libonnxruntime\n", "tsan": "race:libonnxruntime\ncalled_from_lib:libonnxruntime\n"}


def sanitized(kind: str) -> Path:
    """A build of the test programs with one kind of sanitizer; any finding ends the program."""
    flags = f"-fsanitize={kind} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O0"
    name, targets = ("asan", PROGRAMS) if kind == ADDRESS else ("tsan", PROGRAMS[:1])
    options = [*cpp_build.onnxruntime_options(), "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={flags}"]
    return cpp_build.build(name, options, *targets)


def environment(folder: Path) -> dict[str, str]:
    """Options of the sanitizers."""
    for kind, text in _SUPPRESSIONS.items():
        (folder / f"{kind}.txt").write_text(text)
    return {
        "LSAN_OPTIONS": f"suppressions={folder / 'lsan.txt'}",
        "TSAN_OPTIONS": f"suppressions={folder / 'tsan.txt'}:halt_on_error=1:ignore_noninstrumented_modules=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def generate(build: Path, folder: Path, bundle: Path, threads: int) -> list[list[int]]:
    """Greedy generation of 199 tokens in each of `threads` threads."""
    path = folder / "request.json"
    sampling = {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "seed": 5}
    content = {
        "op": "generate",
        "bundle": str(bundle),
        "prompt": [1],
        "count": 199,
        "threads": threads,
        "options": {"threads": 1},  # the thread pool of ONNX Runtime is not instrumented
        "sampling": sampling,
    }
    path.write_text(json.dumps(content))
    said = cpp_build.run([str(build / "tests/decoder_tool"), str(path)], environment(folder))
    ids: list[list[int]] = json.loads(said)["ids"]
    return ids


def test_address_and_undefined_behaviour(judged_stories: Path, tmp_path: Path) -> None:
    build = sanitized(ADDRESS)
    around = environment(tmp_path)
    assert len(generate(build, tmp_path, judged_stories, 1)[0]) > 50
    said = cpp_build.run([str(build / "selftest"), str(judged_stories)], around)
    assert "selftest passed" in said
    done = cpp_build.attempt([str(build / "selftest"), str(tmp_path)], around)
    assert done.returncode == 2 and "is not a bundle" in done.stderr
    lines = tmp_path / "lines.jsonl"
    added = ["<s>", "</s>", "<unk>"]
    lines.write_text("".join(json.dumps(text) + "\n" for text in random_texts(1500, added)) + "[300, -5, 999999]\n")
    tool = str(build / "tests/tokenizer_tool")
    cpp_build.run([tool, str(judged_stories / "tokenizer.json"), str(lines)], around)
    # The same texts through the expressions, NFC and byte level of a Qwen-like tokenizer.
    assert cpp_build.run([tool, str(_byte_level(judged_stories, tmp_path)), str(lines)], around)


def test_core_under_address_and_undefined_behaviour(judged_stories: Path, tmp_path: Path) -> None:
    build = sanitized(ADDRESS)
    data = json.loads((judged_stories / "manifest.json").read_text())
    data["engines"] = ENGINES
    for name in ENGINES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"engine")
        data["files"][name] = asdict(file_entry(path))
    data["files"]["engines/trt.engine"]["made_from"] = {"model.onnx": "0" * 64}
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    weights, vectors = judged_stories / "model.safetensors", REPOSITORY / "tests/data/sampling_vectors.json"
    command = [str(build / "tests/core_tests"), str(vectors), str(weights), sha256_of(weights), str(tmp_path)]
    cpp_build.run(command, environment(tmp_path))


def test_readers_refuse_what_was_found(tmp_path: Path) -> None:
    tool = str(sanitized(ADDRESS) / "tests/fuzz_readers")
    folders = sorted((REPOSITORY / "tests/fuzzing/found").glob("cpp-*"))
    assert folders
    for folder in folders:
        files = sorted(map(str, folder.iterdir()))
        said = cpp_build.run([tool, folder.name.removeprefix("cpp-"), *files], environment(tmp_path))
        assert said == f"{len(files)} inputs\n"
    deep = tmp_path / "tokenizer.json"
    sequences = '{"type": "Sequence", "pretokenizers": [' * 50_000 + "]}" * 50_000
    deep.write_text(f'{{"normalizer": null, "pre_tokenizer": {sequences}}}')
    assert cpp_build.run([tool, "tokenizer", str(deep)], environment(tmp_path)) == "1 inputs\n"


def test_two_decoders_in_two_threads(judged_stories: Path, tmp_path: Path) -> None:
    first, second = generate(sanitized("thread"), tmp_path, judged_stories, 2)
    assert len(first) > 50
    assert first == second


def _byte_level(judged_stories: Path, folder: Path) -> Path:
    """A tokenizer of single bytes, cut by Qwen's expression after NFC."""
    from blockexport.export.bundle.pre_tokenizers import PRE_TOKENIZERS
    from blockexport.runtime.text.detokenize import BYTE_LETTERS

    split = {"type": "Split", "pattern": {"Regex": PRE_TOKENIZERS["qwen2"].patterns[0]}, "behavior": "Isolated"}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    data = json.loads((judged_stories / "tokenizer.json").read_text(encoding="utf-8"))
    data["normalizer"] = {"type": "NFC"}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{**split, "invert": False}, bytes_]}
    data["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    vocab = {letter: i for i, letter in enumerate(BYTE_LETTERS)} | {"th": 256, "the": 257}
    data["model"] = {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["th", "e"]]}
    data["added_tokens"], data["post_processor"] = [], None
    path = folder / "byte_level.json"
    path.write_text(json.dumps(data))
    return path
