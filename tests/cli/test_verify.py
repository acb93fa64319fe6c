"""`blockexport verify`: everything that is wrong with a bundle is told, and nothing of a good one."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from blockexport import verify_bundle
from blockexport.cli.main import main
from blockexport.compare import verify_bundle as module
from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import Manifest, read_manifest, write_manifest
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from tests.bits import flip
from tests.exported import export, random_model
from tests.small_models import small_config, small_weights, write_folder

Change = Callable[[Path], object]


@pytest.fixture
def bundle(judged_stories: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(judged_stories, tmp_path / "bundle"))


def reseal(bundle: Path, **changes: Any) -> Manifest:
    """The manifest of somebody who knows how it is made: every hash is that of the file as it is now."""
    manifest = read_manifest(bundle)
    made = {name: file_entry(bundle / name) for name in manifest.files}
    files = {
        name: replace(made[name], made_from={source: made[source].sha256 for source in entry.made_from})
        for name, entry in manifest.files.items()
    }
    write_manifest(bundle, replace(manifest, **{"files": files, **changes}))
    return read_manifest(bundle)


def in_graph(change: Callable[[onnx.ModelProto], object]) -> Change:
    def apply(bundle: Path) -> None:
        model = onnx.load(bundle / "model.onnx", load_external_data=False)
        change(model)
        (bundle / "model.onnx").write_bytes(model.SerializeToString())
        reseal(bundle)

    return apply


def in_report(**changes: Any) -> Change:
    def apply(bundle: Path) -> None:
        path = bundle / "parity/report.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        reseal(bundle)

    return apply


def without_ties(bundle: Path) -> None:
    files = read_manifest(bundle).files
    reseal(bundle, files={**files, "parity/report.md": replace(files["parity/report.md"], made_from={})})


def place_of(model: onnx.ModelProto, key: str, index: int = 0) -> Any:
    """An entry of where the first or a later tensor of model.safetensors is."""
    places = [one.external_data for one in model.graph.initializer if one.external_data]
    weights = [place for place in places if place[0].value == "model.safetensors"]
    return next(entry for entry in weights[index] if entry.key == key)


def overlap(model: onnx.ModelProto) -> None:
    place_of(model, "offset", 1).value = str(int(place_of(model, "offset").value) + 4)


def elsewhere(bundle: Path) -> None:
    shutil.copyfile(bundle / "model.safetensors", bundle / "golden.safetensors")
    in_graph(lambda model: setattr(place_of(model, "location"), "value", "golden.safetensors"))(bundle)


def piped(bundle: Path) -> None:
    (bundle / "tokenizer.json").unlink()
    os.mkfifo(bundle / "tokenizer.json")


def thesis(bundle: Path) -> None:
    (bundle / "thesis.txt").write_text("mine")
    files = read_manifest(bundle).files
    write_manifest(bundle, replace(read_manifest(bundle), files={**files, "thesis.txt": files["config.json"]}))
    reseal(bundle)


def linked(bundle: Path) -> None:
    (bundle / "model.safetensors").rename(bundle.parent / "elsewhere")
    (bundle / "model.safetensors").symlink_to(bundle.parent / "elsewhere")


WRONG: dict[str, tuple[Change, str]] = {
    "a missing file": (lambda b: (b / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "a file cut short": (lambda b: os.truncate(b / "golden.safetensors", 99), "golden.safetensors has 99 bytes"),
    "a pipe": (piped, "tokenizer.json is a pipe, and the manifest lists a file of that name"),
    "a file that no bundle has": (thesis, "thesis.txt is no file that blockexport writes"),
    "a stranger": (lambda b: (b / "notes.txt").write_text("x"), "notes.txt is not listed"),
    "a stranger's folder": (lambda b: (b / "more").mkdir(), "more is not listed"),
    "an unlisted engine": (lambda b: (b / "parity/x.engine").write_text("x"), "parity/x.engine is not listed"),
    "what a killed process left": (
        lambda b: (b / f".addition.{os.uname().nodename}-{2**22 + 1}-00000000.partial").mkdir(),
        "was left by a process that was killed",
    ),
    "weights behind a link": (linked, "model.safetensors, which is a symbolic link"),
    "a node of no operator": (
        in_graph(lambda model: setattr(model.graph.node[3], "op_type", "Nonsense")),
        "model.onnx does not pass ONNX's checker",
    ),
    "an output of another name": (
        in_graph(lambda model: setattr(model.graph.output[0], "name", "other")),
        "is not the decoder that the manifest describes",
    ),
    "another opset": (in_graph(lambda model: setattr(model.opset_import[0], "version", 23)), "has the opset 23"),
    "another IR version": (in_graph(lambda model: setattr(model, "ir_version", 10)), "has the IR version 10"),
    "weights that overlap": (in_graph(overlap), "from bytes of model.safetensors that overlap"),
    "weights in another folder": (
        in_graph(lambda model: setattr(place_of(model, "location"), "value", "../model.safetensors")),
        "must be a file in its folder",
    ),
    "weights behind the end": (
        in_graph(lambda model: setattr(place_of(model, "offset"), "value", "999999999999")),
        "ends before",
    ),
    "weights in a file of another kind": (
        elsewhere,
        "reads weights from golden.safetensors, which the manifest does not list as a source",
    ),
    "a report that fails": (in_report(verdict="fail", summary="it differs"), "was judged and found bad: it differs"),
    "a report of no verdict": (in_report(verdict="good"), 'has the verdict "good", and must have one of pass, fail'),
    "a report on another file": (
        in_report(artifact={"precision": "fp16"}),
        "report.json is about a file whose precision is fp16, and the manifest says fp32",
    ),
    "a report of any model": (without_ties, "report.md does not say which model.onnx it is about"),
    "an older graph in the report": (
        lambda b: write_manifest(b, replace(m := read_manifest(b), files={**m.files, "model.onnx": replace(
            m.files["model.onnx"], sha256="0" * 64)})),
        "report.json was made from another model.onnx than the bundle holds",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_told(kind: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = WRONG[kind]
    change(bundle)
    assert main(["verify", str(bundle), "--quiet"]) == 1
    out = capsys.readouterr().out
    assert words in out and out.splitlines()[-1].endswith(" wrong"), out


def test_a_good_bundle(judged_stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(judged_stories)]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(": nothing is wrong\n") and err == ""
    assert main(["verify", str(judged_stories), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    files = read_manifest(judged_stories).files
    assert told["problems"] == told["not_checked"] == [] and told["files"] == len(files)
    assert told["bytes"] == sum((judged_stories / name).stat().st_size for name in files)


def test_files_that_have_a_second_name(judged_stories: Path, tmp_path: Path) -> None:
    """As in a store that keeps one copy of equal files; ONNX's checker takes it for an attack."""
    shutil.copytree(judged_stories, tmp_path / "bundle", copy_function=os.link)
    assert main(["verify", str(tmp_path / "bundle"), "--quiet"]) == 0


def test_all_that_is_wrong_is_told_at_once(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "tokenizer.json").unlink()
    (bundle / "stranger").touch()
    flip(bundle / "model.safetensors", 99_999)
    flip(bundle / "parity/report.md", 7)
    assert main(["verify", str(bundle), "--json"]) == 1
    problems = " ".join(json.loads(capsys.readouterr().out)["problems"])
    for words in ("tokenizer.json is missing", "stranger is not", "model.safetensors has the", "report.md has the"):
        assert words in problems


def test_a_name_with_a_line_break_adds_no_line(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "x\nnothing is wrong").write_bytes(b"")
    assert main(["verify", str(bundle)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "x\\u000anothing is wrong is not listed in the manifest" in said[0]


def test_what_is_no_bundle_is_wrong_use(tmp_path: Path, bundle: Path) -> None:
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    data = json.loads((bundle / "manifest.json").read_text())
    del data["manifest_sha256"]
    (bundle / "manifest.json").write_text(json.dumps({**data, "schema_version": 9}))
    assert main(["verify", str(bundle)]) == 2  # of another version


def test_a_manifest_without_a_digest_of_its_own(bundle: Path) -> None:
    """Earlier versions wrote none."""
    data = json.loads((bundle / "manifest.json").read_text())
    del data["manifest_sha256"]
    (bundle / "manifest.json").write_text(json.dumps(data))
    found = verify_bundle(bundle)
    assert found.problems == () and "whether the manifest was changed" in found.not_checked[0]


def test_what_was_not_judged_is_said(tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle")
    found = verify_bundle(tmp_path / "bundle")
    assert found.problems == () and "there is no report" in found.not_checked[0]


def test_a_report_that_judged_nothing(bundle: Path) -> None:
    in_report(verdict="not judged", summary="prefill could not be judged")(bundle)
    found = verify_bundle(bundle)
    assert found.problems == () and found.not_checked == ("what the file computes: prefill could not be judged",)


@pytest.mark.parametrize(
    ("changes", "installed", "problem", "not_checked"),
    [
        ({}, "10.15", "", ""),
        ({}, None, "", "tensorrt is not installed"),
        ({}, "10.16", "10.15 and 10.16 is installed, which does not load it", ""),
        ({"weights_digest": "1" * 64}, None, "was built from another set of weights", "tensorrt is not installed"),
        ({"outputs": ()}, "10.15", "has other inputs or outputs than the bundle", ""),
        ({"backend": 5}, "10.15", "is damaged", ""),
    ],
)
def test_engines(
    changes: dict[str, Any],
    installed: str | None,
    problem: str,
    not_checked: str,
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from blockexport.export.bundle.engine_entry import EngineEntry, Profile

    name, manifest = "engines/tensorrt-sm89-fp32.engine", read_manifest(bundle)
    (bundle / "engines").mkdir()
    (bundle / name).write_bytes(b"engine")
    entry = EngineEntry(
        backend="tensorrt",
        version="10.15",
        compute_capabilities=("8.9",),
        precision=manifest.precision,
        profiles=(Profile("any", (1, 1, 1), (1, 1, 1)),),
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        weights_digest=manifest.weights_digest,
        options={},
        audit={},
        rebuild="",
    )
    files = {**manifest.files, name: file_entry(bundle / name)}
    reseal(bundle, files=files, engines={name: {**asdict(entry), **changes}})
    monkeypatch.setattr(module, "_installed", lambda backend: installed)
    found = verify_bundle(bundle)
    assert len(found.problems) == bool(problem) and problem in "".join(found.problems)
    assert len(found.not_checked) == bool(not_checked) and not_checked in "".join(found.not_checked)


CONFIG = small_config("qwen2", max_position_embeddings=64)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("source") / "own", CONFIG, small_weights(CONFIG))


@pytest.mark.parametrize("options", [{}, {"precision": Precision.FP16}, {"quantize": "int4"}])
def test_the_weights_of_the_source(options: dict[str, Any], checkpoint: Path, tmp_path: Path) -> None:
    from blockexport import export_bundle

    export_bundle(checkpoint, tmp_path / "bundle", compare=False, **options)
    assert verify_bundle(tmp_path / "bundle", source=checkpoint).problems == ()
    weights = small_weights(CONFIG)
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] *= 2
    other = write_folder(tmp_path / "other", CONFIG, weights)
    assert "gives another model.safetensors" in verify_bundle(tmp_path / "bundle", source=other).problems[0]
    config = replace(CONFIG, rope_theta=2.5e4)
    other = write_folder(tmp_path / "theta", config, small_weights(CONFIG))
    (problem,) = verify_bundle(tmp_path / "bundle", source=other).problems
    assert "has another rope_theta in its config than the bundle: 25000.0" in problem


def test_codes_chosen_on_a_text_cannot_be_derived(tmp_path: Path) -> None:
    quantisation = replace(quantisation_of("int4"), calibration="0" * 64)
    export(random_model(), tmp_path / "bundle", quantisation=quantisation)
    assert "their codes were chosen on a text" in verify_bundle(tmp_path / "bundle", source="tiny").not_checked[-1]


def flips(bundle: Path, count: int) -> Iterator[tuple[Path, int]]:
    """Bits of all files in turn, so that small ones have as many as large ones."""
    chosen, files = random.Random(14), sorted(path for path in bundle.rglob("*") if path.is_file())
    for i in range(count):
        path = files[i % len(files)]
        yield path, chosen.randrange(8 * path.stat().st_size)


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.full)])
def test_a_single_bit(count: int, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of any file, the manifest included. Those of weights `selftest` sees as well. A manifest whose key for its own
    digest is not spelt so any more cannot be read at all (exit code 2)."""
    unseen = []
    for path, bit in flips(bundle, count):
        flip(path, bit)
        seen = [main(["verify", str(bundle), "--quiet"])]
        if path.name == "model.safetensors":
            seen.append(main(["selftest", str(bundle), "--quiet"]))
        unseen += [(path.name, bit, code) for code in seen if code != 1 and (path.name, code) != ("manifest.json", 2)]
        flip(path, bit)
    assert unseen == []
    assert main(["verify", str(bundle)]) == 0
