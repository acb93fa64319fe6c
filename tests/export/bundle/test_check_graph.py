"""A bundle's graph that is not the one its manifest describes is refused when it is opened, whatever would run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from blockexport.models.errors import ArtifactError, NotJudgedError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.exported import export, random_model

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, and in folders beside it others of the same model."""
    folder = tmp_path_factory.mktemp("onnx file")
    export(random_model(), folder / "bundle")
    export(random_model(), folder / "fp16", Precision.FP16)
    export(random_model(), folder / "headless", headless=True)
    export(random_model(num_hidden_layers=2, layer_types=()), folder / "layers")
    return folder


def from_other(name: str) -> Spoil:
    return lambda bundle: shutil.copy(bundle.parent / name / "model.onnx", bundle)


def graph(change: Callable[[onnx.ModelProto], object]) -> Spoil:
    def apply(bundle: Path) -> None:
        model = onnx.load(bundle / "model.onnx", load_external_data=False)
        change(model)
        (bundle / "model.onnx").write_bytes(model.SerializeToString())

    return apply


def no_decoder(bundle: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    only = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    (bundle / "model.onnx").write_bytes(helper.make_model(only).SerializeToString())


def cut(name: str, by: int) -> Spoil:
    return lambda bundle: os.truncate(bundle / name, (bundle / name).stat().st_size - by)


def empty(bundle: Path) -> None:
    (bundle / "model.onnx").write_bytes(b"")


def remove(name: str) -> Spoil:
    return lambda bundle: (bundle / name).unlink()


def folder_instead(name: str) -> Spoil:
    def apply(bundle: Path) -> None:
        (bundle / name).unlink()
        (bundle / name).mkdir()

    return apply


def fixed_batch(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def shorter_rope(model: onnx.ModelProto) -> None:
    next(tensor for tensor in model.graph.initializer if tensor.name == "cos").dims[0] = 63


@pytest.mark.parametrize("backend", ["onnxruntime", "replay"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            from_other("fp16"),
            "among its inputs is past_key_values.0.key (float16 [any, 2, 29, 10]), and the manifest says past_key",
        ),
        (from_other("headless"), "its inputs are inputs_embeds, position_ids, "),
        (from_other("layers"), "past_key_values.0.value and 2 more, and the manifest lists"),
        (no_decoder, "its inputs are x, and the manifest lists input_ids, position_ids, "),
        (graph(fixed_batch), "is input_ids (int64 [1, any]), and the manifest says input_ids (int64 [any, any])"),
        (graph(lambda model: model.graph.output.pop()), "outputs are logits, present.0.key"),
        (graph(shorter_rope), "has 63 rows in its RoPE table cos, and the manifest says 64"),
        (empty, "is not a readable ONNX file (there is no graph in it)"),
        (cut("model.onnx", 3000), "is not"),
        (remove("model.onnx"), "model.onnx is missing"),
        (folder_instead("model.onnx"), "model.onnx is a folder, and has to be a file"),
        (cut("model.safetensors", 4), "ends before "),
        (remove("model.safetensors"), "model.safetensors is missing"),
        (folder_instead("model.safetensors"), "model.safetensors is a folder, and has to be a file"),
        (cut("rope.safetensors", 4), "ends before sin, which the graph reads up to byte"),
    ],
)
def test_what_is_not_the_manifests_graph(
    made: Path, tmp_path: Path, spoil: Spoil, message: str, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path / "copy")
    bundle = tmp_path / "copy" / "bundle"
    spoil(bundle)
    with pytest.raises(UsageError) as caught:
        open_decoder(bundle, backend, verify="nothing")
    said = str(caught.value)
    assert message in said
    assert "Copy the whole bundle again, or export it again" in said
    assert capfd.readouterr() == ("", ""), "ONNX Runtime says nothing of its own"


def unknown_kernel(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Add")
    model.graph.node.insert(0, helper.make_node("RandomNormalLike", [node.input[1]], ["noise"]))
    node.input[1] = "noise"


def unknown_operator(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Add")
    node.op_type, node.domain = "Plus", "org.example"
    model.opset_import.append(helper.make_opsetid("org.example", 1))


def of_the_future(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 999


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (unknown_kernel, "no CPU kernel .* Use --backend replay"),
        (unknown_operator, "Use a newer one"),
        (of_the_future, "Use a newer one"),
    ],
)
def test_what_onnx_runtime_lacks_is_not_the_files_fault(
    made: Path,
    tmp_path: Path,
    change: Callable[[onnx.ModelProto], None],
    remedy: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    graph(change)(bundle)
    with pytest.raises(NotJudgedError, match=remedy) as caught:
        open_decoder(bundle, verify="nothing")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_graph_that_does_not_add_up_says_what_to_do(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))

    def dangling(model: onnx.ModelProto) -> None:
        model.graph.node[5].input[0] = "nowhere"

    graph(dangling)(bundle)
    with pytest.raises(UsageError, match=r"does not load .*nowhere.* Copy the whole bundle again"):
        open_decoder(bundle, verify="nothing")
    assert capfd.readouterr() == ("", "")


def test_a_node_that_fails_while_it_runs_is_told_once(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))

    def out_of_bounds(model: onnx.ModelProto) -> None:
        at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Add")
        node = model.graph.node[at]
        model.graph.initializer.append(helper.make_tensor("far", TensorProto.INT64, [1], [10**6]))
        gather = helper.make_node("Gather", [node.input[1], "far"], ["beyond"], axis=-1)
        node.input[1] = "beyond"
        model.graph.node.insert(at, gather)

    graph(out_of_bounds)(bundle)
    decoder = open_decoder(bundle, verify="nothing")
    with pytest.raises(ArtifactError, match="out of data bounds"):
        decoder.prefill(torch.arange(5)[None])
    assert capfd.readouterr() == ("", "")


def test_no_telemetry(tmp_path: Path) -> None:
    """ONNX Runtime keeps what it will report in a database under the home's cache; with telemetry off there is none."""
    code = (
        "import os, numpy as np\nfrom onnx import helper\n"
        "from pathlib import Path\n"
        "from blockexport.runtime.onnx_session import open_session, session_options\n"
        "ends = [helper.make_tensor_value_info(name, 1, [1]) for name in 'xy']\n"
        "graph = helper.make_graph([helper.make_node('Relu', ['x'], ['y'])], 'g', ends[:1], ends[1:])\n"
        "model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)\n"
        "session = open_session(model.SerializeToString(), session_options(), Path('x'), '')\n"
        "session.run(None, {'x': np.ones(1, np.float32)})\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name] == []
