"""`parameters` holds every value against the checkpoint's, and says in plain words what a tensor holds instead."""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from blockexport.compare.audits.artifact_weights import artifact_weights
from blockexport.compare.audits.weight_difference import scaled
from blockexport.compare.checks.check_parameters import ParameterFigures
from blockexport.compare.core import context
from blockexport.compare.core.check import Verdict
from blockexport.compare.core.immovable import as_integers
from blockexport.compare.judge import JudgeOptions
from blockexport.export.bundle.manifest import ONNX_FILE, PT2_FILE
from blockexport.export.weights.weight_files import WEIGHTS_FILE
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.kept_tensors import KeptTensors
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.interface import Interface
from blockexport.models.precision import Precision
from blockexport.models.wording import told_apart
from blockexport.runtime.eager import EagerDecoder
from tests.any_model import draw, write
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import MemoryCheckpoint
from tests.compare.static_judge import figures_of, judged, spoilt
from tests.exported import EVERYTHING, Gainful, add_program, export, gainful
from tests.stored_codes import Change

CHECKPOINT = gainful(EVERYTHING)
Q1, Q2 = (f"model.layers.{i}.self_attn.q_proj.weight" for i in (1, 2))
DOWN, GAIN, EMBEDDING = (
    "model.layers.2.mlp.down_proj.weight",
    "model.layers.1.input_layernorm.weight",
    "model.embed_tokens.weight",
)
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(8, 40))]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[Precision, Path]:
    folder = tmp_path_factory.mktemp("values")
    for precision in Precision:
        export(CHECKPOINT, folder / precision, precision)
    return {precision: folder / precision for precision in Precision}


def stored(name: str, dtype: torch.dtype) -> torch.Tensor:
    return CHECKPOINT.read(name).to(dtype)


def at(index: tuple[int | slice, ...], change: Change) -> Change:
    def run(values: torch.Tensor) -> torch.Tensor:
        values[index] = change(values[index])
        return values

    return run


def neighbours(values: torch.Tensor) -> torch.Tensor:
    """The rows of llama.cpp's files: row 2i of a head is i, row 2i + 1 is i + H/2."""
    heads = values.view(EVERYTHING.num_attention_heads, EVERYTHING.head_dim, -1)
    half = EVERYTHING.head_dim // 2
    return torch.stack((heads[:, :half], heads[:, half:]), dim=2).reshape(values.shape)


def zero_rows(values: torch.Tensor) -> torch.Tensor:
    values[41:] = 0
    return values


def one_bit(values: torch.Tensor) -> torch.Tensor:
    flat = values.view(torch.int16 if values.dtype.itemsize == 2 else torch.int32)
    flat[17, 5] ^= 1
    return values


SPOILT: list[tuple[str, dict[str, Change], str]] = [
    ("doubled", {DOWN: at((3, 5), lambda x: x * 2)}, rf"{DOWN} differs in 1 of 1,056 values: \[3, 5\] is .* and the"),
    ("one bit", {Q1: one_bit}, rf"{Q1} differs in 1 of 1,440 values: \[17, 5\] is"),
    (
        "swapped",
        {Q1: lambda x: stored(Q2, x.dtype), Q2: lambda x: stored(Q1, x.dtype)},
        rf"{Q1} holds the values of {Q2}; {Q2} holds the values of {Q1}",
    ),
    ("gain", {GAIN: lambda x: x.float() * 1.05}, rf"{GAIN} is 1.05 times the checkpoint's"),
    ("scaled", {DOWN: lambda x: x.float() * -0.3}, rf"{DOWN} is -0.3 times the checkpoint's"),
    (
        "embedding",
        {EMBEDDING: zero_rows},
        rf"{EMBEDDING} differs in 1,440 of 2,424 values in 60 of 101 rows, all 0 in the file: .*the largest difference",
    ),
    ("row", {Q1: at((7,), lambda x: x * 1.2)}, rf"row 7 of {Q1} is 1\.(2|20|19)\d? times the checkpoint's$"),
    ("column", {DOWN: at((slice(None), 5), lambda x: -x)}, rf"column 5 of {DOWN} is -1 times the checkpoint's$"),
    ("row lost", {Q1: at((7,), torch.zeros_like)}, rf"{Q1} differs in 24 of 1,440 values in row 7, all 0 in the file"),
    ("transposed", {DOWN: lambda x: x.T}, f"{DOWN} holds the checkpoint's values transposed"),
    ("neighbours", {Q2: neighbours}, f"{Q2} holds the checkpoint's rows with the two of each RoPE pair side by side"),
    ("NaN", {DOWN: at((0, 1), lambda x: x * torch.nan)}, rf"{DOWN} differs in 1 of 1,056 values: \[0, 1\] is nan"),
    ("cleared", {GAIN: torch.zeros_like}, rf"{GAIN} differs in 24 of 24 values, all 0 in the file: "),
]


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize(("name", "changes", "said"), SPOILT, ids=[name for name, _, _ in SPOILT])
def test_a_wrong_value_is_said(
    bundles: dict[Precision, Path],
    precision: Precision,
    name: str,
    changes: dict[str, Change],
    said: str,
    tmp_path: Path,
) -> None:
    folder = spoilt(bundles[precision], tmp_path / "spoilt", WEIGHTS_FILE, changes)
    result = judged(folder, CHECKPOINT, "parameters")
    assert result.verdict is Verdict.FAIL
    assert re.match(said, result.message), result.message
    assert set(figures_of(result, ParameterFigures).differing or ()) == set(changes)
    for one, other in re.findall(r"\] is (\S+) and the checkpoint's ([^\s,;]+)", result.message):
        assert one != other, result.message


@pytest.mark.parametrize(
    ("wanted", "units"), [(-0.10624, 1), (-0.10624, 40), (1.0, 1), (1e-30, 1), (123456.7, 1), (3e38, 1), (-0.0, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_two_numbers_that_differ_are_never_shown_alike(dtype: torch.dtype, wanted: float, units: int) -> None:
    """In no more digits than that takes; a negative zero, which has the other one's digits, is told by its sign."""
    one = torch.tensor(wanted, dtype=dtype)
    if not one.isfinite() or (wanted and not one):
        one = torch.tensor(1.5, dtype=dtype)
    other = (one.view(as_integers(dtype)) + units).view(dtype) if wanted else -one
    left, right = told_apart(float(other), float(one))
    assert left != right
    short = [f"{float(value):.6g}" for value in (other, one)]
    assert [left, right] == short or short[0] == short[1]


@pytest.mark.parametrize(
    ("factor", "said"), [(1.00003, "1.00003"), (0.99997, "0.99997"), (1.000002, "1.000002"), (2.0, "2"), (-1.0, "-1")]
)
def test_a_factor_that_is_not_1_is_never_shown_as_1(factor: float, said: str) -> None:
    wanted = torch.linspace(0.1, 2.3, 23)
    assert scaled((wanted.double() * factor).float(), wanted) == f"is {said} times the checkpoint's"


def test_the_first_ones_are_described_and_all_are_counted(bundles: dict[Precision, Path], tmp_path: Path) -> None:
    gains = [name for name in CHECKPOINT.entries if name.endswith("norm.weight")]
    folder = spoilt(bundles[Precision.FP16], tmp_path / "b", WEIGHTS_FILE, {name: lambda x: x * 2 for name in gains})
    result = judged(folder, CHECKPOINT, "parameters")
    assert result.message.count("is 2 times the checkpoint's") == 3
    assert result.message.endswith(f"; {len(gains) - 3} weights more differ")
    assert figures_of(result, ParameterFigures).differing == gains


def test_an_artifact_in_another_type_is_said(bundles: dict[Precision, Path]) -> None:
    model = load_model(CHECKPOINT, torch.float16, 29)
    options = JudgeOptions(
        backend="eager", checks=("parameters",), weights=artifact_weights(bundles[Precision.FP32], ONNX_FILE)
    )
    (result,) = judge(EagerDecoder(model, 29), CHECKPOINT, options).checks
    assert result.verdict is Verdict.FAIL
    assert f"{len(CHECKPOINT.entries)} weights are not float16, the first {EMBEDDING}" in result.message


@pytest.mark.parametrize("seed", SEEDS)
def test_sound_files_of_every_source_have_every_bit(seed: int, tmp_path: Path) -> None:
    """Safetensors, whole and in shards, and GGUF; tied and not; biases; headless; converted and cloned."""
    drawn = draw(seed)
    checkpoint = open_checkpoint(str(write(drawn, seed, tmp_path / "source")))
    exported: Checkpoint = checkpoint
    if drawn.in_gguf:  # its made-up tokens are no tokenizer, without which a GGUF file is not exported
        exported = MemoryCheckpoint(checkpoint.config, {name: checkpoint.read(name) for name in checkpoint.entries})
    for precision in Precision:
        export(exported, tmp_path / precision, precision, headless=drawn.headless)
        result = judged(tmp_path / precision, checkpoint, "parameters")
        assert result.verdict is Verdict.PASS, f"{drawn}: {result.message}"
        assert result.message.endswith("every value the checkpoint's to the bit")


def test_a_tied_head_and_onnx_runtime(tmp_path: Path) -> None:
    checkpoint = gainful(replace(EVERYTHING, tie_word_embeddings=True))
    export(checkpoint, tmp_path / "tied")
    assert judged(tmp_path / "tied", checkpoint, "parameters", "onnxruntime").verdict is Verdict.PASS
    folder = spoilt(tmp_path / "tied", tmp_path / "spoilt", WEIGHTS_FILE, {EMBEDDING: zero_rows})
    result = judged(folder, checkpoint, "parameters", "onnxruntime")
    assert result.verdict is Verdict.FAIL and figures_of(result, ParameterFigures).differing == [EMBEDDING]


ANOTHER = [pytest.param(precision, marks=pytest.mark.full) for precision in (Precision.FP32, Precision.FP16)]


@pytest.mark.parametrize("precision", [Precision.BF16, *ANOTHER])
def test_pt2(tmp_path: Path, precision: Precision) -> None:
    checkpoint = gainful(replace(EVERYTHING, num_hidden_layers=1, layer_types=("full_attention",)))
    export(checkpoint, tmp_path / "b", precision)
    add_program(checkpoint, Interface(checkpoint.config, precision.element, 29), tmp_path / "b")
    assert judged(tmp_path / "b", checkpoint, "parameters", "pt2").message.endswith("to the bit")
    path, name = tmp_path / "b" / PT2_FILE, Q1.replace("1", "0")
    bits = checkpoint.read(name).to(precision.torch_dtype).view(torch.uint8).numpy().tobytes()
    data = path.read_bytes()
    assert data.count(bits) == 1
    path.write_bytes(data.replace(bits, bits[:400] + bytes(4) + bits[404:]))
    weights = artifact_weights(tmp_path / "b", PT2_FILE)
    # PyTorch would refuse the file by its checksum: the decoder is eager's.
    model = load_model(checkpoint, precision.torch_dtype, 29)
    options = JudgeOptions(backend="eager", checks=("parameters",), weights=weights)
    (result,) = judge(EagerDecoder(model, 29), checkpoint, options).checks
    assert result.message.startswith(f"{name} differs in {4 // precision.element.itemsize} of 1,440 values")


def test_one_tensor_of_the_checkpoint_is_in_memory_at_a_time(
    bundles: dict[Precision, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor is read once, and given up before the next is asked for; none is kept, as of a large model."""
    monkeypatch.setattr(context, "KeptTensors", partial(KeptTensors, limit=0))
    alive: list[weakref.ref[torch.Tensor]] = []
    read = Gainful.read

    def counted(self: Gainful, name: str) -> torch.Tensor:
        assert not any(ref() is not None for ref in alive)
        values = read(self, name)
        alive.append(weakref.ref(values))
        return values

    monkeypatch.setattr(Gainful, "read", counted)
    weights = artifact_weights(bundles[Precision.BF16], ONNX_FILE)
    model = load_model(gainful(EVERYTHING), torch.bfloat16, 29)
    alive.clear()
    options = JudgeOptions(backend="eager", checks=("parameters",), weights=weights)
    assert judge(EagerDecoder(model, 29), CHECKPOINT, options).checks[0].verdict is Verdict.PASS
    assert len(alive) >= len(CHECKPOINT.entries)
