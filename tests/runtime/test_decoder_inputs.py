"""What a decoder is called with is checked before anything runs, by every decoder alike."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import blockexport.runtime
from blockexport.compare.core.watched import Watched
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.compare.memory_checkpoint import eager_model
from tests.exported import EVERYTHING, export, random_model

V, SLOTS = EVERYTHING.vocab_size, 29


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs") / "bundle"
    export(random_model(), folder, slots=SLOTS)
    return folder


@pytest.fixture(params=["onnxruntime", "replay", "eager"])
def decoder(request: pytest.FixtureRequest, bundle: Path) -> Decoder:
    if request.param == "eager":
        return EagerDecoder(eager_model(random_model()), SLOTS)
    return open_decoder(bundle, request.param)


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (ids([5, -1]), "token id -1 is outside the model's vocabulary of 101 (0..100)"),
        (ids([5, V]), "token id 101 is outside"),
        (ids([-(2**40), 2**40]), "token id -1099511627776 is outside"),
        (ids([1, 2]).float(), "inputs are float32 [1, 2]: this model takes token ids"),
        (ids([1, 0]).bool(), "inputs are bool [1, 2]"),
        (torch.tensor([1, 2]), "inputs are [2]: this model takes token ids [batch_size, sequence_length]"),
        (torch.zeros(1, 0, dtype=torch.int64), "inputs are [1, 0]"),
        (torch.zeros(1, 2, 24), "inputs are [1, 2, 24]: this model takes token ids"),
        (ids([1, 2], [3, 4]), "2 rows were given to a cache of 1: call reset(2) first"),
        ([[1, 2]], "inputs is of type list: give a torch.Tensor"),
        (np.array([[1, 2]]), "inputs is of type ndarray"),
        (torch.zeros(1, 2, dtype=torch.int64, device="meta"), "inputs is on the meta device"),
    ],
)
def test_inputs_that_are_no_tokens(decoder: Decoder, inputs: torch.Tensor, message: str) -> None:
    for call in (decoder.prefill, lambda given: decoder.forward(given, torch.arange(2)[None])):
        with pytest.raises(UsageError) as caught:
            call(inputs)
        assert message in str(caught.value)
    assert decoder.lengths_B.tolist() == [0]


@pytest.mark.parametrize(
    ("lengths_B", "message"),
    [
        (torch.tensor([9, 8]), "lengths_B is 9 for row 0 of a chunk of 8 tokens: it must be within 1..8"),
        (torch.tensor([8, 0]), "lengths_B is 0 for row 1"),
        (torch.tensor([-2, 8]), "lengths_B is -2 for row 0"),
        (torch.tensor([8]), "lengths_B is int64 [1]: give one integer for each of the 2 rows"),
        (torch.tensor([8, 8, 8]), "lengths_B is int64 [3]"),
        (torch.tensor([[8, 8]]), "lengths_B is int64 [1, 2]"),
        (torch.tensor(8), "lengths_B is int64 []"),
        (torch.tensor([7.5, 8]), "lengths_B is float32 [2]"),
        (torch.tensor([True, True]), "lengths_B is bool [2]"),
        ([8, 8], "lengths_B is of type list"),
        (torch.ones(2, dtype=torch.int64, device="meta"), "lengths_B is on the meta device"),
    ],
)
def test_lengths_that_are_none(decoder: Decoder, lengths_B: torch.Tensor, message: str) -> None:
    decoder.reset(2)
    before = [tensor.clone() for tensor in decoder.cache(0)]
    with pytest.raises(UsageError) as caught:
        decoder.prefill(torch.ones(2, 8, dtype=torch.int64), lengths_B)
    assert message in str(caught.value)
    assert decoder.lengths_B.tolist() == [0, 0]
    assert all(torch.equal(a, b) for a, b in zip(before, decoder.cache(0), strict=True))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (ids([0, 2]), "must count up by one"),
        (ids([1, 0]), "must count up by one"),
        (ids([0, 1, 2]), "inputs are [1, 2] and position_ids [1, 3]"),
        (ids([0, 1]).float(), "position_ids are float32 [1, 2]: give integers"),
        (ids([-1, 0]), "at position -1"),
        (ids([SLOTS - 1, SLOTS]), "need 30 cache slots, and there are 29"),
        ([[0, 1]], "position_ids is of type list"),
        (torch.zeros(1, 2, dtype=torch.int64, device="meta"), "position_ids is on the meta device"),
    ],
)
def test_positions_that_are_none(decoder: Decoder, positions: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decoder.forward(ids([1, 2]), positions)
    assert message in str(caught.value)


def test_a_step_is_one_token(decoder: Decoder) -> None:
    with pytest.raises(UsageError, match="a step was given 2 tokens"):
        decoder.step(ids([1, 2]))


@pytest.mark.parametrize("rows", [0, -1, True, 1.0, None])
def test_rows_of_a_cache(decoder: Decoder, rows: int) -> None:
    with pytest.raises(UsageError, match="rows was asked for: give a whole number, at least 1"):
        decoder.reset(rows)
    assert decoder.batch_size == 1


def test_a_cache_beyond_all_memory_is_told_in_numbers(decoder: Decoder) -> None:
    with pytest.raises(
        NotJudgedError, match=r"a cache of 10000000000 rows of 29 slots takes 126.6 TiB, and this machine has .* GiB"
    ):
        decoder.reset(10**10)


def test_every_integer_type_gives_the_same(decoder: Decoder) -> None:
    expected = decoder.prefill(ids([3, 1, 4, 1])).clone()
    for dtype in (torch.int32, torch.uint8):
        decoder.reset()
        assert torch.equal(decoder.prefill(ids([3, 1, 4, 1]).to(dtype), torch.tensor([4], dtype=torch.int32)), expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(1, 2, 23), "inputs are float32 [1, 2, 23]: this headless model takes embeddings"),
        (torch.zeros(1, 2, 24, dtype=torch.int64), "inputs are int64 [1, 2, 24]"),
        (ids([1, 2]), "inputs are [1, 2]: this model takes embeddings [batch_size, sequence_length, 24]"),
    ],
)
def test_embeddings_of_a_headless_model(tmp_path: Path, inputs: torch.Tensor, message: str) -> None:
    decoder = EagerDecoder(eager_model(random_model(), headless=True), SLOTS)
    with pytest.raises(UsageError) as caught:
        decoder.prefill(inputs)
    assert message in str(caught.value)
    assert decoder.prefill(torch.zeros(1, 2, 24, dtype=torch.float64)).dtype == torch.float32


def test_no_decoder_goes_around_the_checks() -> None:
    for found in pkgutil.walk_packages(blockexport.runtime.__path__, "blockexport.runtime."):
        if "ray" not in found.name or find_spec("ray"):  # an extra, which `make test` does without
            importlib.import_module(found.name)
    checked: list[Callable[..., object]] = [
        Decoder.reset,
        Decoder.forward,
        Decoder.step,
        Decoder._checked,
        Decoder._check,
    ]
    kinds = {kind for kind in subclasses(Decoder) if kind.__module__.startswith("blockexport.")}
    assert len(kinds) >= 8
    for kind in kinds - {Watched}:  # which hands every call on to a decoder of these
        assert [getattr(kind, method.__name__) for method in checked] == checked, kind


def subclasses(kind: type) -> set[type]:
    children: list[type] = kind.__subclasses__()
    return {kind}.union(*(subclasses(child) for child in children))
