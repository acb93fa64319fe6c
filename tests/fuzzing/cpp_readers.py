"""The readers of the C++ library: built with libFuzzer, and once more to tell which lines their inputs reach."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzzing import seeds
from tests.support import REPOSITORY

LIBRARY = REPOSITORY / "runtime" / "cpp"
PREFIX = "cpp-"
_FUZZED = "-O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"
_COVERED = "-O1 -g1 -fprofile-instr-generate -fcoverage-mapping"
_LATEST, _OLDEST = 21, 13  # of clang's versions that are looked for by number
_AT_ONCE = 500  # inputs on one command line


@dataclass(frozen=True)
class Reader:
    """One reader of runtime/cpp/tests/fuzz_readers.cpp.

    Attributes:
        seeds: inputs to begin with.
        files: whose code this is, whose coverage is told: paths below runtime/cpp/src.
    """

    seeds: Callable[[], Sequence[bytes]]
    files: tuple[str, ...]


_TOKENIZER = ("json_tokenizer", "added_tokens", "bpe", "normalizer", "post_processor", "pre_tokenizer", "token_bytes")
READERS: Mapping[str, Reader] = {
    "manifest": Reader(lambda: [seeds.manifest(), seeds.manifest_with_engine()], ("manifest.cpp", "engine_file.cpp")),
    "golden": Reader(lambda: [seeds.golden()], ("safetensors.cpp",)),
    "tokenizer": Reader(lambda: seeds.tokenizers()[:2], tuple(f"text/{name}.cpp" for name in _TOKENIZER)),
    "text": Reader(
        lambda: [*seeds.tokenizer_configs(), seeds.generation_config(), seeds.chat_turns()], ("text/bundle_text.cpp",)
    ),
    "graph": Reader(seeds.graphs, ("redeclare.cpp",)),
    "expression": Reader(seeds.expressions, ("text/regex.cpp", "text/unicode.cpp")),
}


@dataclass(frozen=True)
class Programs:
    """The readers as programs: one that libFuzzer drives, and one that counts the lines which its arguments reach."""

    fuzzed: Path
    covered: Path
    tools: Mapping[str, str]

    def environment(self, reader: str) -> dict[str, str]:
        """What tells `fuzzed` which reader to be, and to write its files into memory."""
        place = {"TMPDIR": "/dev/shm"} if Path("/dev/shm").is_dir() else {}
        return {"BLOCKEXPORT_READER": reader, **place}

    def coverage(self, reader: str, corpus: Path) -> str:
        """The share of the lines of a reader's files that its corpus reaches; file by file in CORPUS.coverage.txt."""
        inputs = sorted(map(str, corpus.iterdir()))
        profile, raw = Path(f"{corpus}.profdata"), []
        for first in range(0, len(inputs), _AT_ONCE):
            raw.append(f"{corpus}.{first}.profraw")
            environment = {**os.environ, **self.environment(reader), "LLVM_PROFILE_FILE": raw[-1]}
            some: list[str | Path] = [self.covered, reader, *inputs[first : first + _AT_ONCE]]
            subprocess.run(some, env=environment, capture_output=True, check=True)
        subprocess.run([self.tools["llvm-profdata"], "merge", "-o", profile, *raw], check=True)
        for file in raw:
            Path(file).unlink()
        files = [LIBRARY / "src" / name for name in READERS[reader].files]
        told: list[str | Path] = [self.tools["llvm-cov"], "report", self.covered, f"-instr-profile={profile}", *files]
        report = subprocess.run(told, capture_output=True, text=True, check=True).stdout
        Path(f"{corpus}.coverage.txt").write_text(report)
        total = re.search(r"^TOTAL(?:\s+\d+\s+\d+\s+[\d.]+%){2}\s+\d+\s+\d+\s+([\d.]+)%", report, re.MULTILINE)
        return f"{float(total[1]):.0f}%" if total else "?"


def build(folder: Path) -> Programs | None:
    """Both programs; None, with the reason on stderr, where clang or LLVM's tools for coverage are not installed."""
    tools = {name: _tool(name) for name in ("clang++", "llvm-profdata", "llvm-cov")}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        sys.stderr.write(f"the C++ readers are left out: {', '.join(missing)} not installed\n")
        return None
    found = {name: path for name, path in tools.items() if path is not None}
    fuzzed = _built(folder / "readers", found["clang++"], _FUZZED, "-DBLOCKEXPORT_FUZZER=ON")
    return Programs(fuzzed, _built(folder / "readers-covered", found["clang++"], _COVERED), found)


def _built(build: Path, compiler: str, flags: str, *more: str) -> Path:
    options = ["-DBLOCKEXPORT_WITH_ONNXRUNTIME=OFF", "-DBLOCKEXPORT_BUILD_TESTS=ON", *more]
    how = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={flags}"]
    build, quiet = build.absolute(), subprocess.DEVNULL
    subprocess.run(["cmake", "-S", str(LIBRARY), "-B", str(build), *options, *how], stdout=quiet, check=True)
    subprocess.run(["cmake", "--build", str(build), "-j", "2", "--target", "fuzz_readers"], stdout=quiet, check=True)
    return build / "tests" / "fuzz_readers"


def _tool(name: str) -> str | None:
    numbered = (f"{name}-{version}" for version in range(_LATEST, _OLDEST, -1))
    return next(filter(None, map(shutil.which, (name, *numbered))), None)
