"""What each command does with a bundle whose files are not those that its manifest states: a table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from blockexport.cli.main import main
from blockexport.export.bundle.file_check import sampled_sha256_of
from blockexport.export.bundle.manifest import AOTI_FILE, read_manifest, sha256_of, write_manifest
from tests.small_models import small_config, small_weights, write_folder
from tests.support import shared_path

CONFIG = small_config("qwen3", vocab_size=7000, hidden_size=112, max_position_embeddings=40)
WEIGHTS, GRAPH = "model.safetensors", "model.onnx"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`own` and `quantised`, bundles of one checkpoint, and `other` of one that differs in its values."""
    folder = tmp_path_factory.mktemp("made")
    for name, seed in (("source", 0), ("stranger", 1)):
        write_folder(folder / name, CONFIG, small_weights(CONFIG, seed))
        shutil.copyfile(shared_path("models/stories260K/tokenizer.json"), folder / name / "tokenizer.json")
    for name, source, options in (
        ("own", "source", ["--pt2"]),
        ("other", "stranger", []),
        ("quantised", "source", ["--quantize", "int8"]),
        ("other quantised", "stranger", ["--quantize", "int8"]),
    ):
        assert main(["onnx", str(folder / source), "-o", str(folder / name), "--no-compare", "-q", *options]) == 0
    assert (folder / "own" / WEIGHTS).stat().st_size > 300 * 4096
    return folder


def swapped(bundle: Path, other: Path) -> None:
    assert (bundle / WEIGHTS).stat().st_size == (other / WEIGHTS).stat().st_size
    shutil.copyfile(other / WEIGHTS, bundle / WEIGHTS)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def sampled_byte(bundle: Path, other: Path) -> None:
    flip(bundle / WEIGHTS, (bundle / WEIGHTS).stat().st_size - 1)


def unsampled_byte(bundle: Path, other: Path) -> None:
    path = bundle / WEIGHTS
    before = sampled_sha256_of(path)
    for at in range(17 * 4096, path.stat().st_size, 4096):
        flip(path, at)
        if sampled_sha256_of(path) == before:
            return
        flip(path, at)
    raise AssertionError("every page is sampled")


def other_graph(bundle: Path, other: Path) -> None:
    model = onnx.load(bundle / GRAPH, load_external_data=False)
    norm = next(node for node in model.graph.node if node.op_type == "RMSNormalization")
    next(attribute for attribute in norm.attribute if attribute.name == "epsilon").f = 1e-3
    onnx.save(model, bundle / GRAPH)


def forged_slots(bundle: Path, other: Path) -> None:
    forged = replace(read_manifest(bundle), max_sequence_length=10**9, rope_table_rows=10**9)
    made = forged.interface
    write_manifest(bundle, replace(forged, inputs=made.inputs, outputs=made.outputs))


DAMAGES: list[Callable[[Path, Path], None]] = [swapped, sampled_byte, unsampled_byte, other_graph, forged_slots]
Outcomes = list[tuple[int, str] | None]
ANOTHER, NOT_THE_DECODER = "it is another file", "is not the decoder that the manifest describes"
GENERATE = ["generate", "{}", "Once", "--raw", "-n", "2", "-q"]
# Exit code and what is said for each of the damages above, in their order; None where the command runs as ever.
SAMPLED: Outcomes = [(2, ANOTHER), (2, ANOTHER), None, (2, ANOTHER), (2, NOT_THE_DECODER)]
WHOLE: Outcomes = [*[(2, ANOTHER)] * 4, (2, NOT_THE_DECODER)]
UNREAD: Outcomes = [None, None, None, None, (2, NOT_THE_DECODER)]  # it runs none of these files
TABLE: list[tuple[list[str], Outcomes]] = [
    (GENERATE, SAMPLED),
    ([*GENERATE, "--verify-weights"], WHOLE),
    ([*GENERATE, "--backend", "replay"], SAMPLED),
    ([*GENERATE, "--backend", "pt2"], UNREAD),
    ([*GENERATE, "--backend", "eager"], UNREAD),
    (["redeclare", "{}", "-M", "32", "-q"], SAMPLED),
    (["aoti", "{}"], WHOLE),
    (["trt", "{}", "--backend", "tensorrt-rtx", "--compute-capability", "8.9"], WHOLE),
]
"""`selftest` compares every file (test_selftest.py), `compare` judges what is there and says so."""


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(("command", "expected"), TABLE, ids=[" ".join(c[:1] + c[2:]) for c, _ in TABLE])
def test_files_that_are_not_the_bundles_own(
    command: list[str],
    expected: Outcomes,
    damage: Callable[[Path, Path], None],
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def compiled(*_: Any) -> list[str]:
        raise AssertionError("nothing is to be compiled")

    if command[0] == "trt":
        pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed: pip install tensorrt-rtx")
    monkeypatch.setattr("blockexport.export.aoti.compile_package", compiled)
    bundle = Path(shutil.copytree(made / "own", tmp_path / "bundle"))
    damage(bundle, made / "other")
    before = {path.name: sha256_of(path) for path in bundle.iterdir()}
    outcome = expected[DAMAGES.index(damage)]
    code = main([word.format(bundle) for word in command])
    said = capsys.readouterr()
    assert (code, said.err) == (0, "") if outcome is None else (code == outcome[0] and outcome[1] in said.err), said.err
    if outcome is not None:
        assert said.out == "" and {path.name: sha256_of(path) for path in bundle.iterdir()} == before


@pytest.mark.parametrize("damage", [swapped, sampled_byte, unsampled_byte])
def test_eager_on_the_weights_of_a_quantised_bundle(
    damage: Callable[[Path, Path], None], made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(made / "quantised", tmp_path / "bundle"))
    damage(bundle, made / "other quantised")
    command = [word.format(bundle) for word in [*GENERATE, "--backend", "eager"]]
    assert main([*command, "--verify-weights"]) == 2
    assert main(command) == (0 if damage is unsampled_byte else 2)
    assert ANOTHER in capsys.readouterr().err


def test_eager_on_a_source_that_has_changed(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(shutil.copytree(made / "source", tmp_path / "source"))
    assert main(["onnx", str(source), "-o", str(tmp_path / "bundle"), "--no-compare", "-q"]) == 0
    command = [word.format(tmp_path / "bundle") for word in [*GENERATE, "--backend", "eager"]]
    assert main(command) == 0
    shutil.copyfile(made / "stranger" / WEIGHTS, source / WEIGHTS)
    assert main(command) == 3
    assert "is no longer what the bundle was exported from" in capsys.readouterr().err
    assert main([*command, "--model", str(made / "source")]) == 0


def test_a_package_is_not_made_of_another_checkpoint(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--model may name the same weights elsewhere, and no others: the package counts as made from the bundle's."""

    def compiled(checkpoint: Any, interface: Any, rows: int, folder: Path, device: Any) -> list[str]:
        (folder / AOTI_FILE).write_text("compiled")
        return [AOTI_FILE]

    monkeypatch.setattr("blockexport.export.aoti.compile_package", compiled)
    bundle = Path(shutil.copytree(made / "own", tmp_path / "bundle"))
    assert main(["aoti", str(bundle), "--model", str(made / "stranger"), "--no-compare"]) == 2
    assert "is not what" in capsys.readouterr().err and not (bundle / AOTI_FILE).exists()
    elsewhere = write_folder(tmp_path / "elsewhere", CONFIG, small_weights(CONFIG), shards=2)
    assert main(["aoti", str(bundle), "--model", str(elsewhere), "--no-compare"]) == 0
    assert (bundle / AOTI_FILE).exists()
