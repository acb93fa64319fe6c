"""Attention without a mask: the same bits as with one, in every layer that has no window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from blockexport.export.bundle.manifest import read_manifest
from blockexport.export.lint.lint_graph import lint_file
from blockexport.export.lint.lint_target import CUDA
from blockexport.models.attention_forms import AttentionForms
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from tests.exported import PARALLEL, export, random_model

SLOTS = 29
ROWS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 0, 0, 0], [8, 50, 50, 50, 50, 50]])
LENGTHS = torch.tensor([6, 3, 1])
CASES: dict[str, tuple[Precision, dict[str, Any], dict[str, Any]]] = {
    "windows": (Precision.FP32, {}, {}),
    "half": (Precision.FP16, {"sliding_window": None, "layer_types": ()}, {}),
    "last half": (Precision.FP16, {}, {"last_logits_only": True}),
    "headless": (Precision.FP32, {"sliding_window": None, "layer_types": ()}, {"headless": True}),
    "capped": (Precision.FP32, {"attn_logit_softcapping": 5.0}, {}),
    "parallel": (Precision.FP16, {**PARALLEL, "qk_norm": False}, {}),
    "replayed last": (Precision.BF16, {}, {"last_logits_only": True}),
}


def _outputs(decoder: Decoder) -> list[torch.Tensor]:
    """Unequal rows, padded on the right, in chunks and steps up to the last slot; then a single row, whole."""
    table = torch.randn(101, decoder.config.hidden_size, generator=torch.Generator().manual_seed(3))
    given = table[ROWS] if decoder.headless else ROWS
    decoder.reset(3)
    outputs = [decoder.prefill(given, LENGTHS), decoder.prefill(given.flip(0), LENGTHS.flip(0))]
    outputs += [decoder.step(given[:, :1]) for _ in range(SLOTS - 8)]
    caches = [tensor for layer in range(3) for tensor in decoder.cache(layer)]
    outputs += [tensor.clone() for tensor in caches]
    decoder.reset(1)
    return [*outputs, decoder.prefill(given[:1].repeat(1, 4, *[1] * (given.ndim - 2))), decoder.step(given[:1, :1])]


@pytest.mark.parametrize("case", CASES)
def test_the_two_forms_are_the_same_bits(case: str, tmp_path: Path) -> None:
    precision, changes, options = CASES[case]
    export(random_model(**changes), tmp_path, precision, SLOTS, attention=AttentionForms.BOTH, **options)
    name = "replay" if precision is Precision.BF16 else "onnxruntime"
    masked, unmasked = (open_decoder(tmp_path, one, threads=1) for one in (name, f"{name}-nonpad"))
    for one, other in zip(_outputs(masked), _outputs(unmasked), strict=True):
        assert torch.equal(one, other) and not one.isnan().any()


def test_only_layers_without_a_window_change_and_no_mask_is_left_over(tmp_path: Path) -> None:
    for windowed in (True, False):
        changes = {} if windowed else {"sliding_window": None, "layer_types": ()}
        folder = tmp_path / str(windowed)
        manifest = export(random_model(**changes), folder, attention=AttentionForms.BOTH)
        assert manifest.graphs == ["model.onnx", "model.nonpad.onnx"]
        assert manifest.files["model.onnx"].made_from == manifest.files["model.nonpad.onnx"].made_from
        model = onnx.load(folder / "model.nonpad.onnx", load_external_data=False)
        forms = [(node.input[3], len(node.input)) for node in model.graph.node if node.op_type == "Attention"]
        assert [(mask != "", count) for mask, count in forms] == [
            (False, 7),
            (windowed, 4 if windowed else 7),
            (False, 7),
        ]
        comparisons = {node.op_type for node in model.graph.node} & {"LessOrEqual", "Greater", "And"}
        assert comparisons == ({"LessOrEqual", "Greater", "And"} if windowed else set())


def test_one_form_alone_is_the_main_graph(tmp_path: Path) -> None:
    export(random_model(), tmp_path, attention=AttentionForms.NONPAD)
    assert read_manifest(tmp_path).graphs == ["model.onnx"]
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert sum(len(node.input) == 7 for node in model.graph.node if node.op_type == "Attention") == 2
    with pytest.raises(UsageError, match=r"has no model\.nonpad\.onnx: export with --attention both"):
        open_decoder(tmp_path, "onnxruntime-nonpad")


def test_windows_everywhere_need_the_mask(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="every layer of this model has a sliding window"):
        export(random_model(layer_types=("sliding_attention",) * 3), tmp_path, attention=AttentionForms.NONPAD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("precision", "slots", "options", "rules"),
    [
        (Precision.FP32, 28, {}, {"grouped-float32"}),
        (Precision.FP32, 28, {"num_key_value_heads": 6}, set()),
        (Precision.FP16, 28, {}, set()),
        (Precision.BF16, 29, {}, {"mask-width"}),
    ],
)
def test_what_cuda_has_no_fast_kernel_for(
    precision: Precision, slots: int, options: dict[str, Any], rules: set[str], tmp_path: Path
) -> None:
    export(random_model(**options), tmp_path, precision, slots, attention=AttentionForms.BOTH)
    masked, unmasked = (lint_file(tmp_path / name, CUDA) for name in ("model.onnx", "model.nonpad.onnx"))
    assert {finding.rule for finding in masked.findings} == rules
    # The layer with a window has its mask still.
    assert [len(finding.nodes) for finding in unmasked.findings] == [1 if "mask-width" in rules else 3] * len(rules)
    # And TensorRT drops what takes the mask's place.
    assert lint_file(tmp_path / "model.onnx").findings == []
    assert {finding.rule for finding in lint_file(tmp_path / "model.nonpad.onnx").findings} >= {"nonpad-kv-seqlen"}
