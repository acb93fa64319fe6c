"""Every parser fuzzed for a while, guided by the code it reaches, and what came of it: `make fuzz`.

    python -P -m tests.fuzzing.run [--seconds SECONDS] [--executions COUNT] [--folder FOLDER] [PARSER ...]

`cpp-` stands before the readers of the C++ library, which are built with clang and left out where there is none.
Corpora stay in the folder, and the next run goes on from them. Ends with 1 where an input is a bug: it lies there then,
and belongs into tests/fuzzing/found once the bug is fixed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzzing.parsers import PARSERS
from tests.fuzzing.seeds import CPP_READERS
from tests.support import REPOSITORY

MEMORY = 1024  # MiB that one input may take at once
LONGEST = 1 << 15  # bytes of an input
CPP = "cpp-"
FLAGS = "-O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=int, default=60, help="for each parser")
    asked.add_argument("--executions", type=int, default=1_000_000, help="for each parser, at most")
    asked.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "fuzz")
    asked.add_argument("parser", nargs="*", default=[*PARSERS, *(f"{CPP}{name}" for name in CPP_READERS)])
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    readers = _build_readers(given.folder) if any(name.startswith(CPP) for name in given.parser) else None
    bugs = [name for name in given.parser if not _fuzzed(name, given, readers)]
    return 1 if bugs else 0


def _build_readers(folder: Path) -> Path | None:
    """The C++ readers with libFuzzer, which clang brings."""
    clang = next(filter(None, map(shutil.which, ("clang++", *(f"clang++-{n}" for n in range(21, 13, -1))))), None)
    if clang is None:
        sys.stderr.write("the C++ readers are left out: clang++ is not installed\n")
        return None
    options = ["-DBLOCKEXPORT_WITH_ONNXRUNTIME=OFF", "-DBLOCKEXPORT_BUILD_TESTS=ON", "-DBLOCKEXPORT_FUZZER=ON"]
    compiler = [f"-DCMAKE_CXX_COMPILER={clang}", "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
    build = folder.absolute() / "readers"
    subprocess.run(["cmake", "-S", REPOSITORY / "runtime/cpp", "-B", build, *options, *compiler], check=True)
    subprocess.run(["cmake", "--build", build, "-j", "2", "--target", "fuzz_readers"], check=True)
    return build / "tests" / "fuzz_readers"


def _fuzzed(name: str, given: argparse.Namespace, readers: Path | None) -> bool:
    """Fuzz one parser, and print how often it ran and what that reached; False where an input is a bug."""
    corpus, log = given.folder.absolute() / name, given.folder / f"{name}.log"
    corpus.mkdir(exist_ok=True)
    command, environment = [sys.executable, "-P", "-m", "tests.fuzzing.coverage_guided", name, str(corpus)], {}
    seeds = PARSERS[name].seeds if name in PARSERS else CPP_READERS[name.removeprefix(CPP)]
    if name not in PARSERS:
        if readers is None:
            return True
        command, environment = [str(readers), str(corpus)], {"BLOCKEXPORT_READER": name.removeprefix(CPP)}
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={given.seconds}", f"-runs={given.executions}", f"-malloc_limit_mb={MEMORY}"]
    more = [f"-artifact_prefix={corpus}-", f"-max_len={LONGEST}", "-rss_limit_mb=4096", "-timeout=60"]
    with log.open("wb") as said:
        done = subprocess.run(
            [*command, *limits, *more, "-print_final_stats=1"],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdout=said,
            stderr=said,
            check=False,
        )
    counts = re.findall(r"number_of_executed_units: (\d+)", log.read_text(errors="replace")) or ["0"]
    reached = f", {_coverage(name, corpus)} of its lines reached" if name in PARSERS else ""
    told = "" if done.returncode == 0 else f": a BUG, which {log} shows"
    sys.stdout.write(f"{name:18} {int(counts[-1]):9,} executions{reached}{told}\n")
    sys.stdout.flush()
    return done.returncode == 0


def _coverage(name: str, corpus: Path) -> str:
    """The share of the lines of a parser's files that its corpus reaches; file by file in PARSER.coverage.txt."""
    data = f"--data-file={corpus}.coverage"
    tool, files = [sys.executable, "-P", "-m", "coverage"], ",".join(f"*/{file}" for file in PARSERS[name].files)
    replay = [*tool, "run", data, f"--include={files}", "-m", "tests.fuzzing.replay", name, str(corpus)]
    subprocess.run(replay, cwd=REPOSITORY, capture_output=True, check=False)
    report = subprocess.run([*tool, "report", data], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    lines = report.stdout.splitlines()
    Path(f"{corpus}.coverage.txt").write_text("\n".join(lines))
    return lines[-1].split()[-1] if lines else "?"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
