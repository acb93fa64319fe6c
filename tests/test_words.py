"""The words of messages, help, docs and comments: idiom that was found to puzzle readers does not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import REPOSITORY

# What is not to be written, and what to write in its place.
BANNED = {
    r"left away": "omitted",
    r"\bis no bundle\b": "is not a bundle",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bto lie in\b": "to be in",
    r"\bfor want of\b": "because there is no",
    r"\bof (its|their) own accord\b": "by itself, by themselves",
    r"\b[Ii]nitialiser": "initializer, as ONNX spells it",
    r"\b[Bb]ack ends?\b": "backend",
    r"\bGPU generations?\b": "compute capability",
    r"\b(placed|stands|slots?|tokens?|steps?|calls?|logits) behind\b": "after",
    r'"""For people\.': "say what the text is",
}
SPOKEN = (".py", ".md", ".cpp", ".hpp", ".jinja")


def spoken_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    names = [name for name in listed.stdout.splitlines() if name.endswith(SPOKEN) and name != "tests/test_words.py"]
    return [REPOSITORY / name for name in names]


@pytest.mark.parametrize("pattern", BANNED)
def test_translated_idiom_does_not_come_back(pattern: str) -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: write {BANNED[pattern]!r}: {line.strip()}"
        for path in spoken_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert found == []
