"""`generation_config.json`, read strictly: what it suggests for sampling, what ends an answer, and what is not applied.

Keys and neutral values are those of transformers' GenerationConfig
(https://github.com/huggingface/transformers, generation/configuration_utils.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockexport.models.config.config_fields import MAX_INTEGER
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import no_repeated_key, read_json_object
from blockexport.models.strict_json import shown

GENERATION_CONFIG = "generation_config.json"

_Rule = tuple[str, Callable[[Any], bool]]  # what a value has to be, in words and as a test


def _whole(least: int) -> _Rule:
    return f"a whole number from {least} to {MAX_INTEGER}", lambda v: _is_whole(v) and least <= v <= MAX_INTEGER


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_FLAG: _Rule = "true or false", lambda v: isinstance(v, bool)
_POSITIVE: _Rule = "a finite number above 0", lambda v: _is_number(v) and v > 0
_FROM_0: _Rule = "a finite number of at least 0", lambda v: _is_number(v) and v >= 0
_NUMBER: _Rule = "a finite number", _is_number
_SHARE: _Rule = "a number above 0 and at most 1", lambda v: _is_number(v) and 0 < v <= 1
_FROM_0_TO_1: _Rule = "a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1
_ID: _Rule = "a token id", lambda v: _is_whole(v) and 0 <= v <= MAX_INTEGER
_IDS: _Rule = "a list of token ids", lambda v: isinstance(v, list) and all(_ID[1](item) for item in v)
_ID_OR_IDS: _Rule = "a token id or a list of them", lambda v: _ID[1](v) or _IDS[1](v)
_TEXTS: _Rule = (
    "text or a list of texts",
    lambda v: isinstance(v, str) or (isinstance(v, list) and all(isinstance(item, str) for item in v)),
)
_LIST: _Rule = "a list", lambda v: isinstance(v, list)
_ANYTHING: _Rule = "anything", lambda v: True

_APPLIED: Mapping[str, _Rule] = {
    "do_sample": _FLAG,
    "temperature": _FROM_0,
    "top_k": _whole(0),
    "top_p": _SHARE,
    "bos_token_id": _ID,
    "eos_token_id": _ID_OR_IDS,
    # Padding is for batches, which have no part in an answer; old Llama configs say -1.
    "pad_token_id": _whole(-1),
}
# Keys that change the answer and are not applied, and the values that change nothing.
_UNAPPLIED: Mapping[str, tuple[_Rule, tuple[Any, ...]]] = {
    "repetition_penalty": (_POSITIVE, (1.0,)),
    "encoder_repetition_penalty": (_POSITIVE, (1.0,)),
    "no_repeat_ngram_size": (_whole(0), (0,)),
    "encoder_no_repeat_ngram_size": (_whole(0), (0,)),
    "min_p": (_FROM_0_TO_1, (0.0,)),
    "top_h": (_FROM_0_TO_1, ()),
    "typical_p": (_SHARE, (1.0,)),
    "epsilon_cutoff": (_FROM_0_TO_1, (0.0,)),
    "eta_cutoff": (_FROM_0_TO_1, (0.0,)),
    "num_beams": (_whole(1), (1,)),
    "num_beam_groups": (_whole(1), (1,)),
    "diversity_penalty": (_NUMBER, (0.0,)),
    "penalty_alpha": (_FROM_0, (0.0,)),
    "guidance_scale": (_NUMBER, (1.0,)),
    "suppress_tokens": (_IDS, ([],)),
    "begin_suppress_tokens": (_IDS, ([],)),
    "forced_bos_token_id": (_ID, ()),
    "forced_eos_token_id": (_ID_OR_IDS, ()),
    "bad_words_ids": (_LIST, ([],)),
    "force_words_ids": (_LIST, ([],)),
    "constraints": (_LIST, ([],)),
    "sequence_bias": (_ANYTHING, ()),
    "exponential_decay_length_penalty": (_LIST, ()),
    "stop_strings": (_TEXTS, ([],)),
    "min_length": (_whole(0), (0,)),
    "min_new_tokens": (_whole(0), (0,)),
    "watermarking_config": (_ANYTHING, ()),
    "dola_layers": (_ANYTHING, ()),
    "token_healing": (_FLAG, (False,)),
    "renormalize_logits": (_FLAG, (False,)),
}
# Keys that leave a greedy or sampled answer as it is: lengths, which --max-new-tokens and the cache set; beam search,
# which num_beams turns on; how transformers runs a model and what else it returns.
_HARMLESS: Mapping[str, _Rule] = {
    name: rule
    for rule, names in (
        (
            _NUMBER,
            """max_length max_new_tokens max_time length_penalty num_return_sequences max_cache_len num_assistant_tokens
            assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit
            assistant_lookbehind target_lookbehind prefill_chunk_size max_window_size""",
        ),
        (
            _FLAG,
            """use_cache remove_invalid_values return_legacy_cache return_dict_in_generate output_attentions
            output_hidden_states output_scores output_logits is_assistant disable_compile low_memory trust_remote_code
            _from_model_config""",
        ),
        (_TEXTS, "cache_implementation num_assistant_tokens_schedule transformers_version chat_format"),
        (_ID_OR_IDS, "decoder_start_token_id"),
        (
            _ANYTHING,
            """early_stopping cache_config compile_config continuous_batching_config generation_kwargs
            speculation_type use_mtp assistant_ensemble_weight""",
        ),
    )
    for name in names.split()
}


@dataclass(frozen=True)
class GenerationConfig:
    """What the file says; None where it says nothing.

    Attributes:
        do_sample, temperature, top_k, top_p: the sampling it suggests.
        eos_token_ids: the tokens that end an answer.
        unapplied: what would change the answer and is not applied, keys unknown here included.
    """

    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    eos_token_ids: tuple[int, ...] | None = None
    unapplied: Mapping[str, Any] = field(default_factory=dict)


def read_generation_config(path: Path) -> GenerationConfig:
    """The file at `path`.

    Raises:
        UsageError: it cannot be read, a key is there twice, or a value is of another type or out of its range.
    """
    data = read_json_object(path, "fetch the file again", no_repeated_key)
    rules = {**_APPLIED, **_HARMLESS, **{name: rule for name, (rule, _) in _UNAPPLIED.items()}}
    for name, (words, fits) in rules.items():
        if data.get(name) is not None and not fits(data[name]):
            raise UsageError(f"{path}: {name} is {shown(data[name])}, and must be {words}: correct or remove it")
    ends = token_ids(data.get("eos_token_id"))
    return GenerationConfig(
        do_sample=data.get("do_sample") is True,
        temperature=data.get("temperature"),
        top_k=data.get("top_k"),
        top_p=data.get("top_p"),
        eos_token_ids=ends,
        unapplied={name: value for name, value in data.items() if _changes_the_answer(name, value)},
    )


def greedy_config(bos: int | None, ends: Sequence[int], pad: int | None = None) -> dict[str, Any]:
    """The content of a file that asks for greedy answers with these token ids."""
    end = (ends[0] if len(ends) == 1 else list(ends)) if ends else None
    ids = {"bos_token_id": bos, "eos_token_id": end, "pad_token_id": pad}
    return {"do_sample": False, **{name: value for name, value in ids.items() if value is not None}}


def token_ids(value: Any) -> tuple[int, ...] | None:
    """A token id, or a list of them, as a tuple; None for null and for anything else."""
    if value is None or not _ID_OR_IDS[1](value):
        return None
    return tuple(value) if isinstance(value, list) else (value,)


def _changes_the_answer(name: str, value: Any) -> bool:
    if value is None or name in _APPLIED or name in _HARMLESS:
        return False
    return name not in _UNAPPLIED or value not in _UNAPPLIED[name][1]
