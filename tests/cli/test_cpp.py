"""`blockexport cpp` as the README has it: an empty folder, a compiler, CMake, and then no Python."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from blockexport.cli.main import main
from tests.runtime.cpp import cpp_build
from tests.support import REPOSITORY

QUESTION = "What is the capital of France?"


def without_python(command: list[str]) -> subprocess.CompletedProcess[str]:
    """As `env -i` runs it: nothing in the environment, no PATH."""
    return cpp_build.attempt(command, clean=True)


@pytest.mark.slow
def test_the_whole_way(judged_smollm2: Path, tmp_path: Path) -> None:
    cpp_build.require_tools()
    headers = cpp_build.onnxruntime_headers()
    project = tmp_path / "chat"
    assert main(["cpp", str(judged_smollm2), "-o", str(project)]) == 0
    build = project / "build"
    # The library is found through paths.cmake; headers that are not on the system's path are named.
    named = [] if headers.parts[1] == "usr" else [f"-DONNXRUNTIME_INCLUDE_DIR={headers}"]
    cpp_build.run(["cmake", "-S", str(project), "-B", str(build), cpp_build.QUICKLY, *named])
    cpp_build.run(["cmake", "--build", str(build), "-j", "2"])
    selftest = without_python([str(build / "selftest"), str(judged_smollm2)])
    assert selftest.returncode == 0, selftest.stderr
    assert "selftest passed" in selftest.stdout
    chat = without_python([str(build / "chat"), str(judged_smollm2), QUESTION])
    assert chat.returncode == 0, chat.stderr
    assert "Paris" in chat.stdout
    # The same answer as Python's, in the memory of the mapped weights.
    lean = without_python([str(build / "chat"), str(judged_smollm2), QUESTION, "--low-memory", "--quiet"])
    assert lean.stdout == chat.stdout
    assert lean.stderr == ""
    wrong = without_python([str(build / "chat"), str(judged_smollm2), QUESTION, "--seven"])
    assert wrong.returncode == 2
    assert "no option --seven" in wrong.stderr


@pytest.mark.slow
def test_add_subdirectory_and_fetch_content(tmp_path: Path) -> None:
    """The two other ways into a project: only the parts without a backend are built."""
    cpp_build.require_tools()
    sources = REPOSITORY / "runtime" / "cpp"
    ways = {
        "subdirectory": f"add_subdirectory([==[{sources}]==] blockexport)",
        "fetch": "include(FetchContent)\n"
        f"FetchContent_Declare(blockexport SOURCE_DIR [==[{REPOSITORY}]==] SOURCE_SUBDIR runtime/cpp)\n"
        "FetchContent_MakeAvailable(blockexport)",
    }
    (tmp_path / "main.cpp").write_text(
        "#include <blockexport/blockexport.h>\nint main() { return blockexport::backends().empty() ? 0 : 1; }\n"
    )
    for name, lines in ways.items():
        project = tmp_path / name
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18)\nproject(user LANGUAGES CXX)\n"
            f'set(BLOCKEXPORT_WITH_ONNXRUNTIME OFF CACHE BOOL "")\n{lines}\n'
            "add_executable(user ../main.cpp)\ntarget_link_libraries(user PRIVATE blockexport::blockexport)\n"
        )
        quick = [cpp_build.QUICKLY, *cpp_build.AS_ONE]
        cpp_build.run(["cmake", "-S", str(project), "-B", str(project / "build"), *quick])
        if name == "subdirectory":
            cpp_build.run(["cmake", "--build", str(project / "build"), "-j", "2", "--target", "user"])
            cpp_build.run([str(project / "build" / "user")])


def test_cmake_dir_holds_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpp", "--cmake-dir"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "blockexportConfig.cmake").is_file()
    assert (folder.parent / "CMakeLists.txt").is_file()


def test_a_library_that_is_not_found_is_named_with_the_remedy(tmp_path: Path) -> None:
    cpp_build.require_tools()
    sources = str(REPOSITORY / "runtime" / "cpp")
    nowhere = ["-DONNXRUNTIME_INCLUDE_DIR=", "-DONNXRUNTIME_LIBRARY=", "-DCMAKE_FIND_ROOT_PATH=/nonexistent"]
    only = ["-DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY", "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=NEVER"]
    done = cpp_build.attempt(["cmake", "-S", sources, "-B", str(tmp_path / "a"), *nowhere, *only])
    assert done.returncode != 0
    assert "ONNXRUNTIME_LIBRARY" in done.stderr and "BLOCKEXPORT_WITH_ONNXRUNTIME=OFF" in done.stderr
    options = ["-DBLOCKEXPORT_WITH_ONNXRUNTIME=OFF", "-DBLOCKEXPORT_WITH_AOTI=ON"]
    done = cpp_build.attempt(["cmake", "-S", sources, "-B", str(tmp_path / "b"), *options])
    assert "BLOCKEXPORT_TORCH_DIR" in done.stderr
    both = [*options[:1], "-DBLOCKEXPORT_WITH_TENSORRT=ON", "-DBLOCKEXPORT_WITH_TENSORRT_RTX=ON"]
    done = cpp_build.attempt(["cmake", "-S", sources, "-B", str(tmp_path / "c"), *both])
    assert "choose one" in done.stderr


def test_wrong_use(judged_smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for arguments, word in (
        ([], "name a bundle and a folder"),
        ([str(judged_smollm2), "-o", str(tmp_path / "full")], "is not empty"),
        ([str(judged_smollm2), "-o", str(tmp_path / "full" / "thesis.txt")], "is a file"),
        ([str(tmp_path), "-o", str(tmp_path / "x")], "is not a bundle"),
        ([str(judged_smollm2), "-o", str(tmp_path / "x"), "--backend", "abacus"], "no backend 'abacus'"),
        (
            [str(judged_smollm2), "-o", str(tmp_path / "x"), "--backend", "tensorrt", "--backend", "tensorrt-rtx"],
            "choose one",
        ),
    ):
        assert main(["cpp", *arguments]) == 2
        assert word in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert main(["cpp", str(judged_smollm2), "-o", str(tmp_path / "full"), "--force"]) == 0
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_the_commands_it_names_can_be_pasted_where_paths_have_spaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, output = tmp_path / "a bundle's own", tmp_path / "my chat"
    assert main(["onnx", "tiny", "-o", str(bundle), "--no-compare", "-q"]) == 0
    capsys.readouterr()
    assert main(["cpp", str(bundle), "-o", str(output), "--backend", "aoti"]) == 0
    said = capsys.readouterr().err.replace("next:", "")
    assert f"blockexport aoti {shlex.quote(str(bundle))}" in said
    words = shlex.split(said.partition("made")[2] or said)
    for path in (bundle, output, output / "build", output / "build" / "selftest", output / "build" / "chat"):
        assert str(path) in words
