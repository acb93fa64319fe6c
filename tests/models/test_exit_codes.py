"""One set of exit codes: the documentation's table is theirs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from blockexport.models.exit_codes import ExitCode
from tests.support import REPOSITORY

COMMANDS = sorted((REPOSITORY / "cli").glob("*_command.py"))


def test_the_documented_table_is_that_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| code")]
    assert rows == [f"| {int(code)} | {code.meaning} |" for code in ExitCode]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_command_returns_its_exit_code(path: Path) -> None:
    """And neither a number nor by an exception of Typer's."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"Exit", "Abort"}
    command = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))
    assert command.returns is not None and ast.unparse(command.returns) == "ExitCode"
