"""What an export writes beside the graph: hashes, ports, and the configs of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from transformers import AutoConfig

from blockexport.export.bundle.manifest import read_manifest, sha256_of
from blockexport.export.onnx_export import export_onnx
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from tests.exported import export, random_model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "bundle"
    export(random_model(model_type="llama", qk_norm=False, sliding_window=None, layer_types=()), folder, slots=29)
    return folder


def test_every_file_is_in_the_manifest_with_its_hash(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    written = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert set(manifest.files) == written - {"manifest.json"}
    for name, entry in manifest.files.items():
        assert (sha256_of(bundle / name), (bundle / name).stat().st_size) == (entry.sha256, entry.bytes)
    graph = manifest.files["model.onnx"].made_from
    assert graph == {name: manifest.files[name].sha256 for name in ("model.safetensors", "rope.safetensors")}


def test_ports_are_those_of_the_file(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    proto = onnx.load(bundle / "model.onnx", load_external_data=False)
    assert [port.name for port in manifest.inputs] == [value.name for value in proto.graph.input]
    assert [port.name for port in manifest.outputs] == [value.name for value in proto.graph.output]
    assert manifest.inputs[2].shape == ("batch_size", 2, 29, 10) and manifest.inputs[2].dtype == "float32"
    assert manifest.outputs[0].aliases is None
    assert [port.aliases for port in manifest.outputs[1:]] == [port.name for port in manifest.inputs[2:]]


def test_transformers_reads_the_config(bundle: Path) -> None:
    config = AutoConfig.from_pretrained(bundle)
    assert (config.model_type, config.num_key_value_heads, config.head_dim) == ("llama", 2, 10)


@pytest.mark.parametrize(("eos", "said"), [((), None), ((2,), 2), ((2, 7), [2, 7])])
def test_genai_config_names_the_stop_tokens(eos: tuple[int, ...], said: object, tmp_path: Path) -> None:
    export(random_model(eos_token_ids=eos, num_hidden_layers=1, layer_types=()), tmp_path, Precision.FP16)
    model = json.loads((tmp_path / "genai_config.json").read_text())["model"]
    assert model.get("eos_token_id") == said
    assert "attention_mask" not in model["decoder"]["inputs"]
    assert model["context_length"] == 29


@pytest.mark.parametrize(
    ("ends", "kept"),
    [((2,), 2), ((101,), None), ((100, 101), 100), ((5, 4096, 7), [5, 7]), ((), None), ((2**31 - 1,), None)],
)
def test_an_end_beyond_the_vocabulary_is_left_out_with_a_note(
    ends: tuple[int, ...], kept: object, tmp_path: Path
) -> None:
    """onnxruntime-genai refuses such a folder, and is asked; the model itself can never give that token."""
    og = pytest.importorskip("onnxruntime_genai")
    notes: list[str] = []
    model = random_model(
        model_type="llama", qk_norm=False, sliding_window=None, layer_types=(), num_hidden_layers=1, eos_token_ids=ends
    )
    export_onnx(model, tmp_path, Interface(model.config, Precision.FP32.element, 29), note=notes.append)
    beyond = [end for end in ends if end >= 101]
    said = [note for note in notes if "eos_token_id" in note]
    assert len(said) == bool(beyond) and all(str(end) in said[0] and "101" in said[0] for end in beyond)
    assert json.loads((tmp_path / "genai_config.json").read_text())["model"].get("eos_token_id") == kept
    loaded = og.Model(str(tmp_path))
    parameters = og.GeneratorParams(loaded)
    parameters.set_search_options(max_length=5)
    generator = og.Generator(loaded, parameters)
    generator.append_tokens([1, 3, 8])
    generator.generate_next_token()
    assert len(generator.get_sequence(0)) == 4
