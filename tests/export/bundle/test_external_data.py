"""Places of external data that can be read in more than one way are refused, by every command that reads a graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from blockexport.cli.main import main
from blockexport.export.bundle.external_data import ExternalPlace, external_places
from blockexport.export.bundle.manifest import read_manifest, sha256_of, write_manifest
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from tests.export.tensorrt.trt_support import rtx
from tests.exported import export
from tests.small_models import small_config, small_weights, write_folder

BAD = {
    "offset": ["abc", "1e3", "4096.0", "-4096", "+4096", " 4096", "4_096", "0x1000", "\u0664\u0660", "", "9" * 30],
    "length": ["12x", "", "-1", "18446744073709551616"],
    "location": ["", "/etc/passwd", "../model.safetensors", "a/../../b"],
}
CASES = [(key, value) for key, values in BAD.items() for value in values]


def external(**where: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 5], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights", "offset": "64", "length": "60", **where}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def graph(nodes: list[onnx.NodeProto], *weights: TensorProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", [], [], initializer=weights)


def at_the_top(tensor: TensorProto) -> onnx.ModelProto:
    return helper.make_model(graph([], tensor))


def in_a_constant(tensor: TensorProto) -> onnx.ModelProto:
    return helper.make_model(graph([helper.make_node("Constant", [], ["c"], value=tensor)]))


def in_a_body(tensor: TensorProto) -> onnx.ModelProto:
    body = graph([], tensor)
    return helper.make_model(graph([helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=graph([]))]))


def in_a_function(tensor: TensorProto) -> onnx.ModelProto:
    made = at_the_top(external())
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    made.functions.append(helper.make_function("d", "f", [], ["c"], [node], [helper.make_opsetid("", 24)]))
    return made


def sparse(tensor: TensorProto) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=tensor, indices=TensorProto(name="i"), dims=[15])


def in_a_sparse_initializer(tensor: TensorProto) -> onnx.ModelProto:
    made = at_the_top(external())
    made.graph.sparse_initializer.append(sparse(tensor))
    return made


def in_a_sparse_constant(tensor: TensorProto) -> onnx.ModelProto:
    return helper.make_model(graph([helper.make_node("Constant", [], ["c"], sparse_value=sparse(tensor))]))


def in_a_default_of_a_function(tensor: TensorProto) -> onnx.ModelProto:
    made = in_a_function(external())
    made.functions[0].attribute_proto.append(helper.make_attribute("a", tensor))
    return made


def in_a_graph_of_training(tensor: TensorProto) -> onnx.ModelProto:
    made = at_the_top(external())
    made.training_info.add().algorithm.CopyFrom(graph([], tensor))
    return made


PLACES = (
    at_the_top, in_a_constant, in_a_body, in_a_function, in_a_sparse_initializer, in_a_sparse_constant,
    in_a_default_of_a_function, in_a_graph_of_training,
)  # fmt: skip


@pytest.mark.parametrize("where", PLACES)
def test_a_place_is_read_in_one_way_or_refused(where: Callable[[TensorProto], onnx.ModelProto]) -> None:
    path = Path("model.onnx")
    assert ExternalPlace("w", "weights", 64, 60, 60) in external_places(where(external()), path)
    for key, value in CASES:
        with pytest.raises(UsageError, match=r"^model\.onnx .*values of w .*export it again"):
            external_places(where(external(**{key: value})), path)
    twice = external()
    twice.external_data.add(key="offset", value="128")
    with pytest.raises(UsageError, match="says twice where the values of w are"):
        external_places(where(twice), path)


def test_what_need_not_be_said() -> None:
    tensor = external()
    del tensor.external_data[1:]
    assert external_places(at_the_top(tensor), Path("m")) == [ExternalPlace("w", "weights", 0, None, 60)]
    tensor.data_type = TensorProto.INT4
    assert external_places(at_the_top(tensor), Path("m")) == [ExternalPlace("w", "weights", 0, None, None)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    config = small_config("llama", num_hidden_layers=1, head_dim=64, max_position_embeddings=64)
    write_folder(folder / "model", config, small_weights(config))
    export(open_checkpoint(str(folder / "model")), folder / "bundle", Precision.FP16, slots=24)
    return folder


def spoil(bundle: Path, key: str, value: str) -> None:
    """Another place for one weight, and a manifest that agrees with the graph."""
    path = bundle / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    tensor = next(t for t in model.graph.initializer if t.name.endswith("input_layernorm.weight"))
    next(entry for entry in tensor.external_data if entry.key == key).value = value
    path.write_bytes(model.SerializeToString())
    manifest = read_manifest(bundle)
    entry = replace(manifest.files["model.onnx"], sha256=sha256_of(path), bytes=path.stat().st_size)
    write_manifest(bundle, replace(manifest, files={**manifest.files, "model.onnx": entry}))


COMMANDS = {
    "compare": ("compare", "{bundle}", "--quiet"),
    "compare with replay": ("compare", "{bundle}", "--backend", "replay", "--quiet"),
    "compare --onnx": ("compare", "--onnx", "{bundle}/model.onnx", "--model", "{model}", "--quiet"),
    "lint": ("lint", "{bundle}/model.onnx"),
    "trt": ("trt", "{bundle}", "--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--quiet"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_spoilt_place_is_bad_input_to_every_command(
    command: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "trt":
        rtx()
    for key, value in (("offset", "abc"), ("length", "12x"), ("offset", "1e3")):
        bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle", dirs_exist_ok=True))
        spoil(bundle, key, value)
        before = {path.name for path in bundle.iterdir()}
        arguments = [word.format(bundle=bundle, model=made / "model") for word in COMMANDS[command]]
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and f"have the {key} '{value}', and it must be a number" in captured.err
        assert {path.name for path in bundle.iterdir()} == before


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("offset", "1000000000", "which the graph reads up to byte 1000000096"),
        ("length", "94", "have 94 bytes, and its shape and type need 96"),
    ],
)
def test_trt_builds_from_whole_weights_alone(
    key: str, value: str, said: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rtx()
    bundle = Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))
    spoil(bundle, key, value)
    assert main(["trt", str(bundle), "--backend", "tensorrt-rtx", "--compute-capability", "8.9"]) == 2
    assert said in capsys.readouterr().err
