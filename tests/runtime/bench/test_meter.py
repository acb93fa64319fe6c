"""What the system tells, from files as Linux has them."""

from __future__ import annotations

from pathlib import Path

from blockexport.runtime.bench.bench_plan import Memory
from blockexport.runtime.bench.meter import EnergyCounter, Meter, memory_of_this_process, processor_name

RANGE = 999_999


def package(system: Path, name: str, microjoules: int) -> Path:
    folder = system / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return folder


def test_energy_is_that_of_all_packages_and_of_no_part_twice(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 100)
    package(tmp_path, "intel-rapl:0:0", 70)
    package(tmp_path, "intel-rapl:1", 999_990)
    counter = EnergyCounter(tmp_path)
    assert counter.joules() == 0.0
    package(tmp_path, "intel-rapl:0", 500_100)
    package(tmp_path, "intel-rapl:0:0", 300_000)
    assert counter.joules() == 0.5
    package(tmp_path, "intel-rapl:1", 15)  # it has passed the end of its range: 10 to the end, and 15 more
    assert counter.joules() == 0.5 + 25e-6


def test_energy_that_is_not_told_is_none(tmp_path: Path) -> None:
    assert EnergyCounter(tmp_path).joules() is None
    (package(tmp_path, "intel-rapl:0", 1) / "energy_uj").unlink()
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").mkdir()  # may not be read
    assert EnergyCounter(tmp_path).joules() is None


def test_a_meter_reads_before_and_after() -> None:
    seconds, joules = iter([1.0, 4.5, 10.0, 11.0]), iter([3.0, 3.25, None, 7.0])
    meter = Meter(clock=lambda: next(seconds), joules=lambda: next(joules))
    done: list[str] = []
    reading = meter.over(lambda: done.append("work"))
    assert (reading.seconds, reading.joules, done) == (3.5, 0.25, ["work"])
    reading = meter.over(lambda: None)
    assert (reading.seconds, reading.joules) == (1.0, None)


def test_memory_and_processor_are_read_or_not_told(tmp_path: Path) -> None:
    status = tmp_path / "status"
    lines = ["VmHWM:\t    2048 kB", "VmRSS:\t    1500 kB", "RssAnon:\t     700 kB", "RssFile:\t     800 kB"]
    status.write_text("\n".join(["Name:\tpython", *lines, "Threads:\t3\n"]))
    assert memory_of_this_process(status) == Memory(1500 * 1024, 700 * 1024, 2048 * 1024)
    assert memory_of_this_process(tmp_path / "none") == Memory(None, None, None)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Processor @ 2.00GHz\n\nprocessor\t: 1\n")
    assert processor_name(tmp_path / "cpuinfo") == "A Processor @ 2.00GHz"
    assert processor_name(tmp_path / "none") == ""
