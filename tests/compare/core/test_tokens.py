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
