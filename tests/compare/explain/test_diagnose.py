"""Diagnose: naming, ties, defects below the noise, unknown mistakes, randomness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from blockexport.compare.core.cached_path import Case
from blockexport.compare.core.defect import Defect
from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.nudge import LargeNudge
from blockexport.compare.explain.defects import DROPOUT, catalogue, title_of
from blockexport.compare.explain.defects_attention import scaled_by
from blockexport.compare.explain.defects_block import site_norms
from blockexport.compare.explain.defects_position import EXCHANGED, LOST
from blockexport.compare.explain.diagnose import Hints, _Trial, diagnose
from blockexport.compare.explain.diagnosis import Diagnosis
from blockexport.models.element_types import BY_NAME
from blockexport.models.interface import Ends, Interface
from blockexport.models.wording import number
from tests.exported import EVERYTHING, gainful
from tests.zoo import models

SLOTS = 20
CALLS = [range(9), *(range(i, i + 1) for i in range(9, 14))]
IDS = torch.randint(0, EVERYTHING.vocab_size, (14,), generator=torch.Generator().manual_seed(8))
CHECKPOINT = gainful(EVERYTHING)
INTERFACE = Interface(CHECKPOINT.config, BY_NAME["float32"], SLOTS)
SOUND = Evidence(CHECKPOINT, IDS, CALLS, range(14), torch.empty(0), INTERFACE)


@pytest.fixture(scope="module", autouse=True)
def _each_defect_is_run_once() -> Iterator[None]:
    """What the catalogue makes of the model does not depend on what it is held against."""
    known: dict[object, list[torch.Tensor]] = {}
    run = _Trial._run

    def once(trial: _Trial, dtype: torch.dtype, cases: Sequence[Case]) -> list[torch.Tensor]:
        evidence = trial.evidence
        made = tuple((case.defect.name, case.layers, case.first_position, case.nudge) for case in cases)
        key = (dtype, evidence.interface, tuple(evidence.positions), made)
        if key not in known:
            known[key] = run(trial, dtype, cases)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Trial, "_run", once)
        yield


def said(case: Case, dtype: torch.dtype = torch.float32, evidence: Evidence = SOUND) -> Evidence:
    """What a model with a defect says, in a type; wherever rounding matters it is rounded from float64."""
    exact = evidence.path(torch.float64).run([case], evidence.positions)[0]
    return replace(evidence, outputs_PV=exact.to(dtype))


def defect(name: str, position: int | None = None) -> Case:
    return Case(next(d for d in catalogue(EVERYTHING, position=position) if d.name == name))


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.findings]


def test_a_sound_model_has_no_findings() -> None:
    assert diagnose(said(Case())).findings == ()


@pytest.mark.parametrize("name", ["rope_interleaved", "mask_hides_self", "eps_1e-06", "k_proj_bias_dropped"])
def test_the_defect_is_named_alone(name: str) -> None:
    found = diagnose(said(defect(name)))
    assert names(found) == [name] and found.alike == found.findings
    assert f"reproduced to {number(found.findings[0].rms)}" in found.sentences[0]
    assert found.tried > 50


def test_half_precision_names_what_is_larger_than_its_noise() -> None:
    assert names(diagnose(said(defect("gate_up_swapped"), torch.float16)))[0] == "gate_up_swapped"
    small = diagnose(said(defect("eps_1e-06"), torch.float16))
    # In fp16 a wrong epsilon lies inside the noise: not named, and said to be too small to see.
    assert names(small) == [] and {"eps_1e-06", "eps_1e-12"} <= set(small.too_small)
    assert any("too small to see on these tokens" in line and "norm epsilon 1e-06" in line for line in small.sentences)


def test_what_cannot_act_in_the_calls_is_not_said_to_be_too_small() -> None:
    """From position 9 on each call is of one token, whose heads need no transpose."""
    late = Case(defect("gelu").defect, None, 9)
    small = set(diagnose(said(late, torch.float16)).too_small)
    assert "eps_1e-06" in small and not small & {"heads_viewed", "merge_viewed"}


def test_defects_that_do_the_same_on_these_tokens_are_both_named() -> None:
    """In the last call a slot not written, a stale one and one written too late, where it is masked, are one thing."""
    late = Case(defect("cache_not_written").defect, None, 13)
    found = diagnose(said(late))
    assert {f.name for f in found.alike} == {"stale_slot", "cache_not_written", "slot_late"}
    assert found.alike[0].rms == found.alike[2].rms
    assert found.sentences[3] == "these cannot be told apart on the given tokens"
    assert all(f.scope == "from position 13 on" for f in found.alike)


@pytest.mark.parametrize("name", ["softmax_half", "norm_half"])
def test_a_defect_that_rounds_is_named_whatever_falls_over_the_edge(name: str) -> None:
    """Of two sound runs with such a defect, one may have a value rounded the other way, a hundred times the noise."""
    path, far = SOUND.path(torch.float32), 0
    exact = SOUND.path(torch.float64).run([defect(name)], SOUND.positions)[0]
    for seed in range(100, 104):
        outputs = path.run([replace(defect(name), nudge=LargeNudge(seed))], SOUND.positions)[0]
        far += float((outputs - exact).abs().max()) > 1e-5
        assert names(diagnose(replace(SOUND, outputs_PV=outputs)))[0] == name
    assert far > 0, "none of these runs is the case in question"


def test_a_defect_in_some_layers_needs_the_hint() -> None:
    case = Case(defect("gelu").defect, frozenset([0, 2]))
    assert diagnose(said(case)).findings == ()
    found = diagnose(said(case), Hints(frozenset([0, 2])))
    assert names(found)[0] == "gelu" and found.findings[0].scope == "only in layers 0, 2"


def test_a_defect_is_named_once_in_the_widest_scope_that_will_do() -> None:
    found = diagnose(said(defect("gelu")), Hints(frozenset([0, 2])))
    assert [(f.name, f.scope) for f in found.findings] == [("gelu", "")]
    last = diagnose(said(defect("window_one_more")), Hints(frozenset([1])))
    # Layer 1 is the only one with a window: both scopes reproduce the artifact alike, and the wider is given.
    assert [(f.name, f.scope) for f in last.findings] == [("window_one_more", "")]


def test_an_unknown_mistake_is_not_called_a_known_one() -> None:
    strange = replace(said(Case()), outputs_PV=said(Case()).outputs_PV * 1.05)
    found = diagnose(strange)
    assert found.findings == ()
    assert found.sentences[0].startswith(f"none of {found.tried} known defects reproduces these logits")


def test_the_nearest_defect_is_a_hint_only_where_it_is_near() -> None:
    exact = SOUND.path(torch.float64)
    clean, first, second = exact.run([Case(), defect("rope_on_v"), defect("gate_up_swapped")], SOUND.positions)
    for share, near in ((0.03, True), (0.2, False)):
        mixed = replace(SOUND, outputs_PV=(first + share * (second - clean)).float())
        found = diagnose(mixed)
        assert found.findings == () and (found.nearest is not None) is near
        assert (
            "; nearest, but does not reproduce them: RoPE is applied to v as well (off by" in found.sentences[0]
        ) is near


@pytest.mark.parametrize("site", ["post_attention_layernorm", "q_heads"])
def test_a_wrong_epsilon_in_one_norm_of_one_layer(site: str) -> None:
    made = next(d for d in catalogue(EVERYTHING, site=site) if d.name.startswith("eps_1e-12_in_"))
    alone = said(Case(made, frozenset([1])))
    assert not diagnose(alone, Hints(frozenset([1]))).findings
    found = diagnose(alone, Hints(frozenset([1]), site=site))
    assert names(found)[0] == made.name and found.findings[0].scope == "only in layer 1"
    assert "wrong epsilon in one norm" in found.sentences[0]


def test_a_wrong_epsilon_in_all_norms_of_one_layer() -> None:
    """The final norm is none of that layer's."""
    made = next(d for d in catalogue(EVERYTHING) if d.name == "eps_1e-12")
    sound, wrong = SOUND.path(torch.float64).run([Case(), Case(made, frozenset([1]))], SOUND.positions)
    block_only = replace(made, norm=Defect("", "").norm)
    assert torch.equal(wrong, SOUND.path(torch.float64).run([Case(block_only, frozenset([1]))], SOUND.positions)[0])
    assert not torch.equal(wrong, sound)


def test_scores_that_are_a_measured_factor_too_large() -> None:
    made = scaled_by(1.1)
    hints = Hints(frozenset([1]), site="query", times=1.1)
    found = diagnose(said(Case(made, frozenset([1]))), hints)
    assert names(found)[0] == "scale_times" and "attention scores are 1.1 times too large" in found.sentences[0]


@pytest.mark.parametrize(("times", "named"), [(3.17, False), (3.1, True), (0.315, False), (0.32, True)])
def test_a_factor_that_is_the_scale_itself_goes_by_its_own_name(times: float, named: bool) -> None:
    found = {defect.name for defect in catalogue(EVERYTHING, site="query", times=times)}  # of heads of 10
    assert {"scale_missing", "scale_twice"} < found and ("scale_times" in found) is named


def test_nan_is_no_dropout() -> None:
    once = said(Case())
    lost = once.outputs_PV.clone()
    lost[5:] = float("nan")
    lost[7, 3] = float("inf")
    for outputs in (lost, torch.full_like(lost, float("nan"))):
        assert diagnose(replace(once, outputs_PV=outputs, repeated_PV=outputs.clone())).findings == ()


def test_every_defect_has_a_title_without_its_internal_name() -> None:
    known = {d.name for config in models(EVERYTHING).values() for d in catalogue(config, position=3, times=1.1)}
    known |= {
        d.name
        for site in (*site_norms(EVERYTHING), "final_norm", "query")
        for d in catalogue(EVERYTHING, site=site, times=1.1)
    }
    for name in known | {DROPOUT, EXCHANGED, LOST}:
        assert title_of(name) and "_" not in title_of(name).replace("_proj", "")


def test_two_defects_at_once_are_not_called_one() -> None:
    """Each alone leaves most of the error unexplained."""
    exact = SOUND.path(torch.float64)
    clean, first, second = exact.run([Case(), defect("rope_on_v"), defect("gate_up_swapped")], SOUND.positions)
    assert diagnose(replace(SOUND, outputs_PV=(first + second - clean).float())).findings == ()


def test_dropout_is_known_by_its_randomness() -> None:
    once = said(Case())
    noise = torch.randn(once.outputs_PV.shape, generator=torch.Generator().manual_seed(1))
    found = diagnose(replace(once, outputs_PV=once.outputs_PV + 0.1 * noise, repeated_PV=once.outputs_PV))
    assert names(found) == [DROPOUT] and "two runs on the same tokens differ" in found.sentences[0]
    # Differences of rounding size between two runs are not dropout.
    same = replace(once, repeated_PV=once.outputs_PV * (1 + 1e-7))
    assert diagnose(same).findings == ()


def test_few_positions_are_enough_and_the_last_is_kept() -> None:
    thin = said(defect("slot_late")).thinned(3)
    assert list(thin.positions) == [3, 8, 13] and thin.outputs_PV.shape[0] == 3
    assert names(diagnose(thin))[0] == "slot_late"


def test_headless_and_last_logits() -> None:
    headless = replace(SOUND, interface=replace(SOUND.interface, ends=Ends.HIDDEN_STATES))
    assert names(diagnose(said(defect("scale_twice"), evidence=headless)))[0] == "scale_twice"
    last = replace(SOUND, positions=[8, 9, 10, 11, 12, 13], interface=replace(SOUND.interface, ends=Ends.LAST_LOGITS))
    assert names(diagnose(said(defect("scale_twice"), evidence=last)))[0] == "scale_twice"
