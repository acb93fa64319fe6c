"""Mistakes with matrices in codes are named, each by its own name alone, in every layout and under every rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blockexport.compare.audits.code_rules import exact_values, nearest_codes, nearest_or_beside, within_a_step
from blockexport.compare.audits.coded_matrix import CodedMatrix, Rule
from blockexport.compare.audits.coding_mistakes import MISTAKES, mistake_in
from blockexport.models.quantised_matrix import QuantisationScheme
from tests.coded_zoo import CODED_EXHIBITS, Coded, CodedExhibit, Making, sound
from tests.support import REPOSITORY

SHAPES = ((96, 160), (77, 176))  # [N, K]: of whole blocks, and with a short one at the end and an odd number of outputs
CASES = [(e, bits, shape) for e in CODED_EXHIBITS for bits in e.bits for shape in SHAPES if e.fits(*shape, 32)]


def weight(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(inputs)) * 0.2


def coded(made: Coded, making: Making) -> CodedMatrix:
    """As an audit reads it."""
    return CodedMatrix(
        made.codes_KN.T.numpy(),
        made.scales_GN.T.float().numpy(),
        None if made.zeros_GN is None else made.zeros_GN.T.float().numpy(),
        making.scheme.block_size,
        (making.scheme.lowest, making.scheme.highest),
        row_by_row=making.bytes_along_inputs,
    )


def name_of(bad: CodedMatrix, weight_NK: torch.Tensor, rule: Rule) -> str | None:
    found = mistake_in(bad, weight_NK, rule, MISTAKES)
    return None if found is None else found.mistake.name


@pytest.mark.parametrize("along_inputs", [False, True])
@pytest.mark.parametrize(("exhibit", "bits", "shape"), CASES, ids=[f"{e}-{b}-{s[1]}" for e, b, s in CASES])
def test_a_mistake_is_seen_and_named(
    exhibit: CodedExhibit, bits: int, shape: tuple[int, int], along_inputs: bool
) -> None:
    weight_NK = weight(*shape)
    making = Making(QuantisationScheme(bits), torch.float16, along_inputs)
    good, bad = (coded(make(weight_NK, making), making) for make in (exhibit.sound or sound, exhibit.build))
    asymmetric = exhibit.mistake == "zero_point_ignored"  # which no calibrated matrix is
    for rule in (nearest_codes, within_a_step, *([nearest_or_beside] if bits == 4 and not asymmetric else [])):
        assert rule(good, weight_NK) is None
        assert rule(bad, weight_NK) is not None
        assert name_of(bad, weight_NK, rule) == exhibit.mistake


@pytest.mark.parametrize("exhibit", CODED_EXHIBITS, ids=str)
def test_a_mistake_with_codes_that_are_the_checkpoints_is_named(exhibit: CodedExhibit) -> None:
    """What the sound codes stand for is the checkpoint."""
    making = Making(QuantisationScheme(exhibit.bits[0], 64), torch.bfloat16)
    source = weight(128, 192)
    good = coded((exhibit.sound or sound)(source, making), making)
    bad = coded(exhibit.build(source, making), making)
    weight_NK = good.dequantised()
    if exhibit.mistake in ("block_axis", "order_dropped", "groups_dropped"):  # whose sound codes are others
        return
    assert exact_values(good, weight_NK) is None
    assert name_of(bad, weight_NK, exact_values) == exhibit.mistake


def test_a_scale_too_small_for_its_type_is_no_mistake() -> None:
    """A block of one small value: its scale is among float16's smallest numbers, and rounded to them."""
    weight_NK = weight(3, 65)
    weight_NK[:, 64] = torch.tensor([7.15e-4, -3e-5, 0.0])
    good = coded(sound(weight_NK, making := Making(QuantisationScheme(8, 64), torch.float16)), making)
    assert abs(float(good.values()[0, 64]) / 7.15e-4 - 1) > 2**-9  # more than what storing a scale costs elsewhere
    assert nearest_codes(good, weight_NK) is None


def test_what_is_no_mistake_of_these_has_no_name() -> None:
    weight_NK, making = weight(64, 96), Making(QuantisationScheme(4), torch.float16)
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    for k in range(3):
        codes_KN[7 + 31 * k, 5] = -codes_KN[7 + 31 * k, 5] // 2 - 1
    bad = coded(Coded(codes_KN, scales_GN), making)
    assert nearest_codes(bad, weight_NK) is not None and name_of(bad, weight_NK, nearest_codes) is None


def test_what_is_particular_is_said() -> None:
    weight_NK, making = weight(64, 96), Making(QuantisationScheme(8), torch.float16)
    halved = next(exhibit for exhibit in CODED_EXHIBITS if str(exhibit) == "scale_factor-halved")
    bad = coded(halved.build(weight_NK, making), making)
    found = mistake_in(bad, weight_NK, nearest_codes, MISTAKES)
    assert found is not None and found.words.endswith("made for, 0.5 times what it should be, in the block at [32, 64]")


def test_blocks_that_the_graph_reads_along_the_outputs_are_named() -> None:
    """Codes and scales are right, and read in blocks along the other axis."""
    weight_NK, making = weight(96, 160), Making(QuantisationScheme(4), torch.float16)
    codes_KN, scales_GN, _ = sound(weight_NK, making)
    scales = scales_GN.float().numpy().reshape(160, 3)
    bad = CodedMatrix(codes_KN.numpy(), scales, None, 32, (-8, 7), by_inputs=True)
    assert bad.dequantised().shape == weight_NK.shape
    assert name_of(bad, weight_NK, nearest_codes) == "block_axis"


def test_strips_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_NK, making = weight(96, 160), Making(QuantisationScheme(4), torch.float16)
    for exhibit in CODED_EXHIBITS:
        if 4 not in exhibit.bits:
            continue
        bad = coded(exhibit.build(weight_NK, making), making)
        whole = nearest_codes(bad, weight_NK)
        with monkeypatch.context() as patch:
            patch.setattr("blockexport.compare.audits.coded_matrix.STRIP", 160 * 7)
            parts = nearest_codes(bad, weight_NK)
        assert whole is not None and parts is not None
        assert whole.clause(bad) == parts.clause(bad) and np.array_equal(whole.wrong_RG, parts.wrong_RG)


def test_every_mistake_has_an_exhibit_and_a_row() -> None:
    assert {mistake.name for mistake in MISTAKES} == {exhibit.mistake for exhibit in CODED_EXHIBITS}
    page = (REPOSITORY / "docs/concepts/judging.md").read_text()
    rows = [page.index(f"\n| {mistake.title} |") for mistake in MISTAKES]
    assert rows == sorted(rows), "in the order in which they are tried"
