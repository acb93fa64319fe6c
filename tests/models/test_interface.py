"""What a decoder takes and gives, told by its record; what is exported is held against it in tests/export."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockexport.models.element_types import BY_NAME
from blockexport.models.errors import NotJudgedError
from blockexport.models.interface import Ends, Interface
from tests.exported import EVERYTHING

PLAIN = Interface(EVERYTHING, BY_NAME["float16"], 29)


@pytest.mark.parametrize(
    ("ends", "first", "result", "shape"),
    [
        (Ends.LOGITS, "input_ids", "logits", (3, 8, 101)),
        (Ends.LAST_LOGITS, "input_ids", "logits", (3, 1, 101)),
        (Ends.HIDDEN_STATES, "inputs_embeds", "hidden_states", (3, 8, 24)),
    ],
)
def test_ends_decide_names_and_shapes(ends: Ends, first: str, result: str, shape: tuple[int, int, int]) -> None:
    interface = replace(PLAIN, ends=ends)
    assert (interface.inputs[0].name, interface.outputs[0].name) == (first, result)
    assert interface.output_shape(3, 8) == shape
    assert [size for size in interface.outputs[0].shape if isinstance(size, int)] == [1] * (shape[1] == 1) + [shape[2]]
    assert ends.told(8) == (range(7, 8) if ends is Ends.LAST_LOGITS else range(8))


def test_outputs_of_the_cache_alias_its_inputs() -> None:
    caches = PLAIN.inputs[2:]
    assert [port.aliases for port in PLAIN.outputs] == [None, *(port.name for port in caches)]
    assert {(port.dtype, port.shape) for port in caches} == {("float16", ("batch_size", 2, 29, 10))}


def test_a_headless_decoder_has_no_last_logits() -> None:
    assert Ends.of(headless=True) is Ends.HIDDEN_STATES
    assert Ends.of(last_logits_only=True) is Ends.LAST_LOGITS
    with pytest.raises(ValueError, match="headless"):
        Ends.of(headless=True, last_logits_only=True)


def test_no_bundle_is_in_float64() -> None:
    assert PLAIN.precision == "fp16"
    with pytest.raises(NotJudgedError, match="float64"):
        replace(PLAIN, element=BY_NAME["float64"]).precision  # noqa: B018
