"""Layers that read each other's caches: seen in any backend, and named where that reproduces the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockexport.compare.core.defect import CachePlace
from blockexport.compare.explain.defects_position import misread
from blockexport.compare.explain.misread_caches import misread_caches
from blockexport.models.precision import Precision
from blockexport.runtime.open import open_decoder
from tests.exported import EVERYTHING, export, gainful
from tests.zoo_bench import Bench, Spoil
from tests.zoo_edits_position import (
    cache_not_written,
    decode_position,
    pasts_exchanged,
    presents_exchanged,
    rope_on_v,
    slots,
)
from tests.zoo_judge import SLOTS, Cage, compare

CHECKPOINT = gainful(EVERYTHING)
IDS = torch.randint(0, EVERYTHING.vocab_size, (5,), generator=torch.Generator().manual_seed(8))


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Cage:
    folder = tmp_path_factory.mktemp("exchanged") / "sound"
    export(CHECKPOINT, folder, slots=SLOTS)
    return Cage(folder, CHECKPOINT)


def spoilt(cage: Cage, folder: Path, spoil: Spoil) -> Path:
    bench = Bench(cage.folder, EVERYTHING)
    spoil(bench)
    return bench.save(folder / "spoilt", cage.folder)


KEYS: dict[CachePlace, CachePlace] = {(0, "keys"): (2, "keys"), (2, "keys"): (0, "keys")}
CASES: list[tuple[Spoil, dict[CachePlace, CachePlace], dict[CachePlace, CachePlace]]] = [
    (pasts_exchanged(0, 2), KEYS, {(0, "keys"): (2, "keys")}),
    (presents_exchanged("0.key", "2.key"), KEYS, {(0, "keys"): (2, "keys")}),
    (
        pasts_exchanged(0, 1, 2),
        {(0, "keys"): (1, "keys"), (1, "keys"): (2, "keys"), (2, "keys"): (0, "keys")},
        {(0, "keys"): (1, "keys"), (1, "keys"): (2, "keys"), (2, "keys"): (1, "keys")},
    ),
    (
        pasts_exchanged(1, 2, kinds=("key", "value")),
        {(a, kind): (b, kind) for kind in ("keys", "values") for a, b in ((1, 2), (2, 1))},
        {(1, "keys"): (2, "keys"), (1, "values"): (2, "values")},
    ),
]
"""An edit, what a graph does that has it, and what ONNX Runtime does, which updates each cache in place: by the time a
later layer reads, an earlier one may have written there."""


@pytest.mark.parametrize("backend", ["replay", "onnxruntime"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_each_layer_reads_is_seen(case: int, backend: str, cage: Cage, tmp_path: Path) -> None:
    spoil, functional, in_place = CASES[case]
    folder = spoilt(cage, tmp_path, spoil)
    decoder = open_decoder(folder, backend, threads=1, verify="nothing")
    found = misread_caches(decoder, CHECKPOINT, IDS)
    assert found is not None and found.name == "caches_exchanged"
    assert found.reads == (functional if backend == "replay" else in_place)


OTHERS: list[Spoil] = [cache_not_written, slots(1), slots(-1), rope_on_v, decode_position(-3), lambda bench: None]
"""Wrong in another way; `decode_position(-3)` has no position for the first steps, which the replay refuses."""


def test_a_cache_that_is_wrong_in_another_way_is_not_an_exchange(cage: Cage, tmp_path: Path) -> None:
    for at, spoil in enumerate(OTHERS):
        folder = spoilt(cage, tmp_path / str(at), spoil)
        decoder = open_decoder(folder, "replay", threads=1, verify="nothing")
        assert misread_caches(decoder, CHECKPOINT, IDS) is None, at


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16], ids=str)
def test_rounding_hides_nothing(precision: Precision, tmp_path: Path) -> None:
    export(CHECKPOINT, tmp_path / "half", precision, SLOTS)
    folder = spoilt(Cage(tmp_path / "half", CHECKPOINT), tmp_path, pasts_exchanged(0, 2))
    decoder = open_decoder(folder, "replay", threads=1, verify="nothing")
    found = misread_caches(decoder, CHECKPOINT, IDS)
    assert found is not None and found.reads == KEYS


@pytest.mark.parametrize("backend", ["replay", "onnxruntime"])
def test_caches_given_under_each_others_name_are_named(backend: str, cage: Cage, tmp_path: Path) -> None:
    folder = spoilt(cage, tmp_path, presents_exchanged("0.key", "2.key"))
    checks = ("--check=prefill", "--check=decode", "--backend", backend)
    code, report = compare(cage, folder, tmp_path / "parity", *checks)
    explanation = report["explanation"]
    assert code == 1 and [cause["name"] for cause in explanation["causes"]] == ["caches_exchanged"]
    assert "layer 0 reads the keys of layer 2" in explanation["causes"][0]["cause"]
    located = explanation["located"]
    assert (located["layer"], located["site"]) == (0, "cache_key")


def test_the_cause_in_words() -> None:
    told = misread(
        {(1, "values"): (1, "keys"), (1, "keys"): (1, "values"), (0, "keys"): (2, "values"), (0, "values"): None},
        lost=False,
    )
    assert told.cause == (
        "caches are exchanged: layer 0 reads the values of layer 2 as keys, layer 0 finds no values, "
        "layer 1 reads its values as keys, layer 1 reads its keys as values"
    )
    many = misread({(layer, "keys"): (layer + 1, "keys") for layer in range(7)}, lost=False).cause
    assert many.endswith("layer 3 reads the keys of layer 4, and 3 more")
