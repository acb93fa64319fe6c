"""Every command and every Python example of README.md and docs/, run in order in one folder as a reader would.

In a `console` block the lines after `$ ` are run and must exit 0. An HTML comment before a block says otherwise:

    <!-- exit 2 -->            the commands must end with this code instead
    <!-- exact -->             the output must be what the page shows, line by line
    <!-- not run: reason -->   the block is not run here

`python` blocks are run as scripts. The folder holds what the pages take as given: SmolLM2's GGUF file under the name it
has in its package. The README comes first: the bundle `smollm2` of the other pages is made there, by the command that
`judged_smollm2` runs for other tests too. A command or a script that an earlier page had in the same words is not run
again, as it would do the same; what it said is held against what the page shows.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from blockexport.compare.checks.catalogue import ALL_CHECKS
from blockexport.runtime.backends import BACKENDS
from blockexport.runtime.foreign.names import CACHES, INPUTS
from tests.as_reader import EXPORT_SMOLLM2, Done, run_as_reader
from tests.runtime.echo_decoder import ECHO
from tests.support import REPOSITORY, smollm2_gguf

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n+)?```(?P<language>console|sh|bash|python)\n(?P<body>.*?)```", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment before it."""

    page: str
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


def blocks(text: str, page: str) -> list[Block]:
    return [
        Block(page, text[: m.start("body")].count("\n"), m["mark"] or "", m["language"], m["body"])
        for m in BLOCK.finditer(text)
    ]


def in_reading_order() -> list[Path]:
    """README.md, then the pages that the navigation of mkdocs.yml names, in its order; a page missing there is last."""
    named = re.findall(r"^ +- (\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [REPOSITORY / "docs" / name for name in named]
    others = sorted(set((REPOSITORY / "docs").rglob("*.md")) - set(pages))
    return [REPOSITORY / "README.md", *(page for page in pages if page.exists()), *others]


PAGES = in_reading_order()
BLOCKS = [block for page in PAGES for block in blocks(page.read_text(), page.relative_to(REPOSITORY).as_posix())]


class Reader:
    """Runs what a reader of the pages would, in one folder.

    Attributes:
        folder: where.
        done: what each command or script said and ended with.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[str, Done] = {}

    def command(self, words: str) -> Done:
        """What a command says and ends with, now or when an earlier page had it.

        Without `--force`, which only lets `onnx` replace what lies there (tests/cli/test_onnx_bad_input.py).
        """
        words = words.replace(" --force", "")
        return self._once(words, words)

    def script(self, text: str) -> Done:
        """The same for a script in Python."""
        return self._once(text, [sys.executable, "-c", text])

    def _once(self, text: str, run: str | list[str]) -> Done:
        if text not in self.done:
            self.done[text] = run_as_reader(run, self.folder)
        return self.done[text]

    def take(self, bundle: Path) -> None:
        """The bundle that EXPORT_SMOLLM2 has made elsewhere, as if it had been run here.

        As links to its files: what writes into one of them is found out by `MadeOnce.changed`.
        """
        shutil.copytree(bundle, self.folder / bundle.name, copy_function=os.link)
        self.done[EXPORT_SMOLLM2] = Done(EXPORT_SMOLLM2, 0, "", "")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    reader = Reader(tmp_path_factory.mktemp("readme"))
    gguf = smollm2_gguf()
    (reader.folder / gguf.name).symlink_to(gguf)
    return reader


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}-line-{block.line}")
def test_a_block_does_what_its_page_says(block: Block, reader: Reader, request: pytest.FixtureRequest) -> None:
    if EXPORT_SMOLLM2 in (command for command, _ in block.commands) and EXPORT_SMOLLM2 not in reader.done:
        reader.take(request.getfixturevalue("judged_smollm2"))
    does_what_its_page_says(block, reader)


def does_what_its_page_says(block: Block, reader: Reader) -> None:
    if block.mark.startswith("not run: "):
        pytest.skip(f"{block.page}:{block.line}: {block.mark}")
    if block.language == "python":
        done = reader.script(block.body)
        assert done.returncode == 0, done.stderr
        return
    assert block.commands, "a block without `$ ` shows nothing to run"
    code = int(block.mark.removeprefix("exit ")) if block.mark.startswith("exit ") else 0
    for command, shown in block.commands:
        done = reader.command(command)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        if block.mark == "exact":
            assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines(), command


def test_the_pages_are_more_than_prose() -> None:
    """The blocks are found at all, and the marks are ones that the test above understands."""
    run_here = [block for block in BLOCKS if not block.mark.startswith("not run: ")]
    assert sum(len(block.commands) for block in run_here) >= 15
    understood = re.compile(r"exact|exit \d+|not run: .+|")
    assert [block.mark for block in BLOCKS if not understood.fullmatch(block.mark)] == []


def test_a_wrong_example_would_be_caught(tmp_path: Path) -> None:
    text = "<!-- exact -->\n\n```console\n$ echo one \\\n    two\none two\n$ echo three\nfour\n```\n"
    block = blocks(text, "page.md")[0]
    assert (block.page, block.mark, block.language, block.line) == ("page.md", "exact", "console", 3)
    assert block.commands == [("echo one      two", "one two\n"), ("echo three", "four\n")]
    with pytest.raises(AssertionError, match="echo three"):
        does_what_its_page_says(block, Reader(tmp_path))


def test_the_readme_exports_the_bundle_that_others_read() -> None:
    first = next(command for block in BLOCKS for command, _ in block.commands if " onnx " in command)
    assert first == EXPORT_SMOLLM2


def test_the_readme_is_a_front_door() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 200


def generated_pages() -> ModuleType:
    """docs/generated_pages.py, which is no part of a package."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    source = importlib.util.spec_from_file_location("generated_pages", REPOSITORY / "docs" / "generated_pages.py")
    assert source is not None and source.loader is not None
    pages = importlib.util.module_from_spec(source)
    source.loader.exec_module(pages)
    return pages


def anchors(page: Path) -> set[str]:
    """What GitHub and MkDocs call the headings of a page in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_relative_link_leads_somewhere() -> None:
    """To a file that is there, and to a heading of it."""
    links = [
        (page, *target.partition("#")[::2])
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert len(links) > 50 and sum(anchor != "" for _, _, anchor in links) > 5
    dead = [
        f"{page.name}: {target}#{anchor}"
        for page, target, anchor in links
        if not (place := page.parent / target if target else page).exists() or (anchor and anchor not in anchors(place))
    ]
    assert dead == []


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"^ +- (\S+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {page.relative_to(REPOSITORY / "docs").as_posix() for page in (REPOSITORY / "docs").rglob("*.md")}
    assert there == set(named)


def test_the_table_of_checks_is_the_list_of_checks() -> None:
    text = (REPOSITORY / "docs" / "reference" / "checks.md").read_text()
    table = text[text.index("| check | looks at |") :].split("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [check.name for check in ALL_CHECKS]


def test_the_table_of_lint_rules_is_the_list_of_rules() -> None:
    table = (REPOSITORY / "docs" / "reference" / "lint-rules.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE))
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "export" / "lint").glob("*_rules.py")]
    rules = re.findall(r"\bTrap\(\s*\"([a-z-]+)\"", "".join(sources))
    assert set(re.findall(r"`([a-z-]+)`", rows)) == set(rules)


def test_every_command_has_an_example() -> None:
    """Each command of `blockexport --help` is run, or at least shown, on a page."""
    commands = {path.name.removesuffix("_command.py") for path in (REPOSITORY / "cli").glob("*_command.py")}
    shown = {
        command.split()[1] for block in BLOCKS for command, _ in block.commands if command.startswith("blockexport ")
    }
    assert commands - shown == set()


def test_every_module_and_command_is_in_the_reference() -> None:
    """What docs/generated_pages.py makes covers every module that installs, and every option of every command."""
    pages = generated_pages()
    text = "\n".join(pages.api_pages().values())
    files = (path for folder in pages.FOLDERS for path in (REPOSITORY / folder).rglob("*.py"))
    expected = {
        "blockexport." + ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for path in files
        if "cpp" not in path.parts and path.name != "__init__.py"
    } | {f"blockexport.{name}" for name in ("bundle_export", "library")}
    assert set(re.findall(r"^::: (\S+)$", text, re.MULTILINE)) == expected
    commands = pages.commands_page()
    assert "## blockexport onnx" in commands and "--max-sequence-length" in commands
    names = pages.foreign_names_page()
    for caches in CACHES:
        assert all(f"`{name}`" in names for name in (*caches.past, *(caches.present or ()))), caches
    assert all(f"| `{role}` |" in names for role in INPUTS)
    for room in ("checkpoints", "tokenizer", "explain"):
        assert f">{room}</text>" in pages.house()


def test_generated_pages_are_up_to_date() -> None:
    stale = [
        place
        for place, text in generated_pages().committed().items()
        if (REPOSITORY / "docs" / place).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run: python docs/generated_pages.py"


def test_a_new_backend_is_in_the_reference() -> None:
    pages = generated_pages()
    BACKENDS.append(ECHO)
    try:
        page = pages.backends_page()
    finally:
        BACKENDS.remove(ECHO)
    assert "## echo" in page and "an echo of eager PyTorch" in page
