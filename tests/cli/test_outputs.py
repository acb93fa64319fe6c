"""Where outputs may go, over every command that writes: apart from the inputs, and nothing of the user's gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from blockexport.cli.main import main
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.export.tensorrt.trt_support import rtx
from tests.exported import export
from tests.small_models import small_config, small_weights, write_folder
from tests.written_places import written_places

CONFIG = small_config("llama", max_position_embeddings=64)
MAKERS = ("onnx", "trt", "aoti")
COMMANDS = (*MAKERS, "redeclare", "cpp", "compare")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `model` and a bundle `bundle` made from it."""
    folder = tmp_path_factory.mktemp("made")
    write_folder(folder / "model", CONFIG, small_weights(CONFIG))
    export(open_checkpoint(str(folder / "model")), folder / "bundle", slots=24)
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is the current one: notes, an older bundle `old`, and a link to it."""
    home = tmp_path / "Home"
    home.mkdir()
    (home / "notes.txt").write_text("mine")
    shutil.copytree(made / "bundle", home / "old")
    (home / "link-to-old").symlink_to("old")
    monkeypatch.chdir(home)
    return home


def place_input(command: str, made: Path, home: Path) -> Path:
    """What a command reads, as `in` in the user's folder: a checkpoint, or a bundle."""
    shutil.copytree(made / ("model" if command in MAKERS else "bundle"), home / "in")
    return home / "in"


def run(command: str, given: str, output: str) -> int:
    if command == "trt":
        rtx()
    options = {
        "onnx": ("-o", output, "--force", "--no-compare"),
        "trt": ("-o", output, "--force", "--fp16", "--backend", "tensorrt-rtx", "--compute-capability", "8.9"),
        "aoti": ("-o", output, "--force", "--no-compare"),
        "redeclare": ("-o", output, "--force", "-M", "9"),
        "cpp": ("-o", output, "--force"),
        "compare": ("--check", "types", "--report", output),
    }
    return main([command, given, "--quiet", *options[command]])


def everything(folder: Path) -> dict[str, object]:
    """All that lies in a folder: links by where they point, files by content."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        kind = str(path.readlink()) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = kind
    return found


def link(home: Path) -> None:
    (home / "link").symlink_to("in")


def real_elsewhere(home: Path) -> None:
    (home / "real").mkdir()
    (home / "in").rename(home / "real" / "in")
    (home / "in").symlink_to("real/in")


def weights_in_the_output(home: Path) -> None:
    (home / "in" / "model.safetensors").unlink()
    (home / "in" / "model.safetensors").symlink_to("../old/model.safetensors")


def nothing(home: Path) -> None:
    pass


LAYOUTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    # name: what lies there, the output as it is typed, and what is said
    "the input itself": (nothing, "in", "is the input"),
    "the input with dots": (nothing, "./in/.", "is the input"),
    "the input by way of another folder": (nothing, "old/../in", "is the input"),
    "the input by its absolute path": (nothing, "{home}/in", "is the input"),
    "the input by a symbolic link": (link, "link", "is the input"),
    "the folder of the input": (nothing, ".", "holds the input"),
    "the folder of the input from above": (nothing, "../Home", "holds the input"),
    "far above the input": (nothing, "/", "holds the input"),
    "in the input": (nothing, "in/out", "lies in the input"),
    "deep in the input": (nothing, "in/a/b/c", "lies in the input"),
    "in the input by a symbolic link": (link, "link/out", "lies in the input"),
    "what the input is a link to": (real_elsewhere, "real/in", "is the input"),
    "above what the input is a link to": (real_elsewhere, "real", "holds the input"),
    "what the input's weights are a link to": (weights_in_the_output, "old", "through a symbolic link to"),
    "in another bundle": (nothing, "old/out", "lies in the bundle"),
    "in another bundle by a link": (nothing, "link-to-old/out", "lies in the bundle"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_output_and_an_input_that_overlap_are_refused(
    layout: str, command: str, made: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, output, said = LAYOUTS[layout]
    place_input(command, made, home)
    prepare(home)
    before = everything(home.parent)
    assert run(command, "in", output.format(home=home)) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1
    assert captured.out == "", "nothing was done before"
    assert everything(home.parent) == before


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.full if name in ("trt", "aoti") else ()) for name in COMMANDS]
)
def test_nothing_is_written_elsewhere(command: str, made: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for temporary files, the notes on what was built here, and the headers that PyTorch compiles once for all."""
    place_input(command, made, home)
    (home.parent / "temporary").mkdir()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    headers = Path(default_cache_dir(), "precompiled_headers")
    monkeypatch.setattr(tempfile, "tempdir", str(home.parent / "temporary"))
    before = everything(home)
    allowed = (home / "out", home.parent / "temporary", Path(os.environ["XDG_STATE_HOME"]), headers)
    with written_places(*allowed) as elsewhere:
        assert run(command, "in", "out") == 0
    assert elsewhere == set()
    assert list((home.parent / "temporary").iterdir()) == []
    assert {name: kind for name, kind in everything(home).items() if not Path(name).is_relative_to("out")} == before


def checkpoint_within(old: Path) -> None:
    write_folder(old / "ckpt", CONFIG, small_weights(CONFIG))


def strangers_engine(old: Path) -> None:
    (old / "engines").mkdir()
    (old / "engines" / "mine.engine").write_bytes(b"engine")


def linked_folder(old: Path) -> None:
    """A folder of that name with a file that the manifest lists."""
    manifest = json.loads((old / "manifest.json").read_text())
    manifest["files"]["parity/report.md"] = manifest["files"]["model.onnx"]
    (old / "manifest.json").write_text(json.dumps(manifest))
    (old.parent / "parity").mkdir()
    (old.parent / "parity" / "report.md").write_text("mine")
    (old / "parity").symlink_to("../parity")


def listed_outside(old: Path) -> None:
    manifest = json.loads((old / "manifest.json").read_text())
    manifest["files"]["../notes.txt"] = manifest["files"]["model.onnx"]
    (old / "manifest.json").write_text(json.dumps(manifest))
    (old / "hers.txt").write_text("hers")


def forged(old: Path) -> None:
    """A manifest that claims what is somebody's own, here and in a folder that is empty, elsewhere."""
    manifest = json.loads((old / "manifest.json").read_text())
    names = ("thesis.txt", "photos/cat.jpg", "../empty/x.safetensors", f"{old.parent}/empty/y.safetensors")
    manifest["files"] |= dict.fromkeys(names, manifest["files"]["model.onnx"])
    (old / "manifest.json").write_text(json.dumps(manifest))
    (old / "thesis.txt").write_text("mine")
    (old / "photos").mkdir()
    (old / "photos" / "cat.jpg").write_bytes(b"mine")
    (old.parent / "empty").mkdir()


def web_app(old: Path) -> None:
    (old / "manifest.json").write_text('{"name": "app", "files": {}, "schema_version": 1}')


def folder_for_a_file(old: Path) -> None:
    (old / "rope.safetensors").rename(old.parent / "rope.safetensors")
    (old / "rope.safetensors").mkdir()


def file(name: str, content: bytes = b"mine") -> Callable[[Path], object]:
    return lambda old: (old / name).write_bytes(content)


STRANGERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "notes": (file("notes.txt"), "holds notes.txt, which"),
    "a hidden file": (file(".env"), "holds .env, which"),
    "a gguf": (file("model.gguf"), "holds model.gguf, which"),
    "a checkpoint": (checkpoint_within, "holds ckpt/, which"),
    "an engine of somebody else's": (strangers_engine, "holds engines/, which"),
    "an empty folder": (lambda old: (old / "later").mkdir(), "holds later/, which"),
    "a folder where a file was": (folder_for_a_file, "holds rope.safetensors/, which"),
    "a link to a folder": (linked_folder, "holds parity, which"),
    "a link to a file": (lambda old: (old / "l").symlink_to("../notes.txt"), "holds l, which"),
    "a manifest that lists files elsewhere": (listed_outside, "holds hers.txt, which"),
    "a forged manifest": (forged, "holds photos/, thesis.txt, which"),
    "another program's manifest": (web_app, "holds files that are not a bundle"),
    "a damaged manifest": (file("manifest.json", b"{"), "are not a bundle"),
}


@pytest.mark.parametrize("command", [*MAKERS, "redeclare"])
@pytest.mark.parametrize("what", STRANGERS)
def test_force_replaces_nothing_that_the_manifest_does_not_list(
    what: str, command: str, made: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add, said = STRANGERS[what]
    place_input(command, made, home)
    add(home / "old")
    before = everything(home)
    assert run(command, "in", "old") == 2
    assert said in capsys.readouterr().err
    assert everything(home) == before


@pytest.mark.parametrize("path", ["link-to-old", "absolute", "link-to-link", "folder/../link-to-old"])
def test_force_replaces_a_bundle_through_a_link(path: str, made: Path, home: Path) -> None:
    place_input("onnx", made, home)
    (home / "absolute").symlink_to(home / "old")
    (home / "link-to-link").symlink_to("link-to-old")
    (home / "folder").mkdir()
    before = {each.name for each in home.iterdir()}
    killed = home / "old" / ".addition.host-999999999-00000000.partial"
    killed.mkdir()
    (killed / "x.engine").touch()  # of a build that was killed
    (home / "old" / "stale.safetensors").touch()
    manifest = json.loads((home / "old" / "manifest.json").read_text())
    manifest["files"]["stale.safetensors"] = manifest["files"]["model.onnx"]
    (home / "old" / "manifest.json").write_text(json.dumps(manifest))
    assert run("onnx", "in", path) == 0
    assert {each.name for each in home.iterdir()} == before
    assert (home / "link-to-old").readlink() == Path("old")
    assert not (home / "old" / "stale.safetensors").exists() and not killed.exists()


def test_a_bundle_that_was_redeclared_in_place_holds_its_own_files_alone(made: Path, home: Path) -> None:
    place_input("onnx", made, home)
    (home / "old" / "parity").mkdir()
    (home / "old" / "parity" / "report.md").write_text("report")
    manifest = json.loads((home / "old" / "manifest.json").read_text())
    manifest["files"]["parity/report.md"] = manifest["files"]["model.onnx"]
    (home / "old" / "manifest.json").write_text(json.dumps(manifest))
    assert main(["redeclare", "old", "-M", "9"]) == 0
    assert not (home / "old" / "parity").exists()
    assert run("onnx", "in", "old") == 0


def test_hard_links_keep_the_input(made: Path, home: Path) -> None:
    """Files of the older bundle that are the input's own under a second name."""
    given = place_input("onnx", made, home)
    for name in ("model.safetensors", "config.json"):
        (home / "old" / name).unlink()
        os.link(given / name, home / "old" / name)
    before = everything(given)
    assert run("onnx", "in", "old") == 0
    assert everything(given) == before


@pytest.mark.parametrize("output", ["IN", "in2", "new/deep", "../beside"])
def test_places_that_only_look_alike_are_taken(
    output: str, made: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (home / "NOTES.txt").exists():
        pytest.skip("upper and lower case are the same on this file system")
    given = place_input("cpp", made, home)
    before = everything(given)
    assert run("cpp", "in", output) == 0
    assert run("compare", "in", f"{output}-report") == 0
    assert everything(given) == before
    assert (home / output / "main.cpp").is_file() and (home / f"{output}-report" / "report.html").is_file()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("here", "is the current folder or holds it"),
        (".", "is the current folder or holds it"),
        ("notes.txt", "is a file"),
        ("notes.txt/x", "notes.txt is not a folder"),
        ("dangling", "is a symbolic link to nowhere, which does not exist"),
        ("dangling/x", "is a symbolic link to nowhere, which does not exist"),
        ("loop/x", "is a symbolic link to loop, which does not exist"),
        ("/dev", "is a mount point"),
        ("/", "is a mount point"),
        ("n" * 240, "name has 240 bytes: choose one of at most"),
    ],
)
def test_places_that_can_hold_no_bundle_are_refused_before_the_work(
    output: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if output == "/dev" and not os.path.ismount(output):
        pytest.skip("/dev is no mount point here")
    (home / "dangling").symlink_to("nowhere")
    (home / "loop").symlink_to("loop")
    (home / "here").mkdir()
    if output in ("here", "."):
        monkeypatch.chdir(home / "here")
    before = everything(home)
    typed = str(home / output) if output == "here" else output
    assert main(["onnx", "tiny", "-o", typed, "--no-compare", "--quiet", "--force"]) == 2
    assert said in capsys.readouterr().err
    assert everything(home) == before


def test_a_current_folder_that_is_gone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "gone").mkdir()
    os.chdir(home / "gone")
    (home / "gone").rmdir()
    assert main(["onnx", "tiny", "-o", "new", "--no-compare", "--quiet"]) == 2
    assert "the current folder is gone" in capsys.readouterr().err
    assert main(["onnx", "tiny", "-o", str(home / "new"), "--no-compare", "--quiet"]) == 0


def test_a_project_is_overwritten_only_where_it_is_as_written(
    made: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place_input("cpp", made, home)
    assert run("cpp", "in", "chat") == 0
    assert run("cpp", "in", "chat") == 0
    capsys.readouterr()
    written = {path.name: path.read_bytes() for path in (home / "chat").iterdir()}
    for name in ("main.cpp", "CMakeLists.txt", "selftest.cpp", "speed.cpp", "paths.cmake"):
        with (home / "chat" / name).open("a") as file:
            file.write("# mine\n")
        edited = everything(home / "chat")
        assert run("cpp", "in", "chat") == 2
        assert f"{name} is not as `blockexport cpp` wrote it" in capsys.readouterr().err
        assert everything(home / "chat") == edited
        (home / "chat" / name).write_bytes(written[name])
    (home / "chat" / "main.cpp").rename(home / "main.cpp")
    (home / "chat" / "main.cpp").symlink_to("../main.cpp")
    assert run("cpp", "in", "chat") == 2
    assert (home / "main.cpp").read_bytes() == written["main.cpp"]


def test_a_strangers_report_is_not_replaced(made: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place_input("compare", made, home)
    (home / "r").mkdir()
    contents = {"report.md": "# Pass", "report.json": '{"schema_version": 1, "verdict": "good"}', "report.html": "<p>"}
    for name, text in contents.items():
        (home / "r" / name).write_text(text)
        before = everything(home)
        assert run("compare", "in", "r") == 2
        assert f"{name} is not a report of blockexport's" in capsys.readouterr().err
        assert everything(home) == before
        (home / "r" / name).unlink()
    (home / "r" / "report.md").symlink_to("../notes.txt")
    assert run("compare", "in", "r") == 2
    (home / "r" / "report.md").unlink()
    assert run("compare", "in", "r") == 0
    assert run("compare", "in", "r") == 0, "our own is"
    assert (home / "notes.txt").read_text() == "mine"


def test_one_folder_under_two_names(made: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a file system where upper and lower case are the same, or with a folder mounted twice."""
    given = place_input("cpp", made, home)
    twin = home / "twin"
    twin.mkdir()
    if subprocess.run(["mount", "--bind", str(given), str(twin)], capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        before = everything(given)
        for output, said in (("twin", "is the input in itself"), ("twin/out", "lies in the input in")):
            assert run("cpp", "in", output) == 2
            assert said in capsys.readouterr().err
        assert everything(given) == before
    finally:
        subprocess.run(["umount", str(twin)], check=True)


def test_the_number_of_files_is_that_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["onnx", "tiny", "-o", str(tmp_path / "b"), "--no-compare"]) in (0, 3)
    count = sum(path.is_file() for path in (tmp_path / "b").rglob("*"))
    assert f"wrote {tmp_path / 'b'}: {count} files, " in capsys.readouterr().err
