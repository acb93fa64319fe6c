"""The layering, held by the code itself: import contracts, and each heavy library in the file that is about it.

The direction between packages is import-linter's (`make lint`); the first test shows that the contract can fail.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from blockexport.models.element_types import ELEMENT_TYPES
from blockexport.models.families.every_family import FAMILIES, GGUF_FAMILIES
from tests.support import REPOSITORY

PACKAGES = ("models", "export", "runtime", "compare", "cli")

# Where a library may be imported, at the top of a file or inside a function: paths or patterns. Doctor looks at what
# it reports on.
HOMES: dict[str, set[str]] = {
    "onnxruntime": {"runtime/onnx_session.py"},
    "onnx": {
        "export/bundle/check_graph.py",
        "export/bundle/external_data.py",
        "export/bundle/dataflow/*.py",
        "export/bundle/model_bounds.py",
        "export/bundle/onnx_file.py",
        "export/bundle/verify_graph.py",
        "export/graph/*.py",
        "export/lint/*.py",
        "export/tensorrt/trt_*.py",
        "runtime/foreign/*.py",
        "runtime/onnx_*.py",
        "compare/audits/artifact_weights.py",
        "compare/audits/graph_difference.py",
        "compare/audits/quantised_weights.py",
        "compare/audits/stored_matrices.py",
        "compare/explain/foreign_values.py",
        "cli/doctor_command.py",
        "compare/chain_graph.py",
    },
    "onnx_ir": {
        "export/graph/*.py",
        "export/onnx_export.py",
        "runtime/foreign/*.py",
        "runtime/replay/replay_graph.py",
        "compare/audits/*.py",
        "compare/judged_bundle.py",
        "compare/chain_graph.py",
    },
    "cryptography": {"export/bundle/signature.py"},
    "gguf": {"models/checkpoints/gguf_checkpoint.py", "models/checkpoints/gguf_header.py"},
    "huggingface_hub": {"models/checkpoints/hub.py"},
    "tokenizers": {"runtime/text/detokenize.py", "runtime/text/encoder.py"},
    "jinja2": {"compare/report/html_page.py", "runtime/text/template_worker.py"},
    "transformers": {"runtime/bench/transformers_runner.py"},
    "onnxruntime_genai": {"runtime/bench/genai_runner.py"},
    "xllamacpp": {"runtime/bench/llama_runner.py"},
    "ray": {"runtime/ray_chain.py", "runtime/serving/ray_replicas.py"},
    "starlette": {
        "runtime/serving/http_app.py",
        "runtime/serving/http_server.py",
        "runtime/serving/ray_replicas.py",
    },
    "uvicorn": {"runtime/serving/http_server.py"},
    "rich": {
        "cli/ablate_view.py",
        "cli/bench_view.py",
        "cli/console.py",
        "cli/doctor_command.py",
        "cli/inspect_tables.py",
        "cli/inspect_view.py",
        "compare/report/report_table.py",
    },
    # Test dependencies, and libraries that only later parts may use.
    **{library: set() for library in ("onnxscript", "tensorrt", "tensorrt_rtx")},
}
LIGHT_OF_OURS = {
    "blockexport.export.lint.lint_target",
    "blockexport.models.attention_forms",
    "blockexport.models.wording",
    "blockexport.models.devices",
    "blockexport.models.element_types",
    "blockexport.models.errors",
    "blockexport.models.exit_codes",
    "blockexport.models.openmp",
    "blockexport.models.precision",
    "blockexport.models.quantisation",
    "blockexport.models.quantised_matrix",
    "blockexport.runtime.backends",
    "blockexport.runtime.compute_device",
    "blockexport.runtime.threads",
    "blockexport.cpp_project",
}

# Of the floating-point types alone: "bool" is also a Python type, "INT" may be anything.
TYPE_NAMES = {
    spelling
    for one in ELEMENT_TYPES
    for name in vars(one).values()
    if one.is_float and isinstance(name, str)
    for spelling in (name, name.upper())
}


def sources(package: str) -> list[Path]:
    """The files that install as modules; runtime/cpp holds C++ and the scripts that made its tables."""
    return sorted(path for path in (REPOSITORY / package).rglob("*.py") if "cpp" not in path.parts)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module in full, with its line; those under `if TYPE_CHECKING:` are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imports(other)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from blockexport.cli import console` imports a module, `from pathlib import Path` a name.
            ours = node.module in {f"blockexport.{package}" for package in PACKAGES}
            yield from ((f"{node.module}.{alias.name}" if ours else node.module, node.lineno) for alias in node.names)
        else:
            yield from imports(node)


def top_level_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from imports(ast.Module([node], []))


def named_modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Our modules in texts, which an `import_module` or an entry point may be given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.fullmatch(r"(blockexport(\.\w+)+)(:\w+)?", node.value)
            if found is not None:
                yield found[1], node.lineno


def is_home(path: Path, library: str) -> bool:
    return any(fnmatch(path.relative_to(REPOSITORY).as_posix(), pattern) for pattern in HOMES[library])


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_heavy_library_is_imported_only_in_its_file(library: str) -> None:
    strays = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {name}"
        for package in PACKAGES
        for path in sources(package)
        for name, line in imports(ast.parse(path.read_text()))
        if name.split(".")[0] == library and not is_home(path, library)
    ]
    assert strays == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_text_names_a_module_that_may_not_be_imported(package: str) -> None:
    """The import contracts, for imports that no linter sees."""
    sample = ast.parse(
        'import_module("blockexport.cli.main")\nOPENER = "blockexport.export.aoti:compile"\n"See blockexport."'
    )
    assert set(named_modules(sample)) == {("blockexport.cli.main", 1), ("blockexport.export.aoti", 2)}
    acts = ("bundle_export", "cpp_project", "library")
    above = (*acts, *PACKAGES[PACKAGES.index(package) + 1 :]) if package != "cli" else ()
    strays = [
        f"{path.relative_to(REPOSITORY)}:{line} names {name}"
        for path in sources(package)
        for name, line in named_modules(ast.parse(path.read_text()))
        if name.split(".")[1] in above
    ]
    assert strays == []


def test_the_runtime_sees_nothing_of_export_but_the_bundle() -> None:
    trees = {path.relative_to(REPOSITORY): ast.parse(path.read_text()) for path in sources("runtime")}
    strays = [
        f"{path}:{line} names {name}"
        for path, tree in trees.items()
        for name, line in (*imports(tree), *named_modules(tree))
        if name.startswith("blockexport.export") and not name.startswith("blockexport.export.bundle.")
    ]
    assert strays == []


@pytest.mark.parametrize("path", sources("cli"), ids=lambda path: path.name)
def test_a_command_loads_nothing_heavy_before_it_runs(path: Path) -> None:
    heavy = [
        f"line {line}: {name}"
        for name, line in top_level_imports(ast.parse(path.read_text()))
        if name.split(".")[0] not in {*sys.stdlib_module_names, "typer"}
        and not name.startswith("blockexport.cli")
        and name not in LIGHT_OF_OURS
    ]
    assert heavy == []


def test_no_command_calls_another() -> None:
    """What commands share is in files that are none; the program itself registers them all."""
    commands = [path for path in sources("cli") if path.name.endswith("_command.py")]
    assert len(commands) > 8
    calls = [
        f"{path.name}:{line} imports {name}"
        for path in commands
        for name, line in imports(ast.parse(path.read_text()))
        if name.startswith("blockexport.cli.") and name.split(".")[2].endswith("_command")
    ]
    assert calls == []


def element_type_in(node: ast.expr | None) -> str | None:
    """The name of an element type that an expression is (`"BF16"`, `torch.float16`), if it is one."""
    if isinstance(node, ast.Attribute):  # a Precision is a choice
        return node.attr if node.attr in TYPE_NAMES and ast.unparse(node.value) != "Precision" else None
    text = node.value if isinstance(node, ast.Constant) else None
    return text if isinstance(text, str) and text in TYPE_NAMES else None


def type_tables(tree: ast.AST) -> Iterator[int]:
    """The lines with a mapping of two or more element types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for side in (node.keys, node.values):
                if sum(element_type_in(item) is not None for item in side) > 1:
                    yield node.lineno
                    break


def test_element_types_have_one_table() -> None:
    """What a library calls a type stands in models/element_types.py alone."""
    assert list(type_tables(ast.parse('a = {"F32": 1, "F16": 2}\nb = {1: torch.float16, 2: torch.bfloat16}'))) == [1, 2]
    strays = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path in (*(path for package in PACKAGES for path in sources(package)), *REPOSITORY.glob("*.py"))
        for line in type_tables(ast.parse(path.read_text()))
    ]
    assert strays == []


def test_no_file_is_named_like_a_library() -> None:
    """A script run inside the folder would import it in place of the library."""
    names = {path.stem for package in PACKAGES for path in sources(package)} - {"__init__"}
    assert "onnx" in packages_distributions()
    assert names & set(packages_distributions()) == set()


def test_the_contract_breaks_when_a_lower_layer_imports_a_higher_one(tmp_path: Path) -> None:
    """models importing runtime must turn lint-imports red; the same copy without that line is green."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / "blockexport" / package)
    for name in ("__init__.py", "bundle_export.py", "cpp_project.py", "library.py"):
        shutil.copy(REPOSITORY / name, tmp_path / "blockexport")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    lint = [
        sys.executable, "-S", "-c",
        "import sys\n"
        f"sys.path[:0] = [{str(tmp_path)!r}]\n"
        f"sys.path += {[p for p in sys.path if 'site-packages' in p]!r}\n"
        "from importlinter.cli import lint_imports_command\n"
        "lint_imports_command(['--no-cache'])",
    ]  # fmt: skip
    clean = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True)
    assert clean.returncode == 0, clean.stdout + clean.stderr

    offender = tmp_path / "blockexport" / "models" / "block" / "norm.py"
    offender.write_text(offender.read_text() + "\nfrom blockexport.runtime import decoder\n")
    broken = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "blockexport.models is not allowed to import blockexport.runtime" in broken.stdout


def test_bare_package_names_are_banned() -> None:
    """ruff refuses `import models` and the like, in every package of ours."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == set(PACKAGES)
    for package in PACKAGES:
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--config", str(REPOSITORY / "pyproject.toml"),
             "--stdin-filename", str(REPOSITORY / "tests" / "made_up.py"), "-"],
            input=f"import {package}.config\n\nprint({package}.config)\n", capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 1
        assert "TID251" in done.stdout


def spoken_strings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every string of the code with its line, docstrings left out."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value, node.lineno


def test_only_a_family_s_own_file_spells_its_name() -> None:
    """By model_type, GGUF architecture or transformers' class. Tokenizers of the same names are in their own room."""
    names = {*FAMILIES, *GGUF_FAMILIES, *(family.class_name for family in FAMILIES.values())}
    assert len(names) > 2 * len(FAMILIES) - 1
    word = re.compile(rf"(?<![\w.-])({'|'.join(names)})(?![\w.-])")
    rooms = ("models/families/", "export/tokenizer/", "export/bundle/pre_tokenizers.py")
    paths = [path for package in PACKAGES for path in sources(package)] + list(REPOSITORY.glob("*.py"))
    strays = [
        f"{place}:{line} says {text!r}"
        for path in paths
        if not (place := path.relative_to(REPOSITORY).as_posix()).startswith(rooms)
        for text, line in spoken_strings(ast.parse(path.read_text()))
        if word.search(text)
    ]
    assert strays == []


def test_each_family_has_a_file_of_its_name() -> None:
    rooms = {path.stem for path in sources("models/families")}
    assert rooms == {*FAMILIES, "__init__", "activations", "every_family", "family", "left_out", "windows"}


def test_no_two_files_and_no_two_classes_share_a_name() -> None:
    """A name that is found once is found at once."""
    files: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {}
    for path in (*(path for package in PACKAGES for path in sources(package)), *REPOSITORY.glob("*.py")):
        place = path.relative_to(REPOSITORY).as_posix()
        if path.name != "__init__.py":
            files.setdefault(path.name, []).append(place)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(place)
    assert {name: places for names in (files, classes) for name, places in names.items() if len(places) > 1} == {}
