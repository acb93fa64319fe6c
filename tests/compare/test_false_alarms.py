"""No false alarms: sound files of random models, of every family and option, pass every check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from blockexport.compare.checks.catalogue import choose_checks
from blockexport.compare.core.check import Verdict
from blockexport.compare.judged_bundle import as_stored, bundle_options
from blockexport.compare.report.report import Report
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.formats.config_hf_write import config_to_hf
from blockexport.models.precision import Precision
from blockexport.models.quantisation import Quantisation
from blockexport.runtime.open import open_decoder
from tests.any_model import BLOCKS, FAMILIES, Drawn, draw, draw_quantised, draw_sharp, weights_of, write
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.conftest import TABLE
from tests.exported import export
from tests.newer_models import NEWER, draw_newer

MODELS = 200
LIKE_OTHERS = (
    *("ernie4_5", "ministral", "seed_oss", "starcoder2", "arcee", "cwm", "exaone", "glm", "glm4", "granitemoehybrid"),
    *("helium", "hyperclovax", "internlm3", "iquestcoder", "jais2", "minicpm", "vaultgemma"),
)
FEW = ((draw, range(8)), (draw_newer, [seed for seed, family in enumerate(NEWER) if family not in LIKE_OTHERS]))
"""Of them in `make test`: every family whose options others do not have."""
SHARP_MODELS = 400
FEW_SHARP = (*range(0, 54, 9), 63, 137, 340)
"""Of every family, precision and sharpness; and two that need the second look."""

QUANTISED_MODELS = 40
FEW_QUANTISED = (0, 5, 10, 15, 23)  # and one whose head is in codes and sees the last token alone

Record = Callable[[str, str], None]


def backends(drawn: Drawn) -> tuple[str, ...]:
    """A file in fp16 in the arithmetic of its target as well, which ONNX Runtime does not have on a CPU."""
    every = {Precision.FP32: ("onnxruntime",), Precision.FP16: ("onnxruntime", "replay"), Precision.BF16: ("replay",)}
    return every[drawn.precision]


def judged(drawn: Drawn, seed: int, folder: Path) -> dict[str, Report]:
    """Write the checkpoint, read it, export it and let the file be judged on each backend."""
    said = config_to_hf(drawn.config)
    if not drawn.in_gguf and (said is None or said["model_type"] != drawn.config.model_type):
        return judged_checkpoint(MemoryCheckpoint(drawn.config, weights_of(drawn, seed)), drawn, folder)
    checkpoint = open_checkpoint(str(write(drawn, seed, folder / "source")))
    assert checkpoint.config == drawn.config
    if drawn.in_gguf:  # its made-up tokens are no tokenizer, without which a GGUF file is not exported
        checkpoint = MemoryCheckpoint(checkpoint.config, {name: checkpoint.read(name) for name in checkpoint.entries})
    return judged_checkpoint(checkpoint, drawn, folder)


def judged_checkpoint(
    checkpoint: Checkpoint, drawn: Drawn, folder: Path, quantisation: Quantisation | None = None
) -> dict[str, Report]:
    """Export a checkpoint and let the file be judged on each backend."""
    ends = {"headless": drawn.headless, "last_logits_only": drawn.last_logits_only}
    manifest = export(checkpoint, folder / "bundle", drawn.precision, drawn.slots, quantisation=quantisation, **ends)
    reports = {}
    for backend in backends(drawn):
        decoder = open_decoder(folder / "bundle", backend, threads=1, exact=quantisation is not None)
        stored, _ = as_stored(checkpoint, folder / "bundle", manifest)
        reports[backend] = judge(decoder, stored, bundle_options(folder / "bundle", backend))
    return reports


@pytest.mark.parametrize(
    ("drawing", "seed"),
    [
        pytest.param(drawing, seed, marks=() if seed in few else pytest.mark.full)
        for drawing, few in FEW
        for seed in range(MODELS)
    ],
)
def test_a_sound_file_passes(
    drawing: Callable[[int], Drawn], seed: int, tmp_path: Path, record_property: Record
) -> None:
    drawn = drawing(seed)
    for backend, report in judged(drawn, seed, tmp_path).items():
        record_property(TABLE, _row(seed, backend, drawn, report))
        alarms = [f"{r.name}: {r.message}" for r in report.checks if r.verdict is not Verdict.PASS]
        assert not alarms, f"{drawn} in {backend}: {alarms}"
        assert len(report.checks) + len(report.skipped) == len(choose_checks()) and len(report.checks) >= 15


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=() if i in FEW_SHARP else pytest.mark.full) for i in range(SHARP_MODELS)]
)
def test_a_sound_file_with_a_sharp_softmax_passes(seed: int, tmp_path: Path, record_property: Record) -> None:
    """Where nearly all of a head's attention goes to one token, eager's own error at a position is a matter of luck."""
    drawn = draw_sharp(seed)
    checkpoint = MemoryCheckpoint(drawn.config, weights_of(drawn, seed))
    for backend, report in judged_checkpoint(checkpoint, drawn, tmp_path).items():
        record_property(TABLE, f"{report.verdict:10} {_row(seed, backend, drawn, report)}")
        alarms = [f"{r.name}: {r.message}" for r in report.checks if r.verdict is Verdict.FAIL]
        assert not alarms, f"{drawn} in {backend}: {alarms}"


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=() if i in FEW_QUANTISED else pytest.mark.full) for i in range(QUANTISED_MODELS)]
)
def test_a_sound_quantised_file_passes(seed: int, tmp_path: Path, record_property: Record) -> None:
    """Judged on the weights that it has, and those held against the checkpoint's."""
    drawn, quantisation = draw_quantised(seed)
    checkpoint = MemoryCheckpoint(drawn.config, weights_of(drawn, seed))
    for backend, report in judged_checkpoint(checkpoint, drawn, tmp_path, quantisation).items():
        record_property(TABLE, f"{report.verdict:10} {_row(seed, backend, drawn, report)}, {_said(quantisation)}")
        alarms = [f"{r.name}: {r.message}" for r in report.checks if r.verdict is Verdict.FAIL]
        assert not alarms, f"{drawn} {quantisation} in {backend}: {alarms}"
        assert drawn.sharpness > 1 or report.verdict is Verdict.PASS, report.summary
        assert "parameters" in {result.name for result in report.checks}


@pytest.mark.parametrize("number", [pytest.param(i, marks=pytest.mark.full if i % 8 else ()) for i in range(16)])
def test_a_sound_quantised_file_of_a_newer_family_passes(number: int, tmp_path: Path) -> None:
    other, quantisation = draw_quantised(number + 40)
    drawn = draw_newer(number + 2, other)
    checkpoint = MemoryCheckpoint(drawn.config, weights_of(drawn, number))
    for backend, report in judged_checkpoint(checkpoint, drawn, tmp_path, quantisation).items():
        alarms = [f"{r.name}: {r.message}" for r in report.checks if r.verdict is Verdict.FAIL]
        assert not alarms, f"{drawn} {quantisation} in {backend}: {alarms}"


def test_the_newer_models_have_every_option() -> None:
    configs = [draw_newer(seed).config for seed in range(MODELS)]
    assert {config.model_type for config in configs} == set(NEWER)
    both = {(one.config.model_type, one.precision) for one in map(draw_newer, range(2 * len(NEWER)))}
    assert both == set(product(NEWER, (Precision.FP32, Precision.FP16)))
    plain = draw(0).config
    for name in (
        "norm_placement",
        "norm_gain_offset",
        "qk_norm_over",
        "qk_norm_after_rope",
        "query_growth",
        "hidden_act",
        "query_scale",
        "sliding_rope_theta",
        "norm",
        "norm_weight",
        "norm_bias",
        "rotary_dim",
        "rope_interleaved",
        "gated_mlp",
        "layers_without_rope",
        "learned_positions",
        "head_bias",
    ):
        assert any(getattr(config, name) != getattr(plain, name) for config in configs), name
    assert {config.residual for config in configs} == {"serial", "parallel", "parallel_one_norm"}
    for name in ("embedding_multiplier", "residual_multiplier", "logits_multiplier"):
        assert any(getattr(config, name) != 1.0 for config in configs), name
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "rope_scaling"):
        assert {getattr(config, name) is None for config in configs} == {True, False}, name


def _said(quantisation: Quantisation) -> str:
    parts = (quantisation.layers, quantisation.head, quantisation.embedding)
    return f"{'/'.join('float' if one is None else f'int{one.bits}' for one in parts)} by {parts[0].block_size}"


def test_the_quantised_models_have_every_option() -> None:
    drawn = [draw_quantised(seed) for seed in range(QUANTISED_MODELS)]
    for few in (range(QUANTISED_MODELS), FEW_QUANTISED):
        assert {drawn[i][1].layers.bits for i in few} == {4, 8}
        assert {drawn[i][0].precision for i in few} == set(Precision)
        assert {drawn[i][0].config.model_type for i in few} == set(FAMILIES)
    assert {(q.layers.bits, q.layers.block_size, d.sharpness) for d, q in drawn} == set(product((4, 8), BLOCKS, (1, 5)))
    assert {(q.head, q.embedding) == (None, None) for _, q in drawn} == {False, True}
    for flags in (
        {d.config.tie_word_embeddings for d, _ in drawn},
        {d.config.qkv_bias for d, _ in drawn},
        {d.config.mlp_bias for d, _ in drawn},
        {d.config.vocab_size % 2 == 0 for d, _ in drawn},
        {d.last_logits_only for d, _ in drawn},
        {d.config.hidden_size > q.layers.block_size for d, q in drawn},
        {d.config.hidden_size % q.layers.block_size == 0 for d, q in drawn},
    ):
        assert flags == {False, True}


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(i, marks=pytest.mark.full) for i in range(8, 64))])
def test_a_sound_file_with_very_few_slots_passes(seed: int, tmp_path: Path) -> None:
    """From one slot on: what is judged there is a handful of numbers."""
    drawn = replace(draw(seed), slots=1 + seed // 4 % 8 if seed >= 8 else 1 + seed % 4)
    for backend, report in judged(drawn, seed, tmp_path).items():
        alarms = [f"{r.name}: {r.message}" for r in report.checks if r.verdict is not Verdict.PASS]
        assert not alarms, f"{drawn} in {backend}: {alarms}"


def _row(seed: int, backend: str, drawn: Drawn, report: Report) -> str:
    """The largest of the checks' ratios, and what the model is."""
    found = [r.stretch for r in report.checks if r.stretch]
    rms, largest = max(s.rms_ratio for s in found), max(s.max_ratio for s in found)
    return f"{seed:3} {backend:11} rms {rms:4.2f} largest {largest:4.2f}  {drawn}"


def test_the_models_have_every_option() -> None:
    drawn = [draw(seed) for seed in range(MODELS)]
    for family in FAMILIES:
        mine = [one for one in drawn if one.config.model_type == family]
        for precision in (Precision.FP32, Precision.FP16):
            assert sum(one.precision is precision for one in mine) == MODELS // 8
        ropes = {one.config.rope_scaling.rope_type if one.config.rope_scaling else "plain" for one in mine}
        assert ropes == {"plain", "linear", "llama3"} | ({"freq_factors"} if family == "llama" else set())
        assert {one.config.dtype for one in mine} == {"float32", "float16", "bfloat16"}
        assert {one.in_gguf for one in mine} == {False, family != "mistral"}
        for flags in (
            {one.config.tie_word_embeddings for one in mine},
            {one.headless for one in mine},
            {one.last_logits_only for one in mine},
            {one.shards > 1 for one in mine},
            {one.config.num_key_value_heads == 1 < one.config.num_attention_heads for one in mine},
            {one.config.num_key_value_heads == one.config.num_attention_heads > 1 for one in mine},
            {1 < one.config.num_key_value_heads < one.config.num_attention_heads for one in mine},
            {one.config.hidden_size % 2 for one in mine},
        ):
            assert len(flags) == 2
        windows = {frozenset(one.config.layer_types) for one in mine}
        assert (frozenset(("full_attention", "sliding_attention")) in windows) is family.startswith("qwen")
        assert (frozenset(("sliding_attention",)) in windows) is (family != "llama")
        assert {one.config.qkv_bias for one in mine} == {
            "llama": {False, True},
            "mistral": {False},
            "qwen2": {True},
            "qwen3": {False, True},
        }[family]
    assert {one.config.mlp_bias for one in drawn} == {False, True}
