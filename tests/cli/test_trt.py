"""`blockexport trt` as a user types it: an engine in the bundle, or one message and nothing left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from blockexport.cli.main import main
from blockexport.export.bundle.file_check import file_entry
from blockexport.export.bundle.manifest import read_manifest, sha256_of, write_manifest
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from tests.export.tensorrt.trt_support import rtx
from tests.exported import export, random_model
from tests.packed_folders import Pack, write_packed
from tests.small_models import small_config, small_weights, write_folder
from tests.support import shared_path

ADA = ("--backend", "tensorrt-rtx", "--compute-capability", "8.9")


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small fp16 bundle without an engine."""
    rtx()
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    model = random_model(num_hidden_layers=1, layer_types=(), sliding_window=None, head_dim=64)
    export(model, folder, Precision.FP16)
    return folder


@pytest.fixture(scope="module")
def quantisable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one layer whose matrices are whole blocks."""
    rtx()
    config = small_config("llama", num_hidden_layers=1, hidden_size=64, intermediate_size=160, head_dim=32)
    config = replace(config, num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=False)
    return write_folder(tmp_path_factory.mktemp("quantisable"), config, small_weights(config))


@pytest.fixture
def bundle(exported_once: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(exported_once, tmp_path / "bundle")
    return tmp_path / "bundle"


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder and its sha256."""
    return {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def test_an_engine_is_added_to_a_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(bundle)
    assert main(["trt", str(bundle), *ADA, "--max-batch-size", "3", "--max-prefill", "9", "--json"]) == 0
    captured = capsys.readouterr()
    assert "was exported without being judged; `blockexport compare" in captured.err
    printed = json.loads(captured.out)["engine"]
    name = "engines/tensorrt-rtx-sm89-fp16.engine"
    assert printed["file"] == name
    assert printed["sha256"] == sha256_of(bundle / name)
    assert printed["profiles"][0]["sequence_length"] == [1, 9, 9]
    assert printed["profiles"][1]["batch_size"] == [1, 1, 3]
    after = contents(bundle)
    assert after.keys() - before.keys() == {name, "sbom.cdx.json"}  # the fixture's bundle has no bill
    assert {key for key in before if after[key] != before[key]} == {"manifest.json"}
    assert main(["trt", str(bundle), *ADA]) == 0
    told = capsys.readouterr().out
    in_place = "each output in the memory of its input"
    for said in (in_place, "in float16", "prefill 1..29 tokens x 1..8 rows", "not executed"):
        assert said in told
    assert list(read_manifest(bundle).engines) == [name]
    assert main(["trt", str(bundle), *ADA, "-q"]) == 0
    assert capsys.readouterr().out.splitlines() == told.splitlines()[:1]


def test_from_a_checkpoint_in_one_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rtx()
    model, folder = str(shared_path("models/stories260K")), tmp_path / "bundle"
    arguments = ["trt", model, "-o", str(folder), "--fp16", "-M", "64", *ADA, "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)  # one document, though the graph was judged on the way
    assert printed["engine"]["precision"] == "fp16"
    manifest = read_manifest(folder)
    assert (manifest.precision, manifest.max_sequence_length) == (Precision.FP16, 64)
    assert (folder / "parity" / "report.json").is_file()
    assert set(manifest.files) >= set(manifest.engines) != set()
    assert open_checkpoint(model).config == manifest.config


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_an_engine_of_a_quantised_checkpoint_has_its_codes(
    kind: str, quantisable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bundle"
    options = ["--fp16", "-M", "24", "--quantize", kind, "--max-prefill", "8", "--no-explain", "--json"]
    assert main(["trt", str(quantisable), "-o", str(folder), *options, *ADA]) == 0
    engine = json.loads(capsys.readouterr().out)["engine"]
    manifest = read_manifest(folder)
    assert manifest.quantisation == quantisation_of(kind, embedding="float")
    config, audit = manifest.config, engine["audit"]
    counted = count_parameters(config)
    matrices = counted.blocks - 2 * config.num_hidden_layers * config.hidden_size
    codes = {"int4": matrices // 2, "int8": counted.head} if kind == "int4" else {"int8": matrices + counted.head}
    assert {dtype: size for dtype, size in audit["weight_bytes"].items() if dtype in ("int4", "int8")} == codes
    # q, k and v lie side by side, and so do gate and up.
    assert audit["matrix_products"] == {"float16": 4 * config.num_hidden_layers + 1}
    assert audit["dequantised"] == {"int4": {"int4": 4, "int8": 1}, "int8": {"int8": 5}}[kind]
    # Adding an engine in another precision needs another bundle: the command for it quantises likewise.
    assert main(["trt", str(folder), "--bf16", *ADA]) == 2
    assert f"--quantize {kind} --block-size 32 --head int8" in capsys.readouterr().err


def test_an_engine_of_packed_codes_has_them_in_their_order_and_takes_no_zero_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rtx()
    options = ["-o", str(tmp_path / "bundle"), "--fp16", "-M", "24", "--quantize", "int4", "--max-prefill", "8", *ADA]
    awq = write_packed(tmp_path / "awq", Pack("awq", symmetric=False), num_hidden_layers=1)
    assert main(["trt", str(awq.path), *options]) == 2
    assert "the checkpoint's codes have zero points (as AWQ's have" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()
    gptq = write_packed(tmp_path / "gptq", Pack("gptq", order=True), num_hidden_layers=1)
    assert main(["trt", str(gptq.path), *options, "--no-explain", "--json"]) == 0
    audit = json.loads(capsys.readouterr().out)["engine"]["audit"]
    assert audit["dequantised"] == {"int4": 4, "int8": 1}
    assert audit["layers"]["GATHER"] >= 4  # of activations for q, k and v, for o, for gate and up, and for down


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--quantize", "int4"],
            "blocks of 32 do not divide the 48 inputs of model.layers.0.self_attn.q_proj.weight, ",
        ),
        (["--quantize", "int4", "--embedding", "int8"], "--embedding int8: TensorRT takes no codes that are looked up"),
        (["--block-size", "64"], "--block-size says how a bundle is quantised: add --quantize"),
        (["--quantize", "int2"], "--quantize 'int2': there are int4, int8"),
    ],
)
def test_what_no_engine_can_be_built_from_is_refused_before_a_bundle_is_made(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rtx()
    assert main(["trt", "tiny", "-o", str(tmp_path / "new"), "--fp16", *options, *ADA]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--backend", "tensorrt-rtx", "--compute-capability", "9.0"], 2, "does not serve compute capability 9.0"),
        ([*ADA, "--fp32"], 2, "is a bundle in fp16, and precision is typed into its graph: --fp32 needs a bundle"),
        ([*ADA, "--fp16", "--bf16"], 2, "--fp16 and --bf16 contradict each other"),
        ([*ADA, "--max-prefill", "30"], 2, "--max-prefill 30 is beyond the bundle's 29 cache slots"),
        ([*ADA, "--timing-cache", "cache"], 2, "--timing-cache is not for tensorrt-rtx"),
        ([*ADA, "--builder-optimization-level", "0"], 2, "--builder-optimization-level is not for tensorrt-rtx"),
        ([*ADA, "--hardware-compatibility", "all"], 2, "'all' is neither ampere-plus nor same-compute-capability"),
        ([*ADA, "--workspace", "1"], 2, "finds no kernel within --workspace 1 MiB"),
        ([*ADA, "--output", "elsewhere"], 2, "--output is for a checkpoint"),
        ([*ADA, "--quantize", "int4"], 2, "--quantize is for a checkpoint"),
        (["--backend", "tensor"], 2, "no TensorRT backend 'tensor'"),
    ],
)
def test_what_is_wrong_is_one_message_and_leaves_nothing(
    arguments: list[str], code: int, said: str, bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = contents(bundle)
    assert main(["trt", str(bundle), *arguments]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("blockexport: ")
    assert err.count("\n") == 1
    assert said in err
    assert contents(bundle) == before
    assert not (bundle / "engines").exists()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose engine takes seconds to build."""
    rtx()
    folder = tmp_path_factory.mktemp("deep") / "bundle"
    export(random_model(num_hidden_layers=20, layer_types=(), sliding_window=None, head_dim=64), folder, Precision.FP16)
    return folder


@contextmanager
def building(bundle: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`blockexport trt` in the middle of its build."""
    command = [sys.executable, "-c", "import sys; from blockexport.cli.main import run; sys.exit(run())", "trt"]
    with subprocess.Popen([*command, str(bundle), *ADA], stderr=subprocess.PIPE, start_new_session=True) as process:
        while not list(bundle.glob(".*.partial")):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(2)  # into the build, of which seconds are left
        yield process


def test_the_command_for_another_precision_keeps_the_options(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--max-prefill", "16", "--json"]
    assert main(["trt", str(bundle), "--bf16", *given]) == 2
    command = shlex.split(capsys.readouterr().err.partition("needs a bundle of its own, ")[2])
    assert command[:2] == ["blockexport", "trt"] and command[3:6] == ["-o", "NEW_BUNDLE", "--bf16"]
    assert command[command.index("-M") + 1] == "29" and "--beyond-trained-range" not in command
    wanted = zip(given[:-1:2], given[1::2], strict=False)
    assert all(command[command.index(option) + 1] == value for option, value in wanted) and command.count("--json") == 1


def test_an_interrupt_ends_the_build_at_once(deep: Path, tmp_path: Path) -> None:
    """Ctrl-C as a terminal sends it, to every process of the group; TensorRT swallows what lands in its callbacks."""
    bundle = Path(shutil.copytree(deep, tmp_path / "bundle"))
    before = contents(bundle)
    with building(bundle) as process:
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60)[1] == b"interrupted\n"
        assert process.returncode == 130
        assert time.monotonic() - began < 2
    assert contents(bundle) == before


@pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's")
def test_the_builder_ends_with_a_command_that_is_killed(deep: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(deep, tmp_path / "bundle"))
    before = contents(bundle)
    with building(bundle) as process:
        (builder,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait(60)
        time.sleep(0.5)
        state = Path(f"/proc/{builder}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"
    assert len(contents(bundle)) == len(before) + 1, "half an engine"
    assert main(["trt", str(bundle), *ADA, "--workspace", "1"]) == 2
    assert contents(bundle) == before, "the next build removes it, though it fails itself"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_standard_tensorrt_without_its_libraries_cannot_be_used_here(
    bundle: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("standard TensorRT is installed here")
    assert main(["trt", str(bundle), "--backend", "tensorrt"]) == 3
    err = capfd.readouterr().err
    assert "tensorrt is not installed here" in err
    assert "pip install tensorrt, or build with --backend tensorrt-rtx" in err


def test_a_target_is_asked_for_where_there_is_no_gpu(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["trt", str(bundle), "--backend", "tensorrt-rtx"]) == 3
    assert "say which GPU the engine is for: --compute-capability, with one of 7.5" in capfd.readouterr().err


def reseal(bundle: Path, model: onnx.ModelProto) -> None:
    """Put another graph into a bundle, with a manifest that agrees."""
    (bundle / "model.onnx").write_bytes(model.SerializeToString())
    manifest = read_manifest(bundle)
    file = bundle / "model.onnx"
    entry = file_entry(file, manifest.files["model.onnx"].made_from)
    write_manifest(bundle, replace(manifest, files={**manifest.files, "model.onnx": entry}))


def test_a_graph_that_tensorrt_rejects(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    norm = next(node for node in model.graph.node if node.op_type == "RMSNormalization")
    model.graph.node.insert(
        list(model.graph.node).index(norm), helper.make_node("Bernoulli", [norm.input[0]], ["noise"], "noisy")
    )
    norm.input[0] = "noise"
    reseal(bundle, model)
    assert main(["trt", str(bundle), *ADA]) == 2
    err = capfd.readouterr().err
    assert "rejects" in err
    assert "Bernoulli" in err
    assert err.count("blockexport: ") == 1
    assert not (bundle / "engines").exists()


def test_a_trap_in_the_graph_is_named_before_anything_is_built(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    attention = next(node for node in model.graph.node if node.op_type == "Attention")
    attention.attribute.append(helper.make_attribute("left_window_size", 3))
    reseal(bundle, model)
    assert main(["trt", str(bundle), *ADA]) == 2
    assert "[attention-window]" in capfd.readouterr().err
    assert not (bundle / "engines").exists()


def test_changed_weights_are_not_built_from(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    weights = bytearray((bundle / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (bundle / "model.safetensors").write_bytes(weights)
    assert main(["trt", str(bundle), *ADA]) == 2
    assert "it is another file" in capfd.readouterr().err


def test_a_checkpoint_needs_a_bundle_and_a_precision(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rtx()
    assert main(["trt", "tiny", *ADA, "--fp16"]) == 2
    assert "name it with -o BUNDLE" in capfd.readouterr().err
    assert main(["trt", "tiny", "-o", str(tmp_path / "new"), *ADA]) == 2
    assert "say in which precision" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
