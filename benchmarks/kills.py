"""What a SIGKILL at a random moment leaves: the old bundle or report, the complete new one, or none where one was made.

    python benchmarks/kills.py [--count 1000] [--seed 1] [--full-disk] [--compiler]

Commands on the preset `tiny` (export, quantise, redeclare, trt, aoti, compare --report) are begun and killed with all
their processes at some moment, one after the other in one folder, so that each also meets what earlier ones left. Every
tenth is let through: it must succeed and leave nothing behind. They are forked from a process that has the libraries
loaded, so that the moments lie in the work and not in imports; what stands in place of aoti's compiler, which takes a
minute and writes nothing here, writes a package at once, except with --compiler. With --full-disk the folder is a file
system of 20 MB in memory that is filled to the last byte instead of the kill; the command must then say so (exit code
2) or succeed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import torch
import torch._inductor

from blockexport import verify_bundle
from blockexport.cli.main import main as blockexport
from blockexport.export.output.atomic_write import finish_moves

LIBRARIES = (
    *("bundle_export", "compare.explain.explain", "compare.judged_bundle", "export.aoti", "export.onnx_export"),
    *("export.redeclare", "library", "runtime.onnx_session"),
)
HIDDEN_ALLOWED = "was left by a process"
REPORT = ("report.json", "report.md", "report.html")
DISK = 20 << 20


@dataclass(frozen=True)
class Kind:
    """A command with two forms, which make different files."""

    forms: tuple[str, str]
    place: str
    before: str = ""

    def arguments(self, form: int) -> list[str]:
        """Of the program."""
        return self.forms[form].split()


MAKE = "onnx tiny --no-compare --quiet --force"
KINDS = {
    "export": Kind((f"{MAKE} -M 64 -o export", f"{MAKE} -M 96 -o export"), "export"),
    "judged": Kind(("onnx tiny --quiet --force -M 48 -o judged", "onnx tiny -q --force -M 40 -o judged"), "judged"),
    "quantise": Kind((f"{MAKE} --quantize int4 -o q", f"{MAKE} --quantize int8 -o q"), "q"),
    "redeclare": Kind(("redeclare r -M 100 -q", "redeclare r -M 200 -q"), "r", f"{MAKE} -M 64 -o r"),
    "report": Kind(
        ("compare c --check decode --report report -q", "compare c --check prefill --report report -q"),
        "report",
        f"{MAKE} -M 64 -o c",
    ),
    "trt": Kind(
        ("trt t --backend tensorrt-rtx --compute-capability 8.9 -q",
         "trt t --backend tensorrt-rtx --compute-capability 8.9 --max-prefill 8 -q"),
        "t",
        f"{MAKE} --fp16 -M 64 -o t",
    ),
    "aoti": Kind(("aoti a --no-compare -q",) * 2, "a", f"{MAKE} -M 64 -o a"),
}  # fmt: skip


@dataclass
class Process:
    """A command that was begun; `code` as of `subprocess.Popen`."""

    number: int
    stderr: IO[bytes]
    code: int | None = None

    def wait(self, seconds: float = float("inf")) -> bool:
        """Whether it has ended by then."""
        end = time.monotonic() + seconds
        while self.code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            if number:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                return False
            else:
                time.sleep(0.002)
        return True

    def kill(self) -> None:
        """It and all that it has begun."""
        os.killpg(self.number, signal.SIGKILL)

    def said(self) -> str:
        """The end of its stderr."""
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")[-400:]


class Run:
    """The commands in one folder, and what was seen.

    Attributes:
        seen: how often which outcome came, by command.
        faults: what should not have been.
    """

    def __init__(self, folder: Path, kinds: list[str], seed: int) -> None:
        self.folder, self.kinds, self.random = folder, kinds, random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.seconds: dict[str, float] = {}
        self.reports: list[dict[str, bytes]] = []

    def begin(self, arguments: list[str]) -> Process:
        """A command, as the leader of a group of processes."""
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it is the process's
        process = os.fork()
        if process == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                os.chdir(self.folder)
                for descriptor, place in enumerate((os.open(os.devnull, os.O_RDWR),) * 2 + (said.fileno(),)):
                    os.dup2(place, descriptor)
                code = blockexport(arguments)
            finally:
                os._exit(code)
        with suppress(PermissionError):  # it was faster
            os.setpgid(process, process)
        return Process(process, said)

    def through(self, name: str, arguments: list[str]) -> None:
        """Let a command end."""
        began, process = time.monotonic(), self.begin(arguments)
        process.wait()
        self.seconds[name] = time.monotonic() - began
        if process.code != 0:
            self.faults.append(f"{name} ended with {process.code}: {process.said()}")

    def prepare(self) -> None:
        """What the commands change, what reports may hold, and how long each command takes."""
        for name in self.kinds:
            kind = KINDS[name]
            if kind.before:
                self.through(name, kind.before.split())
            if name == "report":
                for form in range(2):
                    self.through(name, kind.arguments(form))
                    self.reports.append(self.report())
            else:
                self.through(name, kind.arguments(0))

    def report(self) -> dict[str, bytes]:
        """The files of the report."""
        files = (self.folder / "report" / name for name in REPORT)
        return {path.name: path.read_bytes() for path in files if path.exists()}

    def once(self, number: int, *, full_disk: bool) -> None:
        """A command that is stopped by a kill or a full disk, or let through."""
        name, arguments = self.drawn()
        if number % 10 == 9:
            self.through(name, arguments)
            self.look(name, "let through", whole=True)
        elif full_disk:
            self.fill_once(name, arguments)
        else:
            self.kill_once(name, arguments)

    def kill_once(self, name: str, arguments: list[str]) -> None:
        """A command that is killed at a random moment."""
        process = self.begin(arguments)
        if not process.wait(self.moment(name)):
            process.kill()
            process.wait()
        self.look(name, "killed" if process.code == -signal.SIGKILL else f"ended with {process.code}")

    def drawn(self) -> tuple[str, list[str]]:
        """A kind of command, in one of its forms; those that take longer come less often."""
        name = self.random.choices(self.kinds, [1 / (self.seconds[kind] + 5) for kind in self.kinds])[0]
        return name, KINDS[name].arguments(self.random.randrange(2))

    def moment(self, name: str) -> float:
        """Seconds after the beginning."""
        return self.random.uniform(0, 1.05) * self.seconds[name]

    def look(self, name: str, how: str, *, whole: bool = False) -> None:
        """At what lies at a command's place now."""
        place = self.folder / KINDS[name].place
        if name == "report":
            finish_moves(place)
            state = "whole" if self.report() in self.reports else "absent" if not self.report() else "MIXED"
            problems = ["a mixture of two reports"] if state == "MIXED" else []
        elif not place.exists():
            state, problems = "absent", []
        else:
            found = verify_bundle(place).problems
            problems = [problem for problem in found if whole or HIDDEN_ALLOWED not in problem]
            state = "whole"
        if whole and (left := [p.name for p in self.folder.iterdir() if p.name.startswith(f".{place.name}.")]):
            problems.append(f"left behind: {left}")
        if whole and state == "absent":
            problems.append("nothing was made")
        self.seen[f"{name}: {how}, {state}"] += 1
        self.faults += [f"{name} {how}: {problem}" for problem in problems]

    def fill_once(self, name: str, arguments: list[str]) -> None:
        """A command whose disk is filled at a random moment."""
        process = self.begin(arguments)
        if not process.wait(self.moment(name)):
            fill(self.folder / "ballast")
            process.wait()
        (self.folder / "ballast").unlink(missing_ok=True)
        if process.code not in (0, 2):
            self.faults.append(f"{name} on a full disk ended with {process.code}: {process.said()}")
        self.look(name, f"ended with {process.code}")
        hidden = [p.name for p in self.folder.rglob(".*") if p.name.startswith(".")]
        self.faults += [f"{name} left {hidden}"] if hidden else []


def fill(path: Path) -> None:
    """Take all that is left of a file system."""
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        return


def package(program: object, *, package_path: IO[bytes]) -> None:
    """In place of the compiler."""
    writer = torch._C.PyTorchFileWriter(package_path)
    for number in range(20):
        writer.write_record(f"part{number}", bytes(50_000), 50_000)
    writer.write_end_of_file()


@contextmanager
def place_to_work(*, small: bool) -> Iterator[Path]:
    """A new folder, on a disk of its own where that is to fill up."""
    with tempfile.TemporaryDirectory(prefix="kills-") as made:
        if small:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", made], check=True)
        try:
            yield Path(made)
        finally:
            if small:
                subprocess.run(["umount", made], check=True)


def main() -> int:
    """Print what was seen; 1 where something should not have been."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--full-disk", action="store_true")
    parser.add_argument("--compiler", action="store_true", help="that of aoti itself")
    asked = parser.parse_args()
    for name in LIBRARIES:
        import_module(f"blockexport.{name}")
    if not asked.compiler:
        torch._inductor.aoti_compile_and_package = package  # type: ignore[assignment]
    kinds = [kind for kind in asked.only if kind != "trt" or find_spec("tensorrt_rtx") is not None]
    with place_to_work(small=asked.full_disk) as folder:
        run = Run(folder, kinds, asked.seed)
        run.prepare()
        for number in range(asked.count):
            run.once(number, full_disk=asked.full_disk)
            print(f"\r{number + 1} of {asked.count}, {len(run.faults)} faults", end="", file=sys.stderr, flush=True)
    print(json.dumps({"seconds": run.seconds, "seen": dict(sorted(run.seen.items())), "faults": run.faults}, indent=1))
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main())
