"""A quantised export: what is in its files, and that ONNX Runtime computes the model on those weights from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors import safe_open

from blockexport.export.bundle.manifest import read_manifest, write_manifest
from blockexport.export.onnx_export import export_onnx
from blockexport.export.weights import matrix_layout
from blockexport.export.weights.block_quantiser import quantise, quantise_strips
from blockexport.export.weights.weight_files import write_weights
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD, expected_tensors
from blockexport.models.checkpoints.untied_checkpoint import UntiedCheckpoint
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation, quantisation_of, scale_dtype
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.onnx_session import ort
from blockexport.runtime.open import open_decoder
from tests.compare.memory_checkpoint import MemoryCheckpoint, eager_model
from tests.exported import EVERYTHING, gainful
from tests.stored_codes import place_of

SLOTS = 40
TIED = gainful(replace(EVERYTHING, tie_word_embeddings=True))
UNTIED = gainful(replace(EVERYTHING, tie_word_embeddings=False))


class Case(NamedTuple):
    """An export that was made for the tests of this file."""

    folder: Path
    checkpoint: Checkpoint
    quantisation: Quantisation
    precision: Precision

    @property
    def stored(self) -> dict[str, torch.Tensor]:
        """The model's tensors as the bundle should have them, in float32: worked out here, by the quantiser's rule."""
        config = self.quantisation.stored_config(self.checkpoint.config)
        tensors = {}
        for name in expected_tensors(config):
            known = name in self.checkpoint.entries
            values = self.checkpoint.read(name if known else EMBEDDING)
            scheme = self.quantisation.scheme_of(name)
            if scheme is None:
                tensors[name] = values.to(self.precision.torch_dtype).float()
            else:
                tensors[name] = quantise(name, values, scheme, scale_dtype(self.precision))[0].dequantised()
        return tensors


CASES = {
    "int4": (TIED, quantisation_of("int4"), Precision.FP32),
    "int8 in fp16, blocks of 64": (UNTIED, quantisation_of("int8", 64), Precision.FP16),
    "int4 in bf16": (TIED, quantisation_of("int4", 128, "int4"), Precision.BF16),
    "float head": (TIED, quantisation_of("int8", 32, "float", "int8"), Precision.FP32),
    "float embedding": (TIED, quantisation_of("int4", 32, "int4", "float"), Precision.FP32),
    "float ends": (TIED, quantisation_of("int4", 32, "float", "float"), Precision.FP32),
}
IN_ONNX_RUNTIME = [name for name, (_, _, precision) in CASES.items() if precision is not Precision.BF16]


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    checkpoint, quantisation, precision = CASES[request.param]
    folder = tmp_path_factory.mktemp("quantised")
    interface = Interface(checkpoint.config, precision.element, SLOTS)
    write_manifest(folder, export_onnx(checkpoint, folder, interface, quantisation=quantisation))
    return Case(folder, checkpoint, quantisation, precision)


def _initializers(folder: Path) -> dict[str, np.ndarray]:
    model = onnx.load(folder / "model.onnx")  # with the external data, which onnx reads itself
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_the_graph_points_to_codes_and_scales_of_every_matrix(case: Case) -> None:
    found = _initializers(case.folder)
    for name, wanted in case.stored.items():
        scheme = case.quantisation.scheme_of(name)
        if scheme is None:
            assert np.array_equal(found[name].astype(np.float32), wanted.numpy()), name
            continue
        assert name not in found
        whole, outputs = place_of(case.folder, name, found)
        axis = 1 if name == EMBEDDING else 0
        codes, scales = (found[f"{whole}.{part}"].astype(np.float32) for part in ("codes", "scales"))
        if axis == 0:
            codes, scales = codes[:, outputs], scales[:, outputs]
        spread = np.repeat(scales, scheme.block_size, axis).take(range(codes.shape[axis]), axis)
        values = codes * spread
        assert np.array_equal(values if name == EMBEDDING else values.T, wanted.numpy()), name


def test_other_readers_take_the_files(case: Case) -> None:
    onnx.checker.check_model(str(case.folder / "model.onnx"), full_check=True)
    with safe_open(case.folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
        packed = file.get_tensor("model.layers.1.mlp.down_proj.weight.codes")
    quantised = [name for name in case.stored if case.quantisation.scheme_of(name)]
    matrices = {place_of(case.folder, name, names)[0] for name in quantised}
    assert len(matrices) == len(quantised) - 3 * case.checkpoint.config.num_hidden_layers
    assert {f"{name}.{part}" for name in matrices for part in ("codes", "scales")} <= names
    assert len(names) == len(case.stored) - len(quantised) + 2 * len(matrices)
    bits, (hidden, width) = case.quantisation.layers.bits, (24, 44)
    assert (packed.dtype, packed.numel()) == (
        (torch.uint8, hidden * width // 2) if bits == 4 else (torch.int8, 24 * 44)
    )


def test_operators_are_standard_and_matrices_lie_as_they_are_fused(case: Case) -> None:
    model = onnx.load(case.folder / "model.onnx", load_external_data=False)
    makers = {node.output[0]: node for node in model.graph.node}
    assert all(not node.domain for node in model.graph.node)
    products = [node for node in model.graph.node if node.op_type == "Gemm"]
    quantised = [node for node in products if makers.get(node.input[1], node).op_type == "DequantizeLinear"]
    layers = 4 * case.checkpoint.config.num_hidden_layers
    assert len(quantised) == layers + (case.quantisation.head is not None)
    assert len(products) == layers + 1
    for node in quantised:
        (transposed,) = [item.i for item in node.attribute if item.name == "transB"]
        axis = {item.name: item.i for item in makers[node.input[1]].attribute}["axis"]
        assert (transposed, axis) == (0, 0), node.name


def test_the_manifest_says_how(case: Case) -> None:
    manifest = read_manifest(case.folder)
    assert manifest.quantisation == case.quantisation
    assert manifest.config == case.checkpoint.config
    errors = manifest.conversion["quantisation_errors"]
    assert errors.keys() == {name for name in case.stored if case.quantisation.scheme_of(name)}
    rough = {4: (0.04, 0.13), 8: (0.002, 0.01)}
    for name, error in errors.items():
        scheme = case.quantisation.scheme_of(name)
        assert scheme is not None
        low, high = rough[scheme.bits]
        assert low < error < high, name


@pytest.mark.parametrize("case", IN_ONNX_RUNTIME, indirect=True)
def test_onnx_runtime_computes_the_model_on_these_weights(case: Case) -> None:
    off = _off(case, open_decoder(case.folder, exact=True))
    assert off < (2e-5 if case.precision is Precision.FP32 else 2e-2)
    rounded = _off(case, open_decoder(case.folder))
    assert max(5e-4, 1.1 * off) < rounded < 0.2  # activations in 8 bits, as it is run for speed


def test_the_replay_computes_the_model_on_these_weights(case: Case) -> None:
    room = {Precision.FP32: 2e-5, Precision.FP16: 2e-2, Precision.BF16: 0.1}
    assert _off(case, open_decoder(case.folder, "replay")) < room[case.precision]


def _off(case: Case, decoder: Decoder) -> float:
    """The largest difference of a decoder's logits from eager's in float32, over the largest of these."""
    config = case.quantisation.stored_config(case.checkpoint.config)
    ids = torch.randint(0, config.vocab_size, (1, 9), generator=torch.Generator().manual_seed(0))
    model = eager_model(MemoryCheckpoint(config, case.stored))
    with torch.inference_mode():
        wanted = model(ids, torch.arange(9)[None], empty_cache(config, 1, SLOTS, torch.float32))[0]
    found = torch.cat([decoder.prefill(ids[:, :5]), *(decoder.step(ids[:, i : i + 1]) for i in range(5, 9))], 1)
    return float((found.float() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("case", IN_ONNX_RUNTIME, indirect=True)
def test_onnx_runtime_fuses_every_matrix(case: Case, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(str(case.folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx", load_external_data=False)
    fused = Counter(node.op_type for node in optimised.graph.node)
    head = case.quantisation.head is not None
    assert fused["MatMulNBits"] == 4 * case.checkpoint.config.num_hidden_layers + head
    assert fused["DequantizeLinear"] == (case.quantisation.embedding is not None)


def test_a_tied_table_is_quantised_once_for_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, *given: Any) -> Any:
        done.append(name)
        return quantise_strips(name, *given)

    monkeypatch.setattr(matrix_layout, "quantise_strips", noted)
    for head, times in (("int8", 1), ("int4", 2)):
        folder = tmp_path / head
        folder.mkdir()
        quantisation, names = quantisation_of("int4", head=head), list(expected_tensors(UNTIED.config))
        done.clear()
        written = write_weights(UntiedCheckpoint(TIED), folder, Precision.FP16, names, quantisation)
        assert sum(name in (EMBEDDING, OUTPUT_HEAD) for name in done) == times
        assert {EMBEDDING, OUTPUT_HEAD} <= written.report.quantisation_errors.keys()


def test_the_same_export_is_the_same_bytes_and_a_headless_one_has_no_ends(tmp_path: Path) -> None:
    quantisation = quantisation_of("int4")
    content = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        interface = Interface(TIED.config, Precision.FP32.element, SLOTS, Ends.HIDDEN_STATES)
        export_onnx(TIED, folder, interface, quantisation=quantisation)
        content.append([(folder / file).read_bytes() for file in ("model.onnx", "model.safetensors")])
    assert content[0] == content[1]
    assert not any(name.startswith((EMBEDDING, OUTPUT_HEAD)) for name in _initializers(tmp_path / "one"))
