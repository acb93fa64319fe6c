"""Rules for the whole suite: what a test marked `gpu` does on a machine without one."""

from __future__ import annotations

import pytest

from tests.support import absent

TABLE = "table"
"""The property (`record_property`) under which a test hands in a line for a table at the end of the run."""


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


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where torch sees no CUDA device, or fail them when BLOCKEXPORT_REQUIRE_GPU=1."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        absent("torch sees no CUDA device", "BLOCKEXPORT_REQUIRE_GPU")
