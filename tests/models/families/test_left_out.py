"""The census of transformers' decoders: each is a family, or is left out for a reason."""

from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from blockexport.models.errors import UsageError
from blockexport.models.families.every_family import FAMILIES
from blockexport.models.families.left_out import LEFT_OUT
from blockexport.models.formats.config_hf import config_from_hf


def test_every_decoder_of_transformers_is_in_or_left_out_for_a_reason() -> None:
    census = {CONFIG_MAPPING[name].model_type for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    assert census - FAMILIES.keys() - LEFT_OUT.keys() == set()
    assert LEFT_OUT.keys() & FAMILIES.keys() == set()
    assert LEFT_OUT.keys() - census == set()


@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("mixtral", "'mixtral' is not implemented: mixtures of experts are not implemented; supported are arcee, "),
        ("nobody", "'nobody' is not implemented; supported are arcee, "),
    ],
)
def test_a_refusal_says_why_and_how_to_add_a_family(model_type: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        config_from_hf({"model_type": model_type}, "config.json")
    assert "CONTRIBUTING.md" in str(caught.value)
