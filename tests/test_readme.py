"""Every command and every Python example of README.md, run in order in one folder as a reader would.

In a `console` block the lines after `$ ` are run and must exit 0. An HTML comment before a block says otherwise:

    <!-- exit 2 -->            the commands must end with this code instead
    <!-- exact -->             the output must be what the README shows, line by line
    <!-- not run: reason -->   the block is not run here

`python` blocks are run as scripts. The folder holds what the README takes as given: SmolLM2's GGUF file under the name
it has in its package.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from blockexport.compare.checks.catalogue import ALL_CHECKS
from tests.support import REPOSITORY, smollm2_gguf

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n+)?```(?P<language>console|sh|bash|python)\n(?P<body>.*?)```", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block of the README, with the comment before it."""

    line: int
    mark: str
    language: str
    body: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command (continued lines joined) with the output shown below it."""
        found: list[tuple[str, str]] = []
        for line in self.body.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif found:
                command, output = found[-1]
                found[-1] = (command, output + line + "\n")
        return found


def blocks(text: str) -> list[Block]:
    return [
        Block(text[: m.start("body")].count("\n"), m["mark"] or "", m["language"], m["body"])
        for m in BLOCK.finditer(text)
    ]


README = blocks((REPOSITORY / "README.md").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    gguf = smollm2_gguf()
    (folder / gguf.name).symlink_to(gguf)
    return folder


def run(command: str | list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("block", README, ids=lambda block: f"line-{block.line}")
def test_a_block_of_the_readme_does_what_it_says(block: Block, folder: Path) -> None:
    if block.mark.startswith("not run: "):
        pytest.skip(f"README.md:{block.line}: {block.mark}")
    if block.language == "python":
        done = run([sys.executable, "-c", block.body], folder)
        assert done.returncode == 0, done.stderr
        return
    assert block.commands, "a block without `$ ` shows nothing to run"
    code = int(block.mark.removeprefix("exit ")) if block.mark.startswith("exit ") else 0
    for command, shown in block.commands:
        done = run(command, folder)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        if block.mark == "exact":
            assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines(), command


def test_the_readme_is_more_than_prose() -> None:
    """The blocks are found at all, and the marks are ones that the test above understands."""
    run_here = [block for block in README if not block.mark.startswith("not run: ")]
    assert sum(len(block.commands) for block in run_here) >= 10
    understood = re.compile(r"exact|exit \d+|not run: .+|")
    assert [block.mark for block in README if not understood.fullmatch(block.mark)] == []


def test_a_wrong_example_would_be_caught(tmp_path: Path) -> None:
    block = blocks("<!-- exact -->\n\n```console\n$ echo one \\\n    two\none two\n$ echo three\nfour\n```\n")[0]
    assert (block.mark, block.language, block.line) == ("exact", "console", 3)
    assert block.commands == [("echo one      two", "one two\n"), ("echo three", "four\n")]
    with pytest.raises(AssertionError, match="echo three"):
        test_a_block_of_the_readme_does_what_it_says(block, tmp_path)


def test_every_relative_link_leads_somewhere() -> None:
    text = (REPOSITORY / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (REPOSITORY / target).exists()] == []


def test_the_table_of_checks_is_the_list_of_checks() -> None:
    text = (REPOSITORY / "README.md").read_text()
    table = text[text.index("| check | asks |") :].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [check.name for check in ALL_CHECKS]


def test_every_command_has_an_example() -> None:
    """Each command of `blockexport --help` is run, or at least shown, on the page."""
    commands = {path.name.removesuffix("_command.py") for path in (REPOSITORY / "cli").glob("*_command.py")}
    shown = {
        command.split()[1] for block in README for command, _ in block.commands if command.startswith("blockexport ")
    }
    text = (REPOSITORY / "README.md").read_text()
    assert {name for name in commands - shown if f"`blockexport {name} " not in text} == set()
