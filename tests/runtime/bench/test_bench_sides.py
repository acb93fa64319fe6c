"""What a path is taken for, what is known of it before anything runs, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockexport.export.bundle.manifest import Manifest, write_manifest
from blockexport.export.onnx_export import export_onnx
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from blockexport.models.quantisation import quantisation_of
from blockexport.runtime.bench.bench_plan import BenchCase, OpenedAs, usual_contexts
from blockexport.runtime.bench.sides import bundle_side, check_sides, other_side
from tests.exported import EVERYTHING, export, random_model
from tests.runtime.bench.made_up_sides import PLAN, made_up_side
from tests.support import shared_path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    export(random_model(), folder)
    return folder


def genai_folder(folder: Path, **model: object) -> Path:
    folder.mkdir()
    (folder / "genai_config.json").write_text(json.dumps({"model": model}))
    return folder


def weight_bytes(folder: Path, **changes: object) -> tuple[int, Manifest]:
    manifest = export(random_model(**changes), folder, Precision.FP16)
    footprint = bundle_side(folder, "onnxruntime").footprint
    assert footprint is not None and footprint.cache_itemsize == 2
    return footprint.weight_bytes, manifest


def test_an_embedding_is_read_whole_only_where_it_is_the_head_too(tmp_path: Path) -> None:
    counted = count_parameters(EVERYTHING)
    read, _ = weight_bytes(tmp_path / "untied")
    assert read == 2 * (counted.blocks + counted.final_norm + counted.head)
    read, manifest = weight_bytes(tmp_path / "tied", tie_word_embeddings=True)
    assert read == 2 * (counted.blocks + counted.final_norm + counted.embedding)
    assert manifest.config.tie_word_embeddings


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_bundle_without_logits_no_embedding_is_read_whole(tied: bool, tmp_path: Path) -> None:
    export(random_model(tie_word_embeddings=tied), tmp_path, ends=Ends.MEAN_EMBEDDING)
    counted, footprint = count_parameters(EVERYTHING), bundle_side(tmp_path, "onnxruntime").footprint
    assert footprint is not None and not footprint.gives_logits
    assert footprint.weight_bytes == 4 * (counted.blocks + counted.final_norm)


def test_a_bundle_is_a_side(bundle: Path) -> None:
    side = bundle_side(bundle, "onnxruntime")
    assert (side.vocab_size, side.capacity, side.device, side.element) == (101, 29, "cpu", "float32")
    assert side.notes == ("computes the logits of every token of a prompt",)
    longer = bundle_side(bundle, "eager", OpenedAs(31, low_memory=True))
    assert (longer.capacity, longer.backend, longer.notes[0]) == (31, "eager", "weights mapped, not repacked")
    beside = other_side(str(bundle), longer)
    assert (beside.backend, beside.capacity, beside.opened) == ("eager", 29, OpenedAs(low_memory=True))
    assert other_side(f"replay:{bundle}", longer).backend == "replay"


def test_a_c_program_runs_the_same_bundle_in_the_same_way(bundle: Path, tmp_path: Path) -> None:
    ours = bundle_side(bundle, "onnxruntime", OpenedAs(31, exact=True))
    for program in (tmp_path / "chat" / "build" / "speed", tmp_path / "built" / "speed"):
        program.parent.mkdir(parents=True)
        program.touch()
    for named in ("chat", "built", "built/speed"):
        side = other_side(f"cpp:{tmp_path / named}", ours)
        assert side.program is not None and side.program.name == "speed"
        assert (side.path, side.opened, side.footprint, side.capacity) == (bundle, ours.opened, ours.footprint, 31)
    with pytest.raises(UsageError, match=r"has no program speed: write the project with `blockexport cpp .* && cmake"):
        other_side(f"cpp:{bundle}", ours)
    with pytest.raises(UsageError, match="the C\\+\\+ library has no replay"):
        other_side(f"cpp:{tmp_path / 'chat'}", bundle_side(bundle, "replay"))
    export(random_model(), tmp_path / "headless", headless=True)
    with pytest.raises(UsageError, match="this bundle gives no logits"):
        other_side(f"cpp:{tmp_path / 'chat'}", bundle_side(tmp_path / "headless", "onnxruntime"))


def test_an_engine_is_refused_before_others_are_measured(bundle: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ours = bundle_side(bundle, "onnxruntime")
    with pytest.raises((NotJudgedError, UsageError), match="engine"):
        other_side(f"tensorrt-rtx:{bundle}", ours)


def test_a_bundle_in_genai_and_a_folder_of_genai_s(bundle: Path, tmp_path: Path) -> None:
    ours = bundle_side(bundle, "onnxruntime")
    side = other_side(f"genai:{bundle}", ours)
    assert side.name == f"onnxruntime-genai {bundle}" and not side.is_ours
    assert (side.vocab_size, side.capacity, side.max_sequence_length) == (101, 29, 29)
    assert side.footprint == ours.footprint
    side = other_side(str(genai_folder(tmp_path / "built", vocab_size=101, context_length=4096)), ours)
    # It has no more slots than the bundle, so that it does not pay for them; which bytes it reads it does not tell.
    assert (side.capacity, side.max_sequence_length, side.footprint) == (4096, 29, None)


def test_a_gguf_file(bundle: Path) -> None:
    path = shared_path("models/stories260K/stories260K-F32.gguf")
    side = other_side(str(path), bundle_side(bundle, "onnxruntime"))
    assert (side.vocab_size, side.max_sequence_length, side.most_rows) == (512, 29, 1)
    assert side.footprint is not None
    counted = count_parameters(side.footprint.config)
    assert side.footprint.weight_bytes == 4 * (counted.blocks + counted.final_norm + counted.embedding)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda at: "nowhere", "--against nowhere: there is no nowhere"),
        (lambda at: str(at), "has no manifest.json and no genai_config.json: give a bundle"),
        (lambda at: __file__, "is a file of no known kind"),
        (lambda at: f"genai:{at}", "is no folder of onnxruntime-genai's: it has no genai_config.json"),
        (lambda at: str(genai_folder(at / "x", vocab_size=101)), r"is damaged: .* \[101, None\]"),
        (lambda at: f"transformers:{at}", "config.json"),
    ],
)
def test_what_is_none_of_these_is_refused(made: Callable[[Path], str], said: str, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        other_side(made(tmp_path), bundle_side(bundle, "onnxruntime"))


@pytest.mark.parametrize("library", ["onnxruntime_genai", "xllamacpp"])
def test_a_tool_that_is_not_installed_is_named(library: str, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = bundle_side(bundle, "onnxruntime")
    monkeypatch.setitem(sys.modules, library, None)
    path = shared_path("models/stories260K/stories260K-F32.gguf") if library == "xllamacpp" else f"genai:{bundle}"
    distribution = library.replace("_", "-")
    with pytest.raises(NotJudgedError, match=f"{distribution}, which runs .*: pip install {distribution}"):
        other_side(str(path), ours)


def test_sides_have_to_be_able_to_do_it() -> None:
    side = made_up_side("a", backend="onnxruntime")
    check_sides([side, made_up_side("b")], PLAN)
    edge = replace(PLAN, cases=(BenchCase(1, 24),))
    check_sides([side], edge)  # 24 tokens, 4 steps, and one that comes last
    with pytest.raises(UsageError, match=r"25 and 4 steps need 30 cache slots, and a has 29: .* at most 24, or give a"):
        check_sides([side], replace(PLAN, cases=(BenchCase(1, 25),)))
    with pytest.raises(UsageError, match=r"and b has 29: take fewer steps, at most 27$"):
        check_sides([made_up_side("b")], replace(PLAN, steps=28))
    with pytest.raises(UsageError, match="b has a vocabulary of 98 and a of 97"):
        check_sides([side, made_up_side("b", vocab_size=98)], PLAN)
    with pytest.raises(UsageError, match="batch of 3 was asked for, and b is run with at most 1 row"):
        check_sides([side, made_up_side("b", most_rows=1)], PLAN)


def test_the_usual_contexts_fit() -> None:
    assert usual_contexts(2048, 16) == [64, 1024]
    assert usual_contexts(512, 16) == [64, 495]
    assert usual_contexts(81, 16) == [64]
    assert usual_contexts(29, 4) == [24]


def test_a_quantised_bundle_says_what_is_multiplied(tmp_path: Path) -> None:
    checkpoint, folder = random_model(), tmp_path / "int4"
    folder.mkdir()
    interface = Interface(checkpoint.config, Precision.FP16.element, 29)
    write_manifest(folder, export_onnx(checkpoint, folder, interface, quantisation=quantisation_of("int4", 64)))
    ours, replay, eager = (bundle_side(folder, name) for name in ("onnxruntime", "replay", "eager"))
    assert ours.notes[0] == "int4 weights in blocks of 64, activations rounded to 8 bits"
    assert replay.notes[0] == "int4 weights in blocks of 64"
    # What dequantises them beforehand reads more at each step; another tool on the same bundle does not.
    assert eager.notes[0] == "int4 weights in blocks of 64, dequantised when it is opened"
    counted = count_parameters(checkpoint.config)
    assert eager.footprint is not None and ours.footprint is not None
    assert eager.footprint.weight_bytes == 2 * (counted.blocks + counted.final_norm + counted.head)
    assert ours.footprint.weight_bytes < eager.footprint.weight_bytes / 2
    exact = bundle_side(folder, "onnxruntime", OpenedAs(exact=True))
    assert (exact.notes, exact.footprint) == (eager.notes, eager.footprint)
    assert bundle_side(folder, "replay", OpenedAs(exact=True)).footprint == replay.footprint == ours.footprint
    genai = other_side(f"genai:{folder}", eager)
    assert (genai.footprint, genai.notes) == (ours.footprint, ours.notes)
