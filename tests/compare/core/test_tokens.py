"""The tokens a judgement uses must tell positions apart."""

from __future__ import annotations

import pytest

from blockexport.compare.core.tokens import choose_tokens
from blockexport.models.errors import UsageError
from tests.compare.memory_checkpoint import TINY


def test_a_tokenizer_that_makes_one_token_of_everything_is_left_aside() -> None:
    blind = choose_tokens(TINY, 50, encode=lambda text: [1] + [0] * len(text))
    assert blind.origin == "random ids, seed 0" and len(set(blind.ids_S.tolist())) > 20
    seeing = choose_tokens(TINY, 50, encode=lambda text: [ord(character) % 101 for character in text])
    assert seeing.origin.startswith("built-in passage")


def test_a_given_text_is_used_as_it_is() -> None:
    chosen = choose_tokens(TINY, 5, encode=lambda text: [7] * len(text), text="aa")
    assert chosen.origin == "given text" and chosen.ids_S.tolist() == [7] * 5


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the given text is empty: give one with words"):
        choose_tokens(TINY, 5, encode=lambda text: [1, *text.encode()], text=text)


@pytest.mark.parametrize(
    ("ids", "count", "cautious"),
    [
        ([5], 64, True),
        ([1, 2, 3, 4, 5, 6, 7], 64, True),
        ([1, 2, 3, 4, 5, 6, 7, 8], 64, False),
        ([1, 2, 3, 4], 8, False),
        ([1, 2, 3], 8, True),
        ([1], 2, False),
        ([1], 1, False),
    ],
)
def test_few_different_tokens_are_told(ids: list[int], count: int, cautious: bool) -> None:
    said = choose_tokens(TINY, 2 * count, ids=ids).caution(count)
    assert bool(said) is cautious
    if cautious:
        assert said.startswith(f"only {len(ids)} different token") and f"among the {count} judged (given" in said


def test_of_a_long_text_no_more_is_tokenized_than_is_judged() -> None:
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return [ord(letter) % 90 for letter in text]

    tokens = choose_tokens(TINY, 256, encode=encode, text="some words, " * 3_000_000)
    assert tokens.ids_S.tolist() == [ord(letter) % 90 for letter in ("some words, " * 30)[:256]]
    assert max(lengths) < 10_000


def test_a_text_of_few_tokens_is_read_until_there_are_enough() -> None:
    """One id for each hundred letters."""
    tokens = choose_tokens(TINY, 300, encode=lambda text: list(range(len(text) // 100)), text="x" * 9_000)
    assert tokens.ids_S.tolist() == [*range(90)] * 3 + [*range(30)]


def test_a_tokenizer_that_gives_ids_beyond_the_vocabulary_is_another_models() -> None:
    with pytest.raises(UsageError, match=r"the tokenizer gives the id .*another model's"):
        choose_tokens(TINY, 8, encode=lambda text: [5, 10**6], text="words")
    with pytest.raises(UsageError, match="give ids from 0"):
        choose_tokens(TINY, 8, ids=[5, 10**6])
