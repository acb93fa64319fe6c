"""Locate on sound files, on files without telling names, and where the replay is not the artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from blockexport.compare.audits.sites_by_name import map_sites
from blockexport.compare.core.cached_path import CachedPath
from blockexport.compare.core.evidence import Evidence, gather
from blockexport.compare.core.weights_in_parts import make_block
from blockexport.compare.explain import locate as locating
from blockexport.compare.explain.graph_values import SiteError
from blockexport.compare.explain.locate import locate
from blockexport.compare.explain.sites import LABELS, eager_sites, layer_sites
from blockexport.compare.explain.value_distance import relative_error
from blockexport.compare.explain.wrong_slot import WrongSlot, first_wrong_slot
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.models.interface import Ends
from blockexport.models.io_names import past_names, present_names
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from blockexport.runtime.replay.replay_graph import ReplayGraph
from tests.exported import EVERYTHING, export, gainful
from tests.zoo import models
from tests.zoo_bench import Bench, attribute
from tests.zoo_edits_block import gelu
from tests.zoo_edits_position import decode_position, rope_on_v, slots

SLOTS = 20
CALLS = [range(7), range(7, 8), range(8, 9), range(9, 12), range(12, 13)]
IDS = torch.randint(0, EVERYTHING.vocab_size, (13,), generator=torch.Generator().manual_seed(8))
CHECKPOINT = gainful(EVERYTHING)
NAMES = ("fp32", "fp16", "headless", "last", "embeddings")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("locate")
    export(CHECKPOINT, folder / "fp32", slots=SLOTS)
    export(CHECKPOINT, folder / "fp16", Precision.FP16, slots=SLOTS)
    export(CHECKPOINT, folder / "headless", slots=SLOTS, headless=True)
    export(CHECKPOINT, folder / "last", slots=SLOTS, last_logits_only=True)
    export(CHECKPOINT, folder / "embeddings", slots=SLOTS, ends=Ends.MEAN_EMBEDDING)
    return {name: folder / name for name in NAMES}


def evidence(folder: Path, backend: str = "onnxruntime") -> Evidence:
    return gather(open_decoder(folder, backend, threads=1, verify="nothing"), CHECKPOINT, IDS, CALLS, range(13))


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_file_has_nothing_to_locate(bundles: dict[str, Path], name: str) -> None:
    search = locate(ReplayGraph.load(bundles[name] / ONNX_FILE), evidence(bundles[name]), looked=CALLS)
    assert search.location is None and search.reproduced and search.confined is None
    assert search.mapping == (0, 1, 2)
    seen = {row.site for row in search.rows if not row.absent}
    ends = {"headless": {"embedding", "embeddings"}, "embeddings": {"head"}}.get(name, {"embeddings"})
    absent = {"attention_out_norm", "mlp_out_norm", "q_norm", "k_norm"} | ends
    assert seen == set(LABELS) - absent
    assert {row.call.start for row in search.rows} == {call.start for call in CALLS}


@pytest.mark.parametrize("model", ["everything", "norms after", "scaled", "norms after RoPE"])
def test_sites_are_the_block_step_by_step(model: str) -> None:
    config = models(EVERYTHING)[model]
    block = make_block(gainful(config), 1, torch.float32)
    step = CachedPath(CHECKPOINT, torch.float32, IDS, CALLS, SLOTS).step(CALLS[0], block.window)
    x_TD, past = torch.randn(7, EVERYTHING.hidden_size), torch.randn(2, 1, 2, SLOTS, EVERYTHING.head_dim)
    sites = eager_sites(block, x_TD, step, past[0], past[1])
    out_TD, key, value = block(x_TD, step, past[0], past[1])
    assert torch.equal(sites["mlp_residual"], out_TD)
    assert torch.equal(sites["cache_key"], key) and torch.equal(sites["cache_value"], value)
    assert set(sites) == set(layer_sites(config))


def nameless(folder: Path) -> ir.Model:
    """The graph with every name gone but those of inputs and outputs."""
    model = ir.load(folder / ONNX_FILE)
    kept = {*past_names(3), *present_names(3), "logits"}
    for i, node in enumerate(model.graph):
        node.name = f"n{i}"
        for value in node.outputs:
            if value.name not in kept:
                value.name = f"v{i}"
    return model


def test_sites_are_found_without_names(bundles: dict[str, Path]) -> None:
    named, found = (
        map_sites(model.graph, 3) for model in (ir.load(bundles["fp32"] / ONNX_FILE), nameless(bundles["fp32"]))
    )
    # Values inside a query's way to the operator have no role of their own; all others are found.
    for with_names, without in zip(named.layers, found.layers, strict=True):
        assert set(with_names) - set(without) == {"q_heads", "q_rope"}
    search = locate(ReplayGraph(nameless(bundles["fp32"]), bundles["fp32"]), evidence(bundles["fp32"]), looked=CALLS)
    assert search.location is None and search.reproduced


SPOILT = [
    # Position 0 is not turned.
    (attribute("RotaryEmbedding", "interleaved", 1), 1, ("q_rope",), ("k_rope",)),
    (rope_on_v, 1, ("v_heads",), ("v_heads",)),
    (gelu("none"), 0, ("activation",), ("gate_proj", "up_proj", "activation")),
    (slots(-1), 7, ("cache_key",), ("cache_key",)),
    (decode_position(1), 7, ("q_rope",), ("k_rope",)),
]


@pytest.mark.parametrize("names", [True, False], ids=["named", "nameless"])
@pytest.mark.parametrize(("spoil", "position", "sites", "roles"), SPOILT, ids=lambda x: getattr(x, "__name__", ""))
def test_the_place_is_found_with_and_without_names(
    bundles: dict[str, Path], tmp_path: Path, spoil: object, position: int, sites: tuple[str, ...],
    roles: tuple[str, ...], names: bool,
) -> None:  # fmt: skip
    bench = Bench(bundles["fp32"], EVERYTHING, [1])
    spoil(bench)  # type: ignore[operator]
    folder = bench.save(tmp_path / "spoilt", bundles["fp32"])
    model = ir.load(folder / ONNX_FILE) if names else nameless(folder)
    search = locate(ReplayGraph(model, folder), evidence(folder))
    assert search.location is not None and search.reproduced
    assert (search.location.position, search.location.layer) == (position, 1)
    assert search.location.site in (sites if names else roles)
    assert search.confined == frozenset([1])
    assert search.location.call == next(call.start for call in CALLS if position in call)
    assert f"position {position}: layer 1, {LABELS[search.location.site]}" in search.sentence


def test_a_backend_that_does_something_else_is_said(bundles: dict[str, Path]) -> None:
    """The file is sound and the outputs are not: the replay cannot speak for them."""
    honest = evidence(bundles["fp32"])
    other = replace(honest, outputs_PV=honest.outputs_PV * 1.01)
    search = locate(ReplayGraph.load(bundles["fp32"] / ONNX_FILE), other)
    assert search.location is None and not search.reproduced and search.ratio > 1000
    assert search.sentence.startswith("the replay does not reproduce the artifact's outputs")


def test_not_a_number_is_a_difference(bundles: dict[str, Path], tmp_path: Path) -> None:
    bench = Bench(bundles["fp32"], EVERYTHING)
    node = bench.node("model.layers.2.mlp.down_proj.linear")
    bench.become(node, bench.add("Mul", node.outputs[0], bench.constant(float("nan"), "float32")))
    folder = bench.save(tmp_path / "spoilt", bundles["fp32"])
    search = locate(ReplayGraph.load(folder / ONNX_FILE), evidence(folder))
    assert search.reproduced and search.location is not None
    assert (search.location.layer, search.location.site) == (2, "down_proj")
    assert search.sentence == "first difference at position 0: layer 2, down projection, which is NaN or infinite"


def test_the_first_infinity_behind_the_first_difference_is_said(bundles: dict[str, Path], tmp_path: Path) -> None:
    """The gate is too large, and only its product with `up` is beyond float32."""
    bench = Bench(bundles["fp32"], EVERYTHING)
    for name, factor in (("gate_proj", 1e30), ("up_proj", 1e30)):
        node = bench.node(f"model.layers.1.mlp.{name}.linear")
        bench.become(node, bench.add("Mul", node.outputs[0], bench.constant(factor, "float32")))
    folder = bench.save(tmp_path / "spoilt", bundles["fp32"])
    search = locate(ReplayGraph.load(folder / ONNX_FILE), evidence(folder))
    assert search.location is not None and search.location.site == "gate_proj" and search.location.finite
    assert "it is 1e+30 times eager's" in search.sentence
    assert search.sentence.endswith("the first NaN or infinity is in layer 1, activation of the MLP")


def wrong_row(bench: Bench) -> None:
    """Row 10 of the RoPE table is row 3."""
    for index, name in enumerate(("cos", "sin")):
        table = bench.value(name).const_value
        assert table is not None
        values = table.numpy().copy()
        values[10] = values[3]
        new = bench.constant(values, "float32")
        for node in bench.nodes("RotaryEmbedding"):
            node.replace_input_with(1 + index, new)


def test_a_call_without_wrong_outputs_is_looked_into(bundles: dict[str, Path], tmp_path: Path) -> None:
    """The call of positions 9 to 11 gives no outputs, and leaves a wrong key that a later call sees."""
    bench = Bench(bundles["fp32"], EVERYTHING)
    wrong_row(bench)
    folder = bench.save(tmp_path / "spoilt", bundles["fp32"])
    decoder = open_decoder(folder, threads=1, verify="nothing")
    silent = gather(decoder, CHECKPOINT, IDS, CALLS, [*range(9), 12])
    slot = first_wrong_slot(decoder, silent)
    assert slot == WrongSlot(10, 0, "keys", 9, 12)
    assert slot.sentence == (
        "the first wrong slot of the cache is 10, in the keys of layer 0, left by the call of positions 9 to 11"
    )
    graph = ReplayGraph.load(folder / ONNX_FILE)
    for known, calls in ((10, [0, 7, 9]), (None, [0, 7, 8, 9])):  # in the second case after a first, vain look
        search = locate(graph, silent, wrong_slot=known)
        assert search.location is not None
        assert (search.location.position, search.location.call, search.location.layer) == (10, 9, 0)
        assert search.location.site == "q_rope" and [call.start for call in search.looked] == calls


def test_a_sound_cache_has_no_wrong_slot(bundles: dict[str, Path]) -> None:
    for name in ("fp32", "fp16"):
        decoder = open_decoder(bundles[name], threads=1, verify="nothing")
        assert first_wrong_slot(decoder, gather(decoder, CHECKPOINT, IDS, CALLS, range(13))) is None


def test_where_nothing_differs_it_is_said_of_which_calls(bundles: dict[str, Path]) -> None:
    graph, said = ReplayGraph.load(bundles["fp32"] / ONNX_FILE), evidence(bundles["fp32"])
    nothing = "every value inside the graph stays within the floor in "
    assert locate(graph, said, looked=CALLS).sentence == nothing + "all 5 calls, up to position 12"
    some = locate(graph, said, looked=[CALLS[0], CALLS[3], CALLS[4]]).sentence
    assert some == nothing + "the calls looked into, 3 of 5 (positions 0 to 6, 9 to 11, 12)"


def test_a_failure_without_a_place_is_not_said_to_be_within_the_floor(bundles: dict[str, Path]) -> None:
    search = locate(ReplayGraph.load(bundles["fp32"] / ONNX_FILE), evidence(bundles["fp32"]), looked=CALLS)
    told = replace(search, failed=True).sentence
    assert told.startswith("no single operation is at fault") and "within the floor" not in told
    assert told.endswith("in all 5 calls, up to position 12; what leaves the floor is what they add up to")


def test_a_value_that_is_a_multiple_of_eagers_is_told_its_factor(bundles: dict[str, Path], tmp_path: Path) -> None:
    bench = Bench(bundles["fp32"], EVERYTHING, [1])
    for node in bench.named("self_attn.mul"):
        bench.become(node, bench.add("Mul", node.outputs[0], bench.constant(1.1, "float32")))
    folder = bench.save(tmp_path / "spoilt", bundles["fp32"])
    search = locate(ReplayGraph.load(folder / ONNX_FILE), evidence(folder))
    assert search.location is not None and search.location.site == "query"
    assert "it is 1.1 times eager's" in search.sentence


@pytest.mark.parametrize(
    ("errors", "first"),
    [
        ([0.5, 5.9, 5.8, 6.1, 7.0], 1),  # begun at 1, and over the limit at 3 by luck
        ([0.5, 5.9, 0.5, 6.1, 7.0], 3),
        ([0.5, 2.9, 2.9, 6.1, 7.0], 3),
        ([5.9, 5.9, 5.9, 5.9, float("inf")], 0),
        ([0.5, 0.5, 0.5, 5.9, 5.9], None),
    ],
)
def test_an_error_is_located_where_it_begins(errors: list[float], first: int | None) -> None:
    sites = ("query", "attention", "merged", "o_proj", "attention_residual")
    rows = [SiteError(CALLS[0], 1, site, error, 1.0) for site, error in zip(sites, errors, strict=True)]
    found = locating._first(rows)
    assert (None if found is None else found.site) == (None if first is None else sites[first])
    lost = [*rows[:4], replace(rows[4], error=float("nan"), finite=False)]
    found = locating._first(lost)
    assert found is not None and (found.site == sites[4]) is all(not row.outside for row in rows[:4])


def test_relative_error() -> None:
    want = torch.tensor([[3.0, 4.0]])
    assert relative_error(want + torch.tensor([[0.0, 0.5]]), want) == pytest.approx(0.1)
    assert relative_error(torch.zeros(3), want) == float("inf")
    assert relative_error(torch.tensor([True, False]), torch.tensor([True, True])) == 0.5
