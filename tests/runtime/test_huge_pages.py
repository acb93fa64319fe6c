"""Weights are moved into huge pages where steps are taken for speed, with nothing else touched or changed."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from blockexport.runtime import onnx_decoder
from blockexport.runtime.huge_pages import in_huge_pages, without
from blockexport.runtime.open import open_decoder

MANY = 8 << 20


def test_what_is_new_is_found_beside_below_and_above_what_was_there() -> None:
    before = [(10, 20), (30, 40)]
    assert list(without([(5, 25), (28, 40), (50, 60)], before)) == [(5, 10), (20, 25), (28, 30), (40, 40), (50, 60)]
    assert list(without([(10, 50)], before)) == [(10, 10), (20, 30), (40, 50)]
    assert list(without([(0, 10), (20, 30), (40, 50)], before)) == [(0, 10), (20, 30), (40, 50)]


def _filled() -> np.ndarray:
    """Memory in a mapping of its own: its edges have other flags, so that no neighbour joins it."""
    edge = mmap.PAGESIZE
    memory = mmap.mmap(-1, MANY + 2 * edge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTDUMP, edge, MANY)
    here = np.frombuffer(memory, np.uint8)[edge:-edge]
    here[:] = np.arange(MANY, dtype=np.uint32) % 251
    return here


def _huge(here: np.ndarray) -> int:
    """Kilobytes of a mapping that are in huge pages."""
    address = here.ctypes.data
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(errors="replace")):
        start, end = (int(text, 16) for text in entry.split()[0].split("-"))
        if start <= address < end:
            return int(entry.partition("AnonHugePages:")[2].split()[0])
    raise AssertionError("no such mapping")


@pytest.fixture
def can_collapse() -> None:
    """Skips where this system has all memory in huge pages already, or cannot move any there."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("no smaps here")
    probe = _filled()
    if _huge(probe):
        pytest.skip("all memory is in huge pages")
    middle = (probe.ctypes.data + (4 << 20)) >> 21 << 21
    if ctypes.CDLL(None).madvise(ctypes.c_void_p(middle), ctypes.c_size_t(2 << 20), 25):
        pytest.skip("this kernel cannot move memory into huge pages")


@pytest.mark.usefixtures("can_collapse")
def test_memory_that_is_new_moves_and_keeps_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockexport.runtime.huge_pages.time", _Clock([0.0, 1.0]))  # in which it stands still
    old = _filled()
    with in_huge_pages():
        new = _filled()
    assert _huge(new) >= (MANY >> 10) - 4096
    assert _huge(old) == 0
    assert np.array_equal(new, old)


@pytest.mark.usefixtures("can_collapse")
def test_it_takes_no_longer_than_what_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockexport.runtime.huge_pages.time", _Clock([0.0, 1.0, 1.5, 2.0]))
    with in_huge_pages():
        new = _filled()
    assert _huge(new) == 2048  # one page, at 1.5


class _Clock:
    """Gives these times, and the last of them from then on."""

    def __init__(self, times: list[float]) -> None:
        self._times = times

    def monotonic(self) -> float:
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


def test_only_a_session_that_repacks_its_weights_for_speed_is_moved(
    judged_stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []

    @contextmanager
    def noted() -> Iterator[None]:
        moved.append(True)
        yield

    monkeypatch.setattr(onnx_decoder, "in_huge_pages", noted)
    open_decoder(judged_stories, exact=True)
    open_decoder(judged_stories, low_memory=True)
    assert moved == []
    open_decoder(judged_stories)
    assert moved == [True]


def test_a_file_of_any_name_may_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff \x0brw-p")
    with path.open("wb+") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        with mmap.mmap(file.fileno(), mmap.PAGESIZE), in_huge_pages():
            pass
