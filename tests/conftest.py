"""Rules for the whole suite: in which order files are run, what they share, what a test marked `gpu` does on a machine
without one, and how a run on a GPU ends."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import gpu_run
from tests.as_reader import EXPORT_SMOLLM2, run_as_reader
from tests.file_order import longest_first
from tests.made_once import MadeOnce
from tests.support import REPOSITORY, shared_path, smollm2_gguf

if TYPE_CHECKING:
    from tests.foreign_files import ForeignExports

TABLE = "table"
"""The property (`record_property`) under which a test hands in a line for a table at the end of the run."""

MACHINE = pytest.StashKey[gpu_run.Machine]()
HEADLINE = pytest.StashKey[str]()

# What calls the kernels of AOTInductor is compiled without optimising, the kernels as for users; each model once.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(REPOSITORY / "build" / "inductor"))


@pytest.fixture(scope="session", autouse=True)
def _no_lines_of_progress() -> Iterator[None]:
    """Tests count the lines that a command says; on a busy machine it would also say how far it is."""
    from blockexport.cli import console

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "PLAIN_EVERY", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_notes_in_the_home_of_whoever_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is built here is noted in a folder of this run's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeOnce]:
    """What the tests of all workers read, each thing made by the first to ask for it."""
    own = tmp_path_factory.getbasetemp()
    made = MadeOnce((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "made-once")
    yield made
    assert made.changed() == [], "what is shared is for reading: a test that changes it takes a copy"


@pytest.fixture(scope="session")
def foreign(made_once: MadeOnce) -> ForeignExports:
    """Decoders the way other tools export them."""
    from tests.foreign_files import ForeignExports

    return ForeignExports(made_once)


@pytest.fixture(scope="session")
def judged_stories(made_once: MadeOnce) -> Path:
    """stories260K as a judged bundle with 512 cache slots, to read."""
    from blockexport.cli.main import main

    def make(bundle: Path) -> None:
        assert main(["onnx", str(shared_path("models/stories260K")), "-o", str(bundle), "--quiet"]) == 0

    return made_once.path("stories260K", make)


@pytest.fixture(scope="session")
def judged_smollm2(made_once: MadeOnce) -> Path:
    """SmolLM2-135M-Instruct as a judged bundle with 512 cache slots, made by the README's command; to read."""

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / smollm2_gguf().name).symlink_to(smollm2_gguf())
        done = run_as_reader(EXPORT_SMOLLM2, folder)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    return made_once.path("smollm2", make) / "smollm2"


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist hand files out in the order below; by itself it begins with those of most tests."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items[:] = longest_first(items, str(REPOSITORY / "tests"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that tests handed in, under the name of their file."""
    lines: dict[str, list[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                told = [str(value) for name, value in report.user_properties if name == TABLE]
                lines.setdefault(report.nodeid.partition("::")[0], []).extend(told)
    for file, told in sorted(lines.items()):
        if told:
            terminalreporter.section(file)
            terminalreporter.write_line("\n".join(told))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let commands be interrupted even where this run was started in the background, which ignores SIGINT and hands
    that on. With BLOCKEXPORT_REQUIRE_GPU=1, end a run that could test nothing before it begins."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get(gpu_run.VARIABLE) == "1":
        session.config.stash[MACHINE] = gpu_run.look_at_machine()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Find the headline of a run that requires a GPU; a run that tested nothing has not passed."""
    machine = session.config.stash.get(MACHINE, None)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if machine is not None and reporter is not None:
        session.config.stash[HEADLINE], session.exitstatus = gpu_run.headline(machine, reporter.stats, exitstatus)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print that headline as the last line."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and HEADLINE in config.stash:
        reporter.write_line(config.stash[HEADLINE], bold=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where torch sees no CUDA device."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
