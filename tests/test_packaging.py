"""What gets installed: the wheel holds every folder, works alone, and claims no name but `blockexport`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support import REPOSITORY, shared_path

PACKAGES = ("models", "export", "runtime", "compare", "cli")
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def modules() -> set[Path]:
    """Every file that installs as a module; runtime/cpp holds C++ and the scripts that made its tables."""
    files = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    return {path for path in files if "cpp" not in path.parts} | set(REPOSITORY.glob("*.py"))


def cpp_sources() -> set[Path]:
    """What a C++ build from an installed blockexport needs."""
    cpp = REPOSITORY / "runtime" / "cpp"
    folders = ("cmake", "include", "src", "samples")
    found = {path for folder in folders for path in (cpp / folder).rglob("*") if path.is_file()}
    return found | set(cpp.glob("*.txt"))


def data_files() -> set[Path]:
    """The page of a report (Jinja templates and a style sheet), other texts, and the mark of a typed package."""
    folders = (REPOSITORY / "compare" / "report" / "templates", REPOSITORY / "export" / "templates")
    return {path for folder in folders for path in folder.iterdir()} | {REPOSITORY / "py.typed"}


def check(command: list[str | Path], cwd: Path) -> str:
    """Run a command with nothing of this session's Python in its environment; its stdout, or a failure with both."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources so that no earlier build leaks into it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "__init__.py",
        "cpp_project.py",
        "bundle_export.py",
        "library.py",
        "py.typed",
    ):
        shutil.copy(REPOSITORY / name, source)
    check(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, source],
        cwd=folder,
    )
    (built,) = folder.glob("blockexport-*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel, and this one's libraries (but not its editable blockexport) after
    it: a path file adds a folder without running the path files in it."""
    folder = tmp_path_factory.mktemp("installed")
    check([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], cwd=folder)
    python = folder / "venv" / "bin" / "python"
    check([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel], cwd=folder)
    (site_packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_every_onnx_runtime_that_is_asked_for_has_the_cache_writes_of_a_bundle() -> None:
    """TensorScatter has a kernel from 1.25 on: in each extra, and in what is said of the C++ library."""
    bounds = {
        extra: re.fullmatch(r"onnxruntime(?:-gpu)?>=(\d+)\.(\d+)", line)
        for extra, lines in SETTINGS["project"]["optional-dependencies"].items()
        for line in lines
        if re.match(r"onnxruntime(?!-genai)", line)
    }
    assert bounds.keys() == {"cpu", "gpu", "test"}
    for extra, bound in bounds.items():
        assert bound is not None and (int(bound[1]), int(bound[2])) >= (1, 25), extra
    page = " ".join((REPOSITORY / "docs/tutorials/cpp-program.md").read_text().split())
    assert "Debian 13 has ONNX Runtime 1.21" in page and "need 1.25 or later" in page
    assert "links the library inside the Python wheel" in page and "-DONNXRUNTIME_LIBRARY" in page
    readme = (REPOSITORY / "README.md").read_text()
    assert re.search(r"In C\+\+, .*wheel", readme) and "docs/tutorials/cpp-program.md" in readme


def test_the_packages_listed_are_the_folders_there() -> None:
    folders = {
        "blockexport." + ".".join(path.parent.relative_to(REPOSITORY).parts)
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("__init__.py")
    }
    listed = SETTINGS["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted({"blockexport", *folders})
    with_code = {path.parent for path in modules()}
    assert all((folder / "__init__.py").exists() for folder in with_code)


def test_the_top_level_has_only_the_folders_it_should(tmp_path: Path) -> None:
    done = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git clone")
    folders = {line.split("/", 1)[0] for line in done.stdout.splitlines() if "/" in line}
    assert folders <= {*PACKAGES, "tests", "benchmarks", "docs", ".ci"}


def test_the_wheel_holds_every_file_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        "blockexport/" + path.relative_to(REPOSITORY).as_posix() for path in modules() | cpp_sources() | data_files()
    }
    assert names == expected
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_no_bare_name_is_importable_from_the_wheel(environment: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {PACKAGES!r} if u.find_spec(n) is not None])"
    assert check([environment / "venv" / "bin" / "python", "-c", code], cwd=environment) == "[]\n"


def test_the_wheel_is_what_runs(environment: Path) -> None:
    code = "import blockexport.cli.main as m; print(m.__file__)"
    path = check([environment / "venv" / "bin" / "python", "-c", code], cwd=environment)
    assert Path(path.strip()).is_relative_to(environment)


def test_the_installed_command_exports(environment: Path) -> None:
    command = environment / "venv" / "bin" / "blockexport"
    check([command, "onnx", shared_path("models/stories260K"), "-o", "bundle"], cwd=environment)
    bundle = environment / "bundle"
    for name in ("manifest.json", "model.onnx", "model.safetensors", "parity/report.json"):
        assert (bundle / name).is_file(), name
    assert check([command, "--version"], cwd=environment).startswith(f"blockexport {SETTINGS['project']['version']}")


def test_every_pinned_version_is_allowed_by_its_range() -> None:
    """constraints.txt names every library that the extras for the CPU and the tests ask for, inside its range."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    extras = SETTINGS["project"]["optional-dependencies"]
    for text in [
        *SETTINGS["project"]["dependencies"],
        *extras["cpu"],
        *extras["rtx"],
        *extras["serve"],
        *extras["ray"],
        *extras["test"],
        *extras["docs"],
    ]:
        wanted = Requirement(text)
        assert canonicalize_name(wanted.name) in pinned, f"{wanted.name} is not pinned"
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), text
