"""How many threads: what was asked for, OMP_NUM_THREADS, or the cores that affinity and control group leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from blockexport.models.errors import UsageError
from blockexport.runtime.onnx_session import session_options
from blockexport.runtime.threads import usable_cores, use_threads


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def machine(root: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], siblings: dict[int, str]) -> Path:
    """A machine of which the process may use some processors; `siblings` are those that share a core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    for cpu, names in siblings.items():
        write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", names)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


PAIRS = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6", 6: "2,6", 3: "3,7", 7: "3,7"}


@pytest.mark.parametrize(
    ("allowed", "siblings", "cores"),
    [(set(range(8)), PAIRS, 4), ({0, 4}, PAIRS, 1), ({0, 1, 5}, PAIRS, 2), ({0, 1, 2}, {}, 3)],
    ids=["two threads a core", "one core", "two cores of three processors", "nothing is said of cores"],
)
def test_a_core_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], siblings: dict[int, str], cores: int
) -> None:
    assert usable_cores(machine(tmp_path, monkeypatch, allowed, siblings)) == cores


LIMITS: list[tuple[str, dict[str, str], int]] = [
    ("0::/jobs/one", {"jobs/one/cpu.max": "200000 100000"}, 2),
    ("0::/jobs/one", {"jobs/cpu.max": "300000 100000", "jobs/one/cpu.max": "max 100000"}, 3),
    ("0::/jobs/one", {"jobs/one/cpu.max": "50000 100000"}, 1),
    ("0::/", {"cpu.max": "250000 100000"}, 2),
    ("0::/../host", {"cpu.max": "100000 100000"}, 1),
    ("4:cpu,cpuacct:/box", {"cpu/box/cpu.cfs_quota_us": "200000", "cpu/box/cpu.cfs_period_us": "100000"}, 2),
    ("4:cpu,cpuacct:/box", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ("4:cpu,cpuacct:/box", {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"}, 4),
    ("3:memory:/box", {"cpu.max": "100000 100000"}, 4),
    ("0::/jobs", {"jobs/cpu.max": "nonsense"}, 4),
]


@pytest.mark.parametrize(("group", "files", "cores"), LIMITS)
def test_the_control_groups_quota_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files: dict[str, str], cores: int
) -> None:
    machine(tmp_path, monkeypatch, set(range(8)), PAIRS)
    write(tmp_path / "proc/self/cgroup", group)
    for name, text in files.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert usable_cores(tmp_path) == cores


def test_what_was_asked_for_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert use_threads() == torch.get_num_threads() == 3
    assert use_threads(2) == torch.get_num_threads() == 2
    for nothing in ("", "0", "many", "-1"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert use_threads() == usable_cores()


def test_a_session_has_as_many_threads_as_pytorch() -> None:
    for count in (1, 2):
        use_threads(count)
        assert session_options().intra_op_num_threads == count
    assert session_options(threads=3).intra_op_num_threads == 3


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_a_number_that_cannot_be_meant_is_refused(count: int) -> None:
    before = torch.get_num_threads()
    with pytest.raises(UsageError, match=rf"--threads {count} is outside 1\.\."):
        use_threads(count)
    assert torch.get_num_threads() == before
