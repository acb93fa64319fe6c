"""A bundle in a C++ program: `speed`, of the project that `blockexport cpp` writes, in a process of its own."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

from blockexport.models.errors import NotJudgedError
from blockexport.runtime.backends import backend_named
from blockexport.runtime.bench.bench_plan import BenchPlan, CaseSample, Memory, Side
from blockexport.runtime.bench.meter import Meter, memory_of_this_process
from blockexport.runtime.bench.runner import Runner
from blockexport.runtime.compute_device import CPU_NAME


class CppRunner(Runner):
    """Asks the program, which was built for this, line by line. The times are its own loop's."""

    def __init__(self, side: Side, plan: BenchPlan) -> None:
        super().__init__(side, plan)
        self._program = subprocess.Popen(
            _command(side, plan), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def version(self) -> str:
        return f"blockexport {importlib.metadata.version('blockexport')} in {self.side.program}"

    def load(self) -> None:
        self._tell("load")
        self._hear()

    def run(self, prompt: list[list[int]], steps: int, meter: Meter) -> CaseSample:
        start = meter.read()
        self._tell(" ".join(map(str, ("run", len(prompt), steps, *(token for row in prompt for token in row)))))
        first_seconds = float(self._hear())
        first = meter.read()
        decode_seconds = float(self._hear())
        end = meter.read()
        return CaseSample(first_seconds, decode_seconds, first.since(start).joules, end.since(first).joules)

    def memory(self) -> Memory:
        return memory_of_this_process(Path(f"/proc/{self._program.pid}/status"))

    def _tell(self, line: str) -> None:
        assert self._program.stdin is not None
        try:
            self._program.stdin.write(f"{line}\n")
            self._program.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def _hear(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline() or self._fail()

    def _fail(self) -> str:
        _, said = self._program.communicate()
        why = " ".join(said.split()) or f"it ended with {self._program.returncode}"
        raise NotJudgedError(f"{self.side.program} could not run {self.side.path}: {why}. Leave it out of --against")


def _command(side: Side, plan: BenchPlan) -> list[str]:
    opened, command = side.opened, [str(side.program), str(side.path), "--asked", "--backend", str(side.backend)]
    if backend_named(str(side.backend)).runs_onnx:
        command += ["--threads", str(plan.threads)]
    if opened.device != CPU_NAME:
        command += ["--device", opened.device]
    if opened.max_sequence_length is not None:
        command += ["--max-sequence-length", str(opened.max_sequence_length)]
    return command + [
        flag for flag, wanted in (("--exact", opened.exact), ("--low-memory", opened.low_memory)) if wanted
    ]
