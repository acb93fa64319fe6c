"""What a benchmark measures, and the figures of one turn: plain records that go to a process and come back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from blockexport.models.roofline import Footprint
from blockexport.runtime.compute_device import CPU_NAME

SHORT, LONG = 64, 1024  # tokens of the contexts that are measured where none is named


class BenchCase(NamedTuple):
    """Rows that are run at once, and tokens of each row that are in the cache when decoding begins."""

    batch_size: int
    context: int


@dataclass(frozen=True)
class BenchPlan:
    """What every side does in each of its turns.

    Attributes:
        cases: in the order in which they are run.
        steps: timed decode steps of a case.
        rounds: turns of each side, and so samples of each figure.
        threads: processor threads of each side.
    """

    cases: tuple[BenchCase, ...]
    steps: int
    rounds: int
    threads: int


@dataclass(frozen=True)
class OpenedAs:
    """How a bundle is opened: see `open_decoder` for the members."""

    max_sequence_length: int | None = None
    model: str | None = None
    exact: bool = False
    low_memory: bool = False
    device: str = CPU_NAME


@dataclass(frozen=True)
class Side:
    """One side of a benchmark: what is run, and by what.

    Attributes:
        name: what it is called in the result.
        runner: dotted path of what makes its `Runner` of a `Side` and a `BenchPlan`, as `package.module:name`.
        path: a bundle, a folder or a file.
        vocab_size: tokens that it knows.
        capacity: cache slots that a row may have.
        backend: what runs it, as `--backend` calls it; of our own bundles alone.
        max_sequence_length: cache slots M, when other than its own.
        opened: how a bundle of ours is opened.
        program: the C++ program that runs it; None where Python does.
        device: where it computes, as PyTorch names devices.
        element: the name of the type that it computes in.
        most_rows: that it can run at once; None where there is no limit known.
        footprint: for its roofline; None where its file does not tell what a step reads.
        notes: what a reader has to know to compare its figures.
    """

    name: str
    runner: str
    path: Path
    vocab_size: int
    capacity: int
    backend: str | None = None
    max_sequence_length: int | None = None
    opened: OpenedAs = OpenedAs()
    program: Path | None = None
    device: str = "cpu"
    element: str = "float32"
    most_rows: int | None = None
    footprint: Footprint | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether a decoder of this project runs it."""
        return self.backend is not None


@dataclass(frozen=True)
class CaseSample:
    """A case, run once.

    Attributes:
        first_token_seconds: from the prompt's tokens to the first new one.
        decode_seconds: of all the steps.
        prefill_joules: of the whole processor meanwhile; None where the machine does not tell.
        decode_joules: likewise.
    """

    first_token_seconds: float
    decode_seconds: float
    prefill_joules: float | None = None
    decode_joules: float | None = None


@dataclass(frozen=True)
class Memory:
    """Memory of a process in bytes; None where the system does not tell.

    Attributes:
        resident: in use, pages of mapped files included.
        own: of that, what no file holds, so what the system cannot take away.
        peak: the most that was ever resident.
    """

    resident: int | None
    own: int | None
    peak: int | None


@dataclass(frozen=True)
class Turn:
    """What one process measured of its side.

    Attributes:
        version: of the library that ran it.
        load_seconds: from the call that opens it until it could run; the library had been imported before.
        samples: one for each case.
        before: memory before it was opened: the interpreter and the libraries.
        after: memory after the last case.
    """

    version: str
    load_seconds: float
    samples: tuple[CaseSample, ...]
    before: Memory
    after: Memory


def slots_needed(context: int, steps: int) -> int:
    """Of a row. The first new token comes of the prompt; the last needs none, but onnxruntime-genai counts it too."""
    return context + steps + 1


def usual_contexts(capacity: int, steps: int) -> list[int]:
    """A short context and a long one, or what the cache holds before `steps` more tokens."""
    room = capacity - slots_needed(0, steps)
    return [context for context in (SHORT,) if context < room] + [min(LONG, room)]


def prompt_ids(case: BenchCase, vocab_size: int) -> list[list[int]]:
    """The same tokens for every side, `context` of them in each row: spread over the vocabulary, rows unlike."""
    return [
        [(7919 * position + 104_729 * row + 5) % vocab_size for position in range(case.context)]
        for row in range(case.batch_size)
    ]
