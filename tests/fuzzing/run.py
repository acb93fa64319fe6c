"""Every parser fuzzed for a while, guided by the code it reaches, and what came of it: `make fuzz`.

    python -P -m tests.fuzzing.run [--seconds SECONDS] [--executions COUNT] [--folder FOLDER] [PARSER ...]

`cpp-` stands before the readers of the C++ library, which need clang and LLVM's tools and are left out without them.
Corpora stay in the folder, and the next run goes on from them. Ends with 1 where an input is a bug: it lies there then,
and belongs into tests/fuzzing/found once the bug is fixed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzzing.cpp_readers import PREFIX, READERS, Programs, build
from tests.fuzzing.parsers import PARSERS
from tests.support import REPOSITORY

MEMORY = 1024  # MiB that one input may take at once
LONGEST = 1 << 15  # bytes of an input


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=int, default=60, help="for each parser")
    asked.add_argument("--executions", type=int, default=1_000_000, help="for each parser, at most")
    asked.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "fuzz")
    asked.add_argument("parser", nargs="*", default=[*PARSERS, *(f"{PREFIX}{name}" for name in READERS)])
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    readers = build(given.folder) if any(name.startswith(PREFIX) for name in given.parser) else None
    bugs = [name for name in given.parser if not _fuzzed(name, given, readers)]
    return 1 if bugs else 0


def _fuzzed(name: str, given: argparse.Namespace, readers: Programs | None) -> bool:
    """Fuzz one parser, and print how often it ran and what that reached; False where an input is a bug."""
    corpus, log = given.folder.absolute() / name, given.folder / f"{name}.log"
    corpus.mkdir(exist_ok=True)
    if name in PARSERS:
        command, environment = [sys.executable, "-P", "-m", "tests.fuzzing.coverage_guided", name, str(corpus)], {}
        seeds = PARSERS[name].seeds
    elif readers is None:
        return True
    else:
        reader = name.removeprefix(PREFIX)
        command, environment = [str(readers.fuzzed), str(corpus)], readers.environment(reader)
        seeds = READERS[reader].seeds
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={given.seconds}", f"-runs={given.executions}", f"-malloc_limit_mb={MEMORY}"]
    more = [
        f"-artifact_prefix={corpus}-",
        f"-max_len={LONGEST}",
        "-rss_limit_mb=4096",
        "-timeout=600",
    ]  # of wall time, for a hang; a busy machine takes its time
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
    share = _coverage(name, corpus) if name in PARSERS or readers is None else readers.coverage(reader, corpus)
    told = "" if done.returncode == 0 else f": a BUG, which {log} shows"
    sys.stdout.write(f"{name:18} {int(counts[-1]):9,} executions, {share} of its lines reached{told}\n")
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
