"""The bug zoo: `compare` exits 1 on each defect built into an exported file, locates it and names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from blockexport.compare.explain.defects import DROPOUT, catalogue
from blockexport.compare.explain.defects_position import EXCHANGED, LOST
from tests.conftest import TABLE
from tests.exported import EVERYTHING, gainful
from tests.zoo import EXHIBITS, Exhibit, models
from tests.zoo_bench import attribute
from tests.zoo_edits_position import last_write_early, rope_missing, stale_slot
from tests.zoo_judge import HEADER, SLOTS, Cage, Record, build_cage, judge_exhibit

LAST = SLOTS - 1


Cages = Callable[[str], Cage]


@pytest.fixture(scope="module")
def cages(tmp_path_factory: pytest.TempPathFactory) -> Cages:
    """`cages(model)`: made when it is first asked for."""
    folder = tmp_path_factory.mktemp("zoo")
    return cache(lambda name: build_cage(gainful(models(EVERYTHING)[name]), folder / name))


FULL = (
    "rope_missing",
    "rope_backwards",
    "rope_scaling_dropped-linear",
    "rope_scaling_dropped-yarn",
    "rope_scaling_dropped-freq_factors",
    "position_behind",
    "position_behind-learned positions",
    "mask_missing",
    "window_one_less",
    "positions_2_on-learned positions",
    "window_everywhere",
    "cache_not_written",
    "scale_twice",
    "k_v_swapped",
    "qk_norm_dropped",
    "k_proj_bias_dropped",
    "v_proj_bias_dropped",
    "gate_proj_bias_dropped",
    "up_proj_bias_dropped",
    "qkv_bias_dropped",
    "gelu_tanh",
    "silu_missing",
    "silu-scaled",
    "gelu-scaled",
    "attention_out_norm_dropped-scaled",
    "mlp_out_norm_dropped-scaled",
    "mlp_residual_dropped",
    "layer_duplicated",
)
"""Left to `make test-full`: each has a near relative among the others."""


def marked(exhibit: Exhibit) -> ParameterSet:
    name = exhibit.defect if exhibit.model == "everything" else f"{exhibit.defect}-{exhibit.model}"
    return pytest.param(exhibit, id=name, marks=pytest.mark.full if name in FULL else ())


def test_a_sound_file_passes_and_has_nothing_inside(cages: Cages, record_property: Record) -> None:
    record_property(TABLE, HEADER)
    cages("everything")


@pytest.mark.parametrize("exhibit", [marked(exhibit) for exhibit in EXHIBITS])
def test_defect_is_detected_located_and_named(
    exhibit: Exhibit, cages: Cages, tmp_path: Path, record_property: Record
) -> None:
    judge_exhibit(exhibit, cages(exhibit.model), tmp_path, record_property)


@pytest.mark.parametrize("epsilon", [1e-2, pytest.param(1e-3, marks=pytest.mark.full)])
def test_an_epsilon_that_is_far_too_large_is_named(
    epsilon: float, cages: Cages, tmp_path: Path, record_property: Record
) -> None:
    spoil = attribute("RMSNormalization", "epsilon", epsilon, everywhere=True)
    judge_exhibit(
        Exhibit(f"eps_{epsilon:g}", spoil, ("input_layernorm",)), cages("everything"), tmp_path, record_property
    )


ONE_LAYER = ("rope_interleaved", "mask_sees_next", "slot_late")
ONE_LAYER_FULL = ("gelu", "o_proj_bias_dropped", "heads_tiled")


@pytest.mark.parametrize("name", [*ONE_LAYER, *(pytest.param(name, marks=pytest.mark.full) for name in ONE_LAYER_FULL)])
def test_defect_of_one_layer_is_found_there(name: str, cages: Cages, tmp_path: Path, record_property: Record) -> None:
    exhibit = next(exhibit for exhibit in EXHIBITS if exhibit.defect == name)
    only = replace(exhibit, layers=(2,), layer=2)
    explanation = judge_exhibit(only, cages("everything"), tmp_path, record_property)
    assert explanation["causes"][0]["scope"] == "only in layer 2"
    assert explanation["located"]["layers"] == [2]


def test_rope_dropped_in_one_of_two_layers_that_have_it(cages: Cages, tmp_path: Path, record_property: Record) -> None:
    dropped = Exhibit("rope_missing", rope_missing, ("q_rope",), layer=2, layers=(2,))
    explanation = judge_exhibit(dropped, cages("layer 1 without RoPE"), tmp_path, record_property)
    assert explanation["causes"][0]["scope"] == "only in layer 2"


def test_defect_of_the_last_slot_is_found_there(cages: Cages, tmp_path: Path, record_property: Record) -> None:
    stale = Exhibit("stale_slot", stale_slot(LAST), ("cache_key",), decode=True)
    early = Exhibit("slot_early", last_write_early, ("cache_key",), decode=True)
    for exhibit in (stale, early):
        explanation = judge_exhibit(exhibit, cages("everything"), tmp_path / exhibit.defect, record_property)
        assert explanation["located"]["position"] == LAST
        assert explanation["causes"][0]["scope"] == f"from position {LAST} on"


def test_every_defect_of_the_catalogue_has_an_exhibit() -> None:
    """The thetas and epsilons of the lists are each one defect in several sizes."""
    families = ("rope_theta_", "eps_", "rope_dims_", "positions_")

    def family(name: str) -> str:
        return next((prefix for prefix in families if name.startswith(prefix)), name)

    known = {family(defect.name) for config in models(EVERYTHING).values() for defect in catalogue(config, position=3)}
    assert known | {DROPOUT, EXCHANGED, LOST} == {family(exhibit.defect) for exhibit in EXHIBITS}
