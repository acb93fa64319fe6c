"""Matrices that compressed-tensors, GPTQ and AWQ have packed come into a quantised bundle code by code.

What they stand for is known from the numbers that were packed; `tests/packed_folders.py` unpacks nothing.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
import torch
import transformers
from safetensors import safe_open

from blockexport.compare.core.check import Verdict
from blockexport.compare.judged_bundle import as_stored
from blockexport.export.bundle.manifest import read_manifest
from blockexport.export.weights.weight_files import write_weights
from blockexport.models.checkpoints import packed_codes
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.taken_schemes import suited
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation, quantisation_of
from blockexport.models.quantised_matrix import QuantisationScheme
from blockexport.runtime.dequantised_checkpoint import DequantisedCheckpoint
from blockexport.runtime.onnx_session import ort
from blockexport.runtime.open import open_decoder
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.compare.static_judge import spoilt
from tests.export.taken_over import Made, judged_by, made_bundle, mistakes, parameters, rewritten
from tests.packed_folders import Pack, PackedFolder, write_packed

QUERY, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"
CASES: dict[str, tuple[Pack, str]] = {
    "compressed-tensors in order": (Pack("compressed-tensors", 4, 32, order=True, scales=torch.bfloat16), "qwen2"),
    "compressed-tensors of channels": (Pack("compressed-tensors", 8, None), "llama"),
    "GPTQ in order with zero points": (Pack("gptq", 4, 64, order=True, symmetric=False), "qwen2"),
    "GPTQ int8 of 128": (Pack("gptq", 8, 128, order=True, form="gptq_v2"), "llama"),
    "AWQ": (Pack("awq", 4, 32, symmetric=False), "llama"),
}


class Case(NamedTuple):
    """A folder, and the bundle of it; embedding and head stay in floating point."""

    source: PackedFolder
    pack: Pack
    quantisation: Quantisation
    made: Made

    @property
    def checkpoint(self) -> Checkpoint:
        return open_checkpoint(str(self.source.path))


def _asked(checkpoint: Checkpoint, bits: int, block_size: int | None = None) -> Quantisation:
    asked = quantisation_of(f"int{bits}", block_size or 32, "float", "float")
    return suited(asked, checkpoint, block_size_asked=block_size is not None)


def _case(folder: Path, name: str) -> Case:
    pack, family = CASES[name]
    source = write_packed(folder / "source", pack, family, num_hidden_layers=2)
    checkpoint = open_checkpoint(str(source.path))
    quantisation = _asked(checkpoint, pack.bits)
    return Case(source, pack, quantisation, made_bundle(folder / "bundle", checkpoint, quantisation))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {name: _case(tmp_path_factory.mktemp("packed"), name) for name in CASES}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def test_a_bundle_has_the_checkpoints_codes(case: Case) -> None:
    verdict, message = parameters(case.made.folder, case.checkpoint)
    assert verdict is Verdict.PASS, message
    assert "14 matrices have the checkpoint's own codes" in message
    manifest, group = read_manifest(case.made.folder), case.pack.group
    assert manifest.conversion["taken_over"].keys() == set(case.source.packed)
    assert manifest.quantisation == case.quantisation
    wanted = QuantisationScheme(case.pack.bits, group or 32, not case.pack.symmetric)
    assert case.quantisation.layers == wanted  # 96 inputs, 64 and 160 of a channel have blocks of 32 in common
    (note,) = [note for note in case.made.notes if "code by code" in note]
    assert f"14 in {case.checkpoint.entries[QUERY].stored_type}" in note


def test_eager_pytorch_reads_them_off_the_bundle(case: Case) -> None:
    """With zero points, and with the order that q, k and v share."""
    found = DequantisedCheckpoint(case.made.folder, read_manifest(case.made.folder))
    assert found.entries.keys() == case.checkpoint.entries.keys()
    for name in case.source.packed:
        assert torch.equal(found.read(name), case.source.values[name].float()), name


def test_logits_are_at_the_floor_of_what_the_folder_stands_for(case: Case) -> None:
    known = MemoryCheckpoint(case.source.config, case.source.values)
    report = judged_by(case.made.folder, known, "prefill", "decode")
    assert [result.verdict for result in report.checks] == [Verdict.PASS] * 2, report.checks
    stored, _ = as_stored(case.checkpoint, case.made.folder, read_manifest(case.made.folder))
    (integers,) = judged_by(case.made.folder, stored, "integers").checks
    assert integers.verdict is Verdict.PASS, integers.message


def test_the_greedy_text_is_that_of_transformers(case: Case, tmp_path: Path) -> None:
    """On the dequantised weights, which transformers loads as a checkpoint of its own."""
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(case.source.path, quantization_config=None)
    ).eval()
    missing = theirs.load_state_dict(case.source.values, strict=False)
    assert not missing.unexpected_keys and not missing.missing_keys
    ids = torch.tensor([[5, 17, 2, 88, 41, 63]])
    decoder = open_decoder(case.made.folder, exact=True)
    logits = decoder.prefill(ids)[:, -1]
    with torch.inference_mode():
        for _ in range(24):
            wanted = theirs(ids).logits[:, -1].float()
            torch.testing.assert_close(logits.float(), wanted, rtol=0, atol=2e-4 * float(wanted.abs().max()))
            following = logits.argmax(-1, keepdim=True)
            assert torch.equal(following, wanted.argmax(-1, keepdim=True))
            ids = torch.cat([ids, following], 1)
            logits = decoder.step(following)[:, -1]


def test_onnx_runtime_fuses_every_matrix(case: Case, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(str(case.made.folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    fused = Counter(
        node.op_type for node in onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph.node
    )
    assert fused["MatMulNBits"] == 8 and fused["DequantizeLinear"] == 0
    # q, k and v, which lie side by side, have one order of inputs, and so have gate and up. Of one group, none has any.
    stored = onnx.load(case.made.folder / "model.onnx", load_external_data=False).graph
    orders = [tensor.name for tensor in stored.initializer if tensor.name.endswith(".order")]
    ordered = {"compressed-tensors in order": 8, "GPTQ in order with zero points": 6, "GPTQ int8 of 128": 2}
    number = next((ordered[name] for name, value in CASES.items() if value[0] is case.pack and name in ordered), 0)
    assert len(orders) == number
    assert sum(node.op_type == "Gather" and node.input[1] in orders for node in stored.node) == number


Change = Callable[[pytest.MonkeyPatch], None]


def _instead(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Change:
    return lambda patch: patch.setattr(packed_codes, name, change(getattr(packed_codes, name)))


def _next_group(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda values, *rest: right(values.roll(1, 0), *rest)


def _swapped(right: Callable[..., Any]) -> Callable[..., Any]:
    def codes(words: torch.Tensor, bits: int) -> torch.Tensor:
        found: torch.Tensor = right(words, bits)
        return found.view(len(found), -1, 2).flip(2).reshape(found.shape)

    return codes


def _another_order(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def instead(right: Callable[..., Any]) -> Callable[..., Any]:
        def order(*given: object) -> tuple[torch.Tensor, bool]:
            return change(right(*given)[0]), True

        return order

    return _instead("order_of", instead)


ZEROS, ORDERED = "GPTQ in order with zero points", "compressed-tensors in order"
DEFECTS: dict[str, tuple[str, Change, str]] = {
    "halves of a byte swapped": (ORDERED, _instead("_along_rows", _swapped), "nibbles_swapped"),
    "sign off by eight": (
        ORDERED,
        _instead("_along_rows", lambda right: lambda *given: right(*given) ^ -8),
        "codes_off_by_half",
    ),
    "scales of the next group": (ORDERED, _instead("_of_blocks", _next_group), "neighbour_scale"),
    "scales along the other axis": (
        ORDERED,
        _instead("_of_blocks", lambda right: lambda values, *rest: right(values.T.reshape(values.shape), *rest)),
        "scales_turned",
    ),
    "order dropped": (ORDERED, _another_order(lambda order: torch.arange(len(order))), "groups_dropped"),
    "order turned round": (ORDERED, _another_order(torch.argsort), "groups_dropped"),
    "zero points one less": (
        ZEROS,
        _instead("_zero_points", lambda right: lambda *given: right(*given) - 1),
        "zero_point_ignored",
    ),
    "zero points ignored": (
        ZEROS,
        _instead("_zero_points", lambda right: lambda *given: right(*given) * 0),
        "zero_point_ignored",
    ),
    "outputs of AWQ as they stand": (
        "AWQ",
        lambda patch: patch.setattr(packed_codes, "_AWQ_ORDER", tuple(range(8))),
        "outputs_moved",
    ),
}


@pytest.mark.parametrize("defect", list(DEFECTS))
def test_a_reader_that_misreads_codes_is_found(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    name, change, mistake = DEFECTS[defect]
    case = cases[name]
    change(monkeypatch)
    bad = shutil.copytree(case.made.folder, tmp_path / "bad")
    rewritten(case.checkpoint, bad, quantisation=case.quantisation)
    verdict, message = parameters(bad, case.checkpoint)
    assert verdict is Verdict.FAIL and "has other values than the checkpoint's codes stand for" in message
    assert set(mistakes(bad, case.checkpoint).values()) == {mistake}


def test_an_order_that_is_wrong_in_the_file_is_found(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases[ORDERED]
    order = f"{DOWN}.order"
    swapped = spoilt(
        case.made.folder, tmp_path / "swapped", "model.safetensors", {order: lambda values: values.roll(40)}
    )
    verdict, message = parameters(swapped, case.checkpoint)
    assert verdict is Verdict.FAIL and f"{DOWN} has other values" in message
    assert mistakes(swapped, case.checkpoint) == {DOWN: "order_dropped"}
    twice = spoilt(case.made.folder, tmp_path / "twice", "model.safetensors", {order: lambda values: values // 2 * 2})
    verdict, message = parameters(twice, case.checkpoint)
    assert verdict is Verdict.FAIL and f"{DOWN} takes its inputs in an order that has some twice" in message


def test_an_order_that_the_graph_drops_is_found(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases[ORDERED]
    bad = shutil.copytree(case.made.folder, tmp_path / "bad")
    model = onnx.load(bad / "model.onnx", load_external_data=False)
    gathers = {node.output[0]: node for node in model.graph.node if node.op_type == "Gather"}
    (product,) = [node for node in model.graph.node if f"{DOWN}.codes" in _codes_of(model, node)]
    product.input[0] = gathers[product.input[0]].input[0]
    onnx.save(model, bad / "model.onnx")
    verdict, message = parameters(bad, case.checkpoint)
    assert verdict is Verdict.FAIL and f"{DOWN} has other values" in message
    assert mistakes(bad, case.checkpoint) == {DOWN: "order_dropped"}


def _codes_of(model: onnx.ModelProto, node: onnx.NodeProto) -> list[str]:
    """The codes that a product reads."""
    if node.op_type != "Gemm":
        return []
    return [str(maker.input[0]) for maker in model.graph.node if maker.output[0] == node.input[1]]


def test_blocks_that_are_asked_for_are_a_part_of_a_group_or_the_matrix_is_quantised_again(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    case = cases[ZEROS]
    small = _asked(case.checkpoint, 4, 32)
    assert small.layers == QuantisationScheme(4, 32, zero_points=True)
    made = made_bundle(tmp_path / "small", case.checkpoint, small)
    verdict, message = parameters(made.folder, case.checkpoint)
    assert verdict is Verdict.PASS and "14 matrices have the checkpoint's own codes" in message
    large = _asked(case.checkpoint, 4, 128)
    assert large.layers == QuantisationScheme(4, 128)
    made = made_bundle(tmp_path / "large", case.checkpoint, large)
    verdict, message = parameters(made.folder, case.checkpoint)
    assert verdict is Verdict.PASS and "14 matrices have the codes nearest" in message
    (twice,) = [note for note in made.notes if "a second time" in note]
    assert "14 in GPTQ int4 with zero points" in twice


def test_without_quantisation_they_are_dequantised_and_a_note_says_so(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["AWQ"]
    report = write_weights(case.checkpoint, tmp_path, Precision.FP32, list(case.checkpoint.entries)).report
    (note,) = report.notes()
    assert "stores weights quantised (14 in AWQ int4 with zero points" in note
    assert "--quantize int4 takes 14 of them over as they are" in note
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert all(torch.equal(file.get_tensor(name), values) for name, values in case.source.values.items())


def test_scales_that_the_bundle_would_round_are_refused(tmp_path: Path) -> None:
    source = write_packed(tmp_path / "source", Pack(scales=torch.float32), num_hidden_layers=1)
    checkpoint = open_checkpoint(str(source.path))
    with pytest.raises(UsageError, match=r"scales in float32, which float16 does not hold.*Export it without --quant"):
        rewritten(checkpoint, tmp_path, quantisation=_asked(checkpoint, 4))


def test_matrices_of_more_bits_than_asked_for_leave_the_scheme_alone(cases: dict[str, Case]) -> None:
    checkpoint = cases["GPTQ int8 of 128"].checkpoint
    asked = quantisation_of("int4", 32, "float", "float")
    assert suited(asked, checkpoint, block_size_asked=False) == asked
    wide = quantisation_of("int8", 32, "float", "float")
    assert suited(wide, checkpoint, block_size_asked=False) == replace(wide, layers=QuantisationScheme(8, 32 * 4))
