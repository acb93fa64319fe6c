"""Engines of TensorRT for RTX, really built: every family and precision, audited, and built again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockexport.export.bundle.manifest import Manifest, read_manifest
from blockexport.export.tensorrt.trt_adapter import BuildOptions
from blockexport.export.tensorrt.trt_network import (
    add_profiles,
    check_volumes,
    give_queries_their_own_positions,
    make_profiles,
    parse,
    set_key_value_lengths,
)
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.config.model_config import RopeScaling
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.precision import Precision
from tests.export.tensorrt.trt_support import PROFILES, TARGETS, assert_alike, build, kernels, rtx
from tests.exported import export, random_model
from tests.support import shared_path


def tensor_bytes(path: Path) -> int:
    """The bytes of a safetensors file after its header, which begins with its own length."""
    with path.open("rb") as file:
        return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    checkpoint = open_checkpoint(str(shared_path("models/stories260K")))
    folders = {precision: tmp_path_factory.mktemp(precision.value) for precision in Precision}
    for precision, folder in folders.items():
        export(checkpoint, folder, precision, 256)
    return folders


@pytest.mark.parametrize("precision", list(Precision))
def test_stories_is_built_audited_and_built_again(precision: Precision, stories: dict[Precision, Path]) -> None:
    first = build(stories[precision], TARGETS)
    audit, config = first.audit, read_manifest(stories[precision]).config
    assert (config.num_hidden_layers, config.head_dim) == (5, 8)
    assert (audit.cache_updates, audit.attention_layers) == (10, 5)
    assert "SCATTER" not in audit.layers
    assert audit.attention == "decomposed"
    assert audit.attention_reason is not None
    assert f"head_dim 8 in {precision.value} on 8.6, 8.9, 12.0" in audit.attention_reason
    assert audit.matrix_products == {precision.element.name: 7 * 5 + 1}
    assert audit.norm_statistics == {"float32": 2 * 5 + 1}
    assert audit.rotary_embeddings == {"float32": 2 * 5}
    expected = tensor_bytes(stories[precision] / "model.safetensors")
    # In fp32 the tables of RoPE have the weights' type.
    expected += tensor_bytes(stories[precision] / "rope.safetensors") if precision is Precision.FP32 else 0
    assert 0 <= audit.weight_bytes[precision.element.name] - expected < 128  # in fp32 also two scalars per norm
    assert_alike(first, build(stories[precision], TARGETS), stories[precision])


LAYER_NORM = {"norm": "layer_norm", "qk_norm": False, "sliding_window": None}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3 with QK-norm": {"model_type": "qwen3", "qk_norm": True, "qkv_bias": False, "sliding_window": None},
    "QK-norm after RoPE": {
        "model_type": "hunyuan_v1_dense",
        "qk_norm_after_rope": True,
        "qkv_bias": False,
        "rope_scaling": RopeScaling("ntk_alpha", factor=30.0),
        "sliding_window": None,
    },
    "queries that grow": {
        "model_type": "ministral3",
        "qk_norm": False,
        "qkv_bias": False,
        "rope_scaling": RopeScaling("yarn", factor=4.0, original_max_position_embeddings=16),
        "query_growth": 0.3,
        "query_growth_length": 16,
        "sliding_window": None,
    },
    "qwen2 with biases": {"model_type": "qwen2", "qk_norm": False, "qkv_bias": True, "sliding_window": None},
    "mistral with a window": {"model_type": "mistral", "qk_norm": False, "qkv_bias": False},
    "stablelm in parallel": {**LAYER_NORM, "norm_bias": True, "rotary_dim": 16, "residual": "parallel_one_norm"},
    "cohere": {**LAYER_NORM, "residual": "parallel_one_norm", "rope_interleaved": True, "logits_multiplier": 0.5},
    "gpt2": {**LAYER_NORM, "norm_bias": True, "gated_mlp": False, "learned_positions": True},
    "olmo": {**LAYER_NORM, "norm_weight": False},
    "nemotron": {
        **LAYER_NORM,
        "norm_bias": True,
        "norm_gain_offset": True,
        "gated_mlp": False,
        "hidden_act": "relu2",
        "rotary_dim": 32,
    },
    "llama3-scaled RoPE": {
        "model_type": "llama",
        "qk_norm": False,
        "rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 32),
        "sliding_window": None,
    },
    "norms after the sublayers": {
        "model_type": "olmo2",
        "qkv_bias": False,
        "qk_norm_over": "projection",
        "norm_placement": "post",
        "sliding_window": None,
    },
    "two bases of RoPE": {
        "model_type": "gemma3_text",
        "qkv_bias": False,
        "sliding_rope_theta": 100.0,
        "layer_types": ("sliding_attention", "full_attention", "sliding_attention"),
    },
    "gains of 1 + w, GeGLU, multipliers, capped logits": {
        "model_type": "gemma",
        "qk_norm": False,
        "qkv_bias": False,
        "norm_gain_offset": True,
        "norm_placement": "both",
        "hidden_act": "gelu_pytorch_tanh",
        "query_scale": 0.3,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_multiplier": 0.125,
        "final_logit_softcapping": 30.0,
    },
}


SAMPLE = ("qwen3 with QK-norm", "mistral with a window", "gpt2", "norms after the sublayers")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.full) for name in FAMILIES]
)
def test_every_family_is_built_and_audited(family: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"o_bias": False, "mlp_bias": False, "head_dim": 64, **FAMILIES[family]}
    if changes.get("sliding_window", 7) is None:
        changes["layer_types"] = ()
    else:
        changes.setdefault("layer_types", ("sliding_attention",) * 3)
    export(random_model(**changes), tmp_path / "bundle", Precision.FP16)
    built = build(tmp_path / "bundle")
    assert built.audit.attention == "fused"
    assert (built.audit.cache_updates, built.audit.attention_layers) == (6, 3)
    config = read_manifest(tmp_path / "bundle").config
    assert built.audit.norm_statistics == {"float32": 3 * (len(config.layer_norms) + 2 * config.qk_norm) + 1}
    assert built.audit.matrix_products == {"float16": 3 * (6 + config.gated_mlp) + 1}
    assert len(bytes(built.engine)) > built.audit.weight_bytes["float16"]


def test_capped_scores_are_refused_by_name(tmp_path: Path) -> None:
    """No layer of TensorRT's caps scores."""
    export(random_model(attn_logit_softcapping=20.0), tmp_path / "bundle", Precision.FP16)
    with pytest.raises(UsageError, match="softcap is set, which TensorRT does not take"):
        build(tmp_path / "bundle")


@pytest.mark.parametrize("options", [{"headless": True}, {"last_logits_only": True}])
def test_other_ends_are_built(options: dict[str, bool], tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle", Precision.BF16, **options)
    built = build(tmp_path / "bundle")
    assert built.audit.matrix_products == {"bfloat16": 21 if "headless" in options else 22}


def cache_writers(engine: Any) -> list[str]:
    """The names of the kernels that write a cache (Scat: scatter), as often as their source is stored."""
    names = (re.search(rb"__myl_\w*Scat\w*", kernel) for kernel in kernels(engine))
    return [name[0].decode() for name in names if name is not None]


def test_the_kernels_that_every_layer_has_are_stored_once(tmp_path: Path) -> None:
    """The second half turns red when a newer RTX knows equal kernels by itself: then the workaround can go."""
    plain: dict[str, Any] = {"qk_norm": False, "sliding_window": None, "layer_types": ()}
    manifest = export(random_model(head_dim=64, **plain), tmp_path, Precision.FP16)
    ours = cache_writers(build(tmp_path).engine)
    assert len(ours) == len(set(ours)) == 4  # of the first layer and of all others, in two profiles
    as_parsed = cache_writers(_raw(tmp_path, manifest))
    assert len(as_parsed) > len(set(as_parsed))


def test_only_queries_get_positions_of_their_own(stories: dict[Precision, Path]) -> None:
    adapter = rtx()
    for precision in Precision:
        builder = adapter.builder()
        network, parser = parse(adapter, builder, stories[precision] / "model.onnx")
        give_queries_their_own_positions(adapter, network)
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        rotations = [layer for layer in layers if layer.type == adapter.trt.LayerType.ROTARY_EMBEDDING]
        # Of the two in a layer the graph names the query's first.
        assert [layer.get_input(3).dtype.name for layer in rotations] == ["INT32", "INT64"] * 5
        assert [layer.name.endswith("_1/RotaryEmbedding") for layer in rotations] == [False, True] * 5
        del parser


@pytest.mark.parametrize(
    ("end", "error", "said"),
    [
        ("os.abort()", UsageError, r"tensorrt-rtx ended in the middle of the build \(SIGABRT: last words\)"),
        ("os._exit(3)", UsageError, r"ended in the middle of the build \(exit status 3: last words\)"),
        ("os.kill(os.getpid(), 9)", NotJudgedError, "was killed, most likely because memory ran out"),
    ],
)
def test_a_crash_of_tensorrt_is_one_message(
    end: str,
    error: type[Exception],
    said: str,
    stories: dict[Precision, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rtx()
    module = tmp_path / "tensorrt_rtx.py"
    module.write_text(
        f"import os, sys\nprint('first words', 'last words', sep='\\n', file=sys.stderr, flush=True)\n{end}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(error, match=said):
        build(stories[Precision.FP16])
    assert capfd.readouterr() == ("", "")


def test_progress_is_heard_and_an_interrupt_ends_the_build(stories: dict[Precision, Path]) -> None:
    heard: list[tuple[str, int, int]] = []
    build(stories[Precision.FP16], progress=lambda *event: heard.append(event))
    labels = {label for label, _, _ in heard}
    assert {"parsing", "optimizing graph"} <= labels
    assert all(0 <= done <= total for _, done, total in heard)

    def interrupt(label: str, done: int, total: int) -> None:
        if label == "optimizing graph":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(stories[Precision.FP16], progress=interrupt)
    build(stories[Precision.FP16])  # and the next build is none the worse


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timing_cache": b""}, "--timing-cache is not for tensorrt-rtx"),
        ({"hardware_compatibility": "ampere-plus"}, "--hardware-compatibility is not for tensorrt-rtx"),
        ({"version_compatible": True}, "--version-compatible is not for tensorrt-rtx"),
        ({"builder_optimization_level": 0}, "--builder-optimization-level is not for tensorrt-rtx"),
        ({"key_value_lengths": True}, "--key-value-lengths is not for tensorrt-rtx"),
        ({"workspace_mib": 1}, "finds no kernel within --workspace 1 MiB"),
    ],
)
def test_an_option_works_or_is_refused_by_name(
    options: dict[str, Any], problem: str, stories: dict[Precision, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=problem):
        build(stories[Precision.FP16], **options)
    assert capfd.readouterr() == ("", "")  # TensorRT's own words stay out of sight


def test_a_workspace_that_does_not_suffice_is_not_the_machines_memory(stories: dict[Precision, Path]) -> None:
    with pytest.raises(UsageError, match="finds no kernel within --workspace 2 MiB: give more"):
        build(stories[Precision.FP16], profiles=make_profiles(8, 256), workspace_mib=2)


def test_a_workspace_that_suffices_is_taken(stories: dict[Precision, Path]) -> None:
    assert build(stories[Precision.FP16], workspace_mib=512).audit.cache_updates == 10


def test_stripping_weights_without_a_gpu_cannot_be_done_here(stories: dict[Precision, Path]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(NotJudgedError, match="--strip-weights"):
        build(stories[Precision.FP16], strip_weights=True)


def _raw(folder: Path, manifest: Manifest, lengths: bool = False, level: int | None = None) -> bytes:
    """An engine with settings that `Adapter.check_options` refuses."""
    adapter = rtx()
    builder = adapter.builder()
    network, parser = parse(adapter, builder, folder / "model.onnx")
    kept = set_key_value_lengths(adapter, network) if lengths else None
    config = adapter.config(builder, ("8.9",), BuildOptions(builder_optimization_level=level))
    add_profiles(builder, network, config, PROFILES)
    engine = builder.build_serialized_network(network, config)
    assert engine is not None, adapter.log.drain()
    del kept, parser
    return bytes(engine)


def test_what_is_refused_for_rtx_has_no_effect_there(tmp_path: Path) -> None:
    """Key/value lengths beside the mask, and optimisation levels: the same kernels. Red when a newer RTX heeds them."""
    manifest = export(random_model(head_dim=64), tmp_path, Precision.FP16)
    plain = _raw(tmp_path, manifest)
    attention = [kernel for kernel in kernels(plain) if b"mha" in kernel]
    assert attention
    assert [kernel for kernel in kernels(_raw(tmp_path, manifest, lengths=True)) if b"mha" in kernel] == attention
    assert kernels(_raw(tmp_path, manifest, level=0)) == kernels(_raw(tmp_path, manifest, level=5)) == kernels(plain)


def test_what_a_generation_cannot_compute_is_refused() -> None:
    adapter = rtx()
    adapter.check_precision(Precision.BF16, ("8.0", "12.0"))
    adapter.check_precision(Precision.FP16, ("7.5",))
    with pytest.raises(UsageError, match=r"capability 7\.5 have no bfloat16 arithmetic"):
        adapter.check_precision(Precision.BF16, ("7.5", "8.9"))


def test_more_elements_than_tensorrt_counts_are_refused(stories: dict[Precision, Path]) -> None:
    manifest = read_manifest(stories[Precision.FP16])
    per_row = 200 * 512  # logits of the longest prefill: more than a cache of 4 x 256 x 8, or a mask of 200 x 256
    check_volumes(manifest, make_profiles((2**31 - 1) // per_row, 200))
    with pytest.raises(UsageError, match=r"the logits would have 2147\d+ elements, .*: choose at most 20971 rows"):
        check_volumes(manifest, make_profiles((2**31 - 1) // per_row + 1, 200))


def test_fp32_is_not_rounded_to_tf32() -> None:
    adapter = rtx()
    config = adapter.config(adapter.builder(), ("8.9",), BuildOptions())
    assert not config.get_flag(adapter.trt.BuilderFlag.TF32)


def test_targets_are_checked() -> None:
    adapter = rtx()
    assert adapter.targets(["8.9", "sm120", "89"]) == ("8.9", "12.0")
    with pytest.raises(UsageError, match=r"does not serve compute capability 9\.0, only 7\.5, 8\.0"):
        adapter.targets(["9.0"])
    for wrong in ("fast", "8.9.0", "0.89", "8", ""):
        with pytest.raises(UsageError, match=rf"'{wrong}' is not of the form 8\.9"):
            adapter.targets([wrong])


def test_profiles_cover_prefill_and_decode() -> None:
    prefill, decode = make_profiles(3, 40)
    assert prefill.takes(3, 40)
    assert prefill.takes(1, 1)
    assert not prefill.takes(4, 40)
    assert not prefill.takes(3, 41)
    assert decode.takes(3, 1)
    assert not decode.takes(3, 2)
    assert replace(prefill).sequence_length == (1, 40, 40)
