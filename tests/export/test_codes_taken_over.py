"""Matrices that a GGUF has in Q4_0 and Q8_0 come into a quantised bundle code by code.

What they stand for is worked out by the `gguf` package on rows in Hugging Face's order, before llama.cpp's order of
q and k comes in, so that neither the unpacking nor the order is taken on trust.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from blockexport.compare.audits.stored_matrices import StoredCheckpoint
from blockexport.compare.core.check import Verdict
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.checkpoints import gguf_checkpoint
from blockexport.models.checkpoints.gguf_checkpoint import GgufCheckpoint
from blockexport.models.checkpoints.gguf_codes import codes_and_scales
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.tensor_names import OUTPUT_HEAD
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from blockexport.models.quantised_matrix import QuantisationScheme
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.compare.static_judge import spoilt
from tests.export.taken_over import Made, judged_by, made_bundle, parameters, rewritten
from tests.small_models import Weights, small_config, small_weights, write_gguf
from tests.support import shared_path

SIZES: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 4, "head_dim": 16}
QUERY, DOWN = "model.layers.1.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"


def _matrices(weights: Weights) -> list[str]:
    """Those that GGUF can quantise in blocks of 32."""
    return [name for name, values in weights.items() if values.ndim == 2 and values.shape[1] % 32 == 0]


def _dequantised(weights: Weights, kinds: Mapping[str, Kind]) -> Weights:
    """What the file stands for: GGUF's blocks lie within rows, so that the order of rows makes no difference."""
    values = dict(weights)
    for name, kind in kinds.items():
        raw = gguf.quants.quantize(weights[name].float().numpy(), kind)
        values[name] = torch.from_numpy(gguf.quants.dequantize(raw, kind))
    return values


class Source(NamedTuple):
    """A GGUF file, and what it stands for."""

    path: Path
    config: ModelConfig
    values: Weights
    kinds: Mapping[str, Kind]


def _source(path: Path, config: ModelConfig, weights: Weights, kinds: Mapping[str, Kind]) -> Source:
    return Source(write_gguf(path, config, weights, kinds), config, _dequantised(weights, kinds), kinds)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_codes_and_scales_are_the_files_own(tmp_path: Path, kind: Kind, family: str) -> None:
    config = small_config(family, **SIZES)
    weights = small_weights(config)
    source = _source(tmp_path / "model.gguf", config, weights, dict.fromkeys(_matrices(weights), kind))
    checkpoint = GgufCheckpoint(source.path)
    assert len(source.kinds) == 7 * 3 + 2
    for name in source.kinds:
        assert checkpoint.entries[name].codes == QuantisationScheme(4 if kind is Kind.Q4_0 else 8, 32)
        matrix = checkpoint.read_codes(name)
        assert torch.equal(matrix.dequantised(), source.values[name]), name
        assert matrix.scales_GN.dtype == torch.float16
        assert bool((matrix.scales_GN < 0).any()) == (kind is Kind.Q4_0)
    assert checkpoint.entries["model.norm.weight"].codes is None


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0])
def test_the_files_of_these_tests_are_what_llama_cpp_writes(kind: Kind) -> None:
    """Its own quantiser, which its Python package does not offer, gives the bytes that `gguf` gives."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        pytest.skip("llama.cpp (xllamacpp) is not installed: nothing to compare")
    (library,) = Path(found.origin).parent.glob("xllamacpp*.so")
    values = small_weights(small_config(**SIZES))[DOWN].float().numpy()
    values[3, :32] = 0
    written = np.zeros_like(gguf.quants.quantize(values, kind))
    number, address = ctypes.c_int64, ctypes.c_void_p
    chunk = (number(0), *map(number, values.shape), None)  # from the first value on; no importance of any
    ctypes.CDLL(str(library)).ggml_quantize_chunk(
        int(kind), address(values.ctypes.data), address(written.ctypes.data), *chunk
    )
    assert np.array_equal(written, gguf.quants.quantize(values, kind))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """As such files are: most of it Q4_0, the head Q8_0, one matrix Q4_1 and one Q5_0."""
    config = small_config(**SIZES)
    weights = small_weights(config)
    kinds = dict.fromkeys(_matrices(weights), Kind.Q4_0)
    kinds |= {OUTPUT_HEAD: Kind.Q8_0, DOWN: Kind.Q4_1, "model.layers.0.mlp.up_proj.weight": Kind.Q5_0}
    return _source(tmp_path_factory.mktemp("mixed") / "model.gguf", config, weights, kinds)


class Wordless(GgufCheckpoint):
    """Without the file's vocabulary, which stands for nothing here."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.source = replace(self.source, kind="random")


def _made(folder: Path, source: Source, quantize: str) -> Made:
    return made_bundle(folder, Wordless(source.path), quantisation_of(quantize))


@pytest.fixture(scope="module")
def made(mixed: Source) -> Made:
    return _made(mixed.path.parent / "bundle", mixed, "int4")


def test_a_mixed_file_is_taken_over_as_far_as_it_goes(made: Made, mixed: Source) -> None:
    verdict, message = parameters(made.folder, GgufCheckpoint(mixed.path))
    assert verdict is Verdict.PASS, message
    assert "21 matrices have the checkpoint's own codes, 2 matrices have the codes nearest" in message
    conversion = read_manifest(made.folder).conversion
    again = {DOWN, "model.layers.0.mlp.up_proj.weight"}
    assert conversion["taken_over"] == {name: kind.name for name, kind in mixed.kinds.items() if name not in again}
    assert conversion["quantisation_errors"].keys() == again


def test_the_notes_say_which_lost_a_second_time(made: Made) -> None:
    (kept,) = [note for note in made.notes if "code by code" in note]
    assert kept.startswith("21 matrices") and "20 in Q4_0, 1 in Q8_0" in kept
    (twice,) = [note for note in made.notes if "a second time" in note]
    assert DOWN in twice and "layers.0.mlp.up_proj" in twice and "1 in Q4_1, 1 in Q5_0" in twice
    assert OUTPUT_HEAD not in twice


Parts = tuple[torch.Tensor, torch.Tensor]


def _next_to_each_other(codes: torch.Tensor, scales: torch.Tensor) -> Parts:
    """The two codes of a byte as neighbours, and not half a block apart."""
    halves = codes.view(len(codes), -1, 2, 16)
    return halves.transpose(2, 3).reshape(codes.shape), scales


def _upper_half_first(codes: torch.Tensor, scales: torch.Tensor) -> Parts:
    return codes.view(len(codes), -1, 2, 16).flip(2).reshape(codes.shape), scales


def _of_the_next_block(codes: torch.Tensor, scales: torch.Tensor) -> Parts:
    return codes, scales.roll(1, dims=1)


def _across(codes: torch.Tensor, scales: torch.Tensor) -> Parts:
    """Scales that run along the wrong axis."""
    return codes, scales.T.reshape(scales.shape)


DEFECTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Parts]] = {
    "codes of a byte as neighbours": _next_to_each_other,
    "upper halves first": _upper_half_first,
    "sign off by eight": lambda codes, scales: (codes ^ -8, scales),
    "scales of the next block": _of_the_next_block,
    "scales along the other axis": _across,
    "signs of scales lost": lambda codes, scales: (codes, scales.abs()),
    "scales rounded": lambda codes, scales: (codes, scales.bfloat16().half()),
}


@pytest.mark.parametrize("defect", list(DEFECTS))
def test_a_reader_that_misreads_codes_is_found(
    made: Made, mixed: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    right = codes_and_scales
    monkeypatch.setattr(gguf_checkpoint, "codes_and_scales", lambda *given: DEFECTS[defect](*right(*given)))
    bad = shutil.copytree(made.folder, tmp_path / "bad")
    checkpoint = GgufCheckpoint(mixed.path)
    rewritten(checkpoint, bad)
    verdict, message = parameters(bad, checkpoint)
    assert verdict is Verdict.FAIL and "has other values than the checkpoint's codes stand for" in message


@pytest.mark.parametrize("part", [torch.int8, torch.float16])
def test_rows_left_in_llama_cpps_order_are_found(
    made: Made, mixed: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: torch.dtype
) -> None:
    right = gguf_checkpoint.half_split_rows
    monkeypatch.setattr(
        gguf_checkpoint, "half_split_rows", lambda rows, heads: rows if rows.dtype == part else right(rows, heads)
    )
    bad = shutil.copytree(made.folder, tmp_path / "bad")
    rewritten(GgufCheckpoint(mixed.path), bad)
    verdict, message = parameters(bad, GgufCheckpoint(mixed.path))
    assert verdict is Verdict.FAIL and "layers.0.self_attn.q_proj.weight has other values" in message


def test_codes_on_another_grid_are_found(made: Made, mixed: Source, tmp_path: Path) -> None:
    """Each is the nearest to the file's value, on a grid that fits: good enough for values, and not for codes."""
    changes = {f"{QUERY}.scales": lambda scales: scales * 1.01}
    bad = spoilt(made.folder, tmp_path / "bad", "model.safetensors", changes)
    verdict, message = parameters(bad, MemoryCheckpoint(mixed.config, mixed.values))
    assert verdict is Verdict.PASS, message
    verdict, message = parameters(bad, GgufCheckpoint(mixed.path))
    assert verdict is Verdict.FAIL and f"{QUERY} has other values" in message


def test_one_code_that_is_another_is_found(made: Made, mixed: Source, tmp_path: Path) -> None:
    changes = {f"{QUERY}.codes": lambda codes: codes.index_put((torch.tensor(70),), codes[70] ^ 1)}
    bad = spoilt(made.folder, tmp_path / "bad", "model.safetensors", changes)
    verdict, message = parameters(bad, GgufCheckpoint(mixed.path))
    assert verdict is Verdict.FAIL and f"{QUERY} has other values" in message and "in 1 of 6,144 values" in message


def test_other_blocks_are_quantised_again_and_the_note_says_so(mixed: Source, tmp_path: Path) -> None:
    report = rewritten(GgufCheckpoint(mixed.path), tmp_path, block_size=64).report
    assert not report.taken_over and len(report.quantisation_errors) == 23
    assert "and 20 more quantised in another way" in report.notes()[-1]


def test_scales_that_bfloat16_would_round_are_refused(mixed: Source, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"embed_tokens.weight quantised, with scales in float16, which bfloat16 does"):
        rewritten(GgufCheckpoint(mixed.path), tmp_path, Precision.BF16)


def test_scales_that_bfloat16_holds_are_taken_over(tmp_path: Path) -> None:
    config = small_config(**SIZES)
    weights = small_weights(config)
    kinds = dict.fromkeys(_matrices(weights), Kind.Q4_0)
    for name in kinds:
        weights[name][:, ::32] = -2.0  # the largest by far, so that every scale is a quarter
    source = _source(tmp_path / "model.gguf", config, weights, kinds)
    report = rewritten(GgufCheckpoint(source.path), tmp_path, Precision.BF16).report
    assert report.taken_over.keys() == kinds.keys()


def test_a_scale_that_is_not_finite_is_refused_by_name(mixed: Source, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(mixed.path, path)
    stored = GgufCheckpoint(path)._stored[QUERY]
    with path.open("r+b") as file:
        file.seek(stored.offset)
        file.write(np.float16(np.inf).tobytes())
    with pytest.raises(UsageError, match=f"{QUERY}.* 1 values that are not finite"):
        rewritten(GgufCheckpoint(path), tmp_path)


def _trained(path: Path) -> Source:
    """stories260K in Q8_0, but for its down projections: 172 inputs are no multiple of 32."""
    original = open_checkpoint(str(shared_path("models/stories260K")))
    weights = {name: original.read(name) for name in original.entries}
    return _source(path, original.config, weights, dict.fromkeys(_matrices(weights), Kind.Q8_0))


def _random(path: Path, kind: Kind) -> Source:
    config = small_config(**SIZES, tie_word_embeddings=True)
    weights = small_weights(config)
    return _source(path, config, weights, dict.fromkeys(_matrices(weights), kind))


@pytest.mark.parametrize(("kind", "quantize"), [(Kind.Q4_0, "int4"), (Kind.Q8_0, "int8")])
def test_logits_are_those_of_the_independent_dequantisation(tmp_path: Path, kind: Kind, quantize: str) -> None:
    """At the noise floor, with a tied head of eight bits that came from the embedding's four or eight."""
    source = _random(tmp_path / "model.gguf", kind)
    _at_the_floor(_made(tmp_path / "bundle", source, quantize), source, len(source.kinds) + 1)


def test_logits_of_a_trained_model_are_those_of_the_independent_dequantisation(tmp_path: Path) -> None:
    source = _trained(tmp_path / "model.gguf")
    made = _made(tmp_path / "bundle", source, "int8")
    stored = StoredCheckpoint(Wordless(source.path), made.folder, quantisation_of("int8"))
    down = {name: stored.read(name) for name in source.values if name.endswith("down_proj.weight")}
    assert len(down) == 5
    _at_the_floor(made, source._replace(values=source.values | down), 5 * 6 + 2)


def _at_the_floor(made: Made, source: Source, taken_over: int) -> None:
    assert len(read_manifest(made.folder).conversion["taken_over"]) == taken_over
    assert not any("a second time" in note for note in made.notes)
    report = judged_by(made.folder, MemoryCheckpoint(source.config, source.values), "prefill", "decode")
    assert [result.verdict for result in report.checks] == [Verdict.PASS] * 2, report.checks
