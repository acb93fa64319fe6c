"""Which matrices of a quantised bundle lie side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockexport.export.weights.matrix_layout import layouts_of
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.quantisation import quantisation_of
from blockexport.models.quantised_matrix import QuantisationScheme
from tests.exported import EVERYTHING, gainful

LAYER = "model.layers.1"
QUERY, KEY, VALUE = (f"{LAYER}.self_attn.{name}_proj.weight" for name in "qkv")
BLOCKS = QuantisationScheme(4, 32)


def _with(codes: dict[str, tuple[QuantisationScheme, str | None]]) -> Checkpoint:
    """A checkpoint that says of some matrices that it has them in codes, in an order of inputs."""
    source = gainful(EVERYTHING)
    said = {name: replace(source.entries[name], codes=kind, order=order) for name, (kind, order) in codes.items()}
    source.entries = {**source.entries, **said}
    return source


def test_those_that_read_the_same_are_one_with_all_outputs() -> None:
    source = gainful(EVERYTHING)
    layouts = layouts_of(source, source.entries, quantisation_of("int4"))
    together = layouts[f"{LAYER}.self_attn.qkv_proj.weight"]
    sizes = {name: source.entries[name].shape[0] for name in (QUERY, KEY, VALUE)}
    assert list(together.tensors.outputs.items()) == list(sizes.items())
    assert together.outputs == sum(sizes.values())
    assert together.tensors.columns(VALUE) == slice(sizes[QUERY] + sizes[KEY], together.outputs)
    assert {QUERY, KEY, VALUE}.isdisjoint(layouts)


@pytest.mark.parametrize("orders", [("one", "one", "other"), ("one", "one", None), ("one", "one", "one")])
def test_those_that_read_it_in_different_orders_are_by_themselves(orders: tuple[str | None, ...]) -> None:
    source = _with({name: (BLOCKS, order) for name, order in zip((QUERY, KEY, VALUE), orders, strict=True)})
    layouts = layouts_of(source, source.entries, quantisation_of("int4"))
    joined = len(set(orders)) == 1
    assert (f"{LAYER}.self_attn.qkv_proj.weight" in layouts) == joined
    assert (QUERY in layouts) == (not joined)
    if not joined:
        assert (layouts[QUERY].order, layouts[KEY].order) == (QUERY, QUERY)
        assert layouts[VALUE].order == (None if orders[2] is None else VALUE)


def test_one_whose_order_is_lost_since_it_is_quantised_again_is_by_itself() -> None:
    source = _with({QUERY: (BLOCKS, "one"), KEY: (BLOCKS, "one"), VALUE: (QuantisationScheme(8, 32), "one")})
    layouts = layouts_of(source, source.entries, quantisation_of("int4"))
    assert layouts[VALUE].order is None and layouts[QUERY].order == QUERY
