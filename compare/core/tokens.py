"""The tokens a judgement uses: ids that were given, a text, or seeded random ids where there is no tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.passage import PASSAGE
from blockexport.models.config.model_config import ModelConfig
from blockexport.models.errors import UsageError
from blockexport.models.wording import plural

CHARACTERS_PER_TOKEN = 8
CUT_WORD = 64  # ids at the end of a piece of text that may come from half a word
DIFFERENT = 8  # ids that the passage must give at least: where all tokens are alike, mask and RoPE have no effect

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Tokens:
    """Token ids int64 [S] and, for the report, where they came from."""

    ids_S: torch.Tensor
    origin: str

    def caution(self, count: int) -> str:
        """What to bear in mind of a judgement on the first `count` of them; empty where there is nothing."""
        different, wanted = len(set(self.ids_S[:count].tolist())), min(DIFFERENT, (count + 1) // 2)
        if different >= wanted:
            return ""
        return (
            f"only {plural(different, 'different token')} among the {count} judged ({self.origin}): "
            "where tokens are alike, a wrong mask, RoPE or cache hardly shows; judge on more varied ones"
        )


def choose_tokens(
    config: ModelConfig,
    count: int,
    *,
    encode: Encode | None = None,
    text: str | None = None,
    ids: Sequence[int] | None = None,
    seed: int = 0,
) -> Tokens:
    """`count` token ids: of `ids`, else of `text`, else of the built-in passage, else random.

    What is too short is repeated. A tokenizer that makes too few different tokens of the passage (one of another
    alphabet, say) is left aside. `encode` is the tokenizer's, which puts the BOS in front where the model wants one.

    Raises:
        UsageError: an id outside the vocabulary, a text without tokenizer or words, or nothing to repeat.
    """
    if ids is not None:
        return Tokens(_repeat(list(ids), count, config, "the given token ids"), "given token ids")
    if text is not None and encode is None:
        raise UsageError("a text was given and there is no tokenizer to read it with: give --tokens with ids instead")
    if text is not None and not text.strip():
        raise UsageError("the given text is empty: give one with words, or leave it away for the built-in passage")
    if encode is not None:
        encoded = first_ids(encode, PASSAGE if text is None else text, count)
        origin = "built-in passage (Alice's Adventures in Wonderland)" if text is None else "given text"
        if text is not None or len(set(encoded)) >= DIFFERENT:
            return Tokens(_repeat(encoded, count, config, origin, made_by_tokenizer=True), origin)
    generator = torch.Generator().manual_seed(seed)
    return Tokens(torch.randint(0, config.vocab_size, (count,), generator=generator), f"random ids, seed {seed}")


def first_ids(encode: Encode, text: str, count: int) -> list[int]:
    """At least the first `count` ids of a text, however long it is, and all where it has fewer."""
    size = CHARACTERS_PER_TOKEN * count + 1000
    while size < len(text):
        ids = list(encode(text[:size]))
        if len(ids) >= count + CUT_WORD:
            return ids[:-CUT_WORD]
        size *= 4
    return list(encode(text))


def _repeat(
    ids: list[int], count: int, config: ModelConfig, what: str, *, made_by_tokenizer: bool = False
) -> torch.Tensor:
    if not ids:
        raise UsageError(f"there is no token in {what}: give at least one")
    outside = [i for i in ids if not 0 <= i < config.vocab_size]
    if outside and made_by_tokenizer:
        raise UsageError(
            f"the tokenizer gives the id {outside[0]} for the {what}, and the model's vocabulary has "
            f"{config.vocab_size}: it is another model's. Put the model's own there, or judge on ids with --tokens"
        )
    if outside:
        raise UsageError(
            f"the id {outside[0]} in {what} is outside the vocabulary of {config.vocab_size} tokens: give ids from 0 "
            f"to {config.vocab_size - 1}"
        )
    repeated = ids * -(-count // len(ids))
    return torch.tensor(repeated[:count], dtype=torch.int64)
