"""The replay of exported files: against ONNX Runtime in fp32, against eager's noise in half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

from blockexport.export.bundle.manifest import ONNX_FILE, Manifest, read_manifest
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.replay.replay_decoder import ReplayDecoder
from blockexport.runtime.replay.replay_graph import ReplayGraph
from tests.exported import export, random_model

SLOTS = 29
IDS = torch.randint(0, 101, (2, SLOTS), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "fp32"
    export(random_model(), folder, slots=SLOTS)
    return folder


@pytest.fixture(scope="module")
def half_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "fp16"
    export(random_model(), folder, Precision.FP16, slots=SLOTS)
    return folder


def unequal_rows(decoder: Decoder) -> list[torch.Tensor]:
    """A padded prefill of rows of 9 and 4 tokens, a chunk, and steps until the longer row fills its last slot."""
    decoder.reset(2)
    outputs = [decoder.prefill(IDS[:, :9], torch.tensor([9, 4])), decoder.prefill(IDS[:, 9:14])]
    return outputs + [decoder.step(IDS[:, i : i + 1]) for i in range(14, SLOTS)]


def test_equals_onnx_runtime_in_fp32(bundle: Path) -> None:
    replay, runtime = open_decoder(bundle, "replay"), open_decoder(bundle, "onnxruntime")
    for got, want in zip(unequal_rows(replay), unequal_rows(runtime), strict=True):
        assert float((got - want).abs().max()) < 3e-6 * float(want.abs().max())
    for layer in range(3):
        for got, want in zip(replay.cache(layer), runtime.cache(layer), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{"headless": True}, {"last_logits_only": True}], ids=lambda x: next(iter(x)))
def test_other_ends(tmp_path: Path, options: dict[str, Any]) -> None:
    export(random_model(), tmp_path, slots=SLOTS, **options)
    replay, runtime = open_decoder(tmp_path, "replay"), open_decoder(tmp_path, "onnxruntime")
    inputs = torch.randn(1, 9, 24) if replay.headless else IDS[:1, :9]
    got, want = replay.prefill(inputs), runtime.prefill(inputs)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_m_may_be_declared_anew(bundle: Path) -> None:
    short, long = open_decoder(bundle, "replay", max_sequence_length=17), open_decoder(bundle, "replay")
    assert short.cache(0)[0].shape[2] == 17
    torch.testing.assert_close(short.prefill(IDS[:1, :17]), long.prefill(IDS[:1, :17]), rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match=r"1\.\.64"):
        open_decoder(bundle, "replay", max_sequence_length=65)


def test_half_precision_has_eagers_noise(half_bundle: Path) -> None:
    """In fp16 the replay's error against float64 is that of eager fp16, and not that of a widened graph."""
    checkpoint = random_model()
    exact = unequal_rows(EagerDecoder(load_model(checkpoint, torch.float64, SLOTS), SLOTS))
    eager = unequal_rows(EagerDecoder(load_model(checkpoint, torch.float16, SLOTS), SLOTS))
    replay = unequal_rows(open_decoder(half_bundle, "replay"))

    def rms(outputs: list[torch.Tensor]) -> float:
        # Row 0 alone: the logits of row 1's padding mean nothing.
        difference = torch.cat([x[:1].double() - y[:1] for x, y in zip(outputs, exact, strict=True)], 1)
        return float(difference.square().mean().sqrt())

    assert replay[0].dtype == torch.float16
    assert 0.6 < rms(replay) / rms(eager) < 1.5


def test_each_value_has_its_declared_type(half_bundle: Path) -> None:
    decoder = open_decoder(half_bundle, "replay")
    assert isinstance(decoder, ReplayDecoder)
    types: dict[str, torch.dtype] = {}
    decoder.observer = lambda name, value: types.update({name: value.dtype})
    decoder.prefill(IDS[:1, :3])
    assert types["model.layers.1.self_attn.q_proj.linear"] == torch.float16
    assert types["model.layers.1.add"] == types["logits"] == types["present.2.value"] == torch.float16
    # The turn itself is in float32, between casts.
    assert {dtype for name, dtype in types.items() if name.endswith(".widened")} == {torch.float32}
    assert len(types) == len(list(decoder.graph.model.graph))


def test_weights_are_mapped_and_not_copied(bundle: Path) -> None:
    graph = ReplayGraph.load(bundle / ONNX_FILE)
    size = (bundle / "model.safetensors").stat().st_size
    weights = [graph._weights["model.layers.0.mlp.up_proj.weight"], graph._weights["model.layers.2.mlp.up_proj.weight"]]
    assert {weight.untyped_storage().data_ptr() for weight in weights} == {weights[0].untyped_storage().data_ptr()}
    assert weights[0].untyped_storage().nbytes() == size
    torch.testing.assert_close(weights[0], random_model().read("model.layers.0.mlp.up_proj.weight"))


def test_values_are_dropped_after_their_last_use(bundle: Path) -> None:
    """What is alive at once is what one layer needs, however deep the graph."""
    graph = ReplayGraph.load(bundle / ONNX_FILE)
    alive, most = set(graph.inputs), 0
    for node, dropped in zip(graph._nodes, graph._dropped, strict=True):
        alive |= {str(node.outputs[0].name)}
        most = max(most, len(alive))
        alive -= set(dropped)
    assert alive == set(graph.outputs) and most < 40 < len(graph._nodes)


def test_unknown_operators_are_named_together(bundle: Path) -> None:
    model = ir.load(bundle / ONNX_FILE)
    for old, (domain, new) in {"Sigmoid": ("com.microsoft", "QuickGelu"), "Add": ("", "Hardmax")}.items():
        node = next(n for n in model.graph if n.op_type == old)
        node.op_type, node.domain = new, domain
    with pytest.raises(NotJudgedError, match=r"Hardmax, com\.microsoft::QuickGelu.*--backend onnxruntime"):
        ReplayGraph(model, bundle)


def test_damaged_files_are_one_message(bundle: Path, tmp_path: Path) -> None:
    for name in ("model.onnx", "rope.safetensors"):
        (tmp_path / name).write_bytes((bundle / name).read_bytes())
    with pytest.raises(UsageError, match=r"model\.safetensors, and there is no such file"):
        ReplayGraph.load(tmp_path / ONNX_FILE)
    (tmp_path / "model.safetensors").write_bytes((bundle / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"ends before the bytes of .*export it again"):
        ReplayGraph.load(tmp_path / ONNX_FILE)
    (tmp_path / ONNX_FILE).write_bytes(b"not a graph")
    with pytest.raises(UsageError, match="not a readable ONNX file"):
        ReplayGraph.load(tmp_path / ONNX_FILE)


def test_norm_statistics_in_half_show_only_here(half_bundle: Path) -> None:
    """The same file with `stash_type` half: another result in the replay."""
    manifest: Manifest = read_manifest(half_bundle)
    model = ir.load(half_bundle / ONNX_FILE)
    for node in model.graph:
        if node.op_type == "RMSNormalization":
            node.attributes["stash_type"] = ir.AttrInt64("stash_type", 10)
    halved = ReplayDecoder(ReplayGraph(model, half_bundle), manifest.interface)
    good = open_decoder(half_bundle, "replay").prefill(IDS[:1, :9])
    assert float((halved.prefill(IDS[:1, :9]) - good).abs().max()) > 0.002
