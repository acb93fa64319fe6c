"""The tokens a judgement uses must tell positions apart."""

from __future__ import annotations

from blockexport.compare.tokens import choose_tokens
from tests.compare.memory_checkpoint import TINY


def test_a_tokenizer_that_makes_one_token_of_everything_is_left_aside() -> None:
    blind = choose_tokens(TINY, 50, encode=lambda text: [1] + [0] * len(text))
    assert blind.origin == "random ids, seed 0" and len(set(blind.ids_S.tolist())) > 20
    seeing = choose_tokens(TINY, 50, encode=lambda text: [ord(character) % 101 for character in text])
    assert seeing.origin.startswith("built-in passage")


def test_a_given_text_is_used_as_it_is() -> None:
    chosen = choose_tokens(TINY, 5, encode=lambda text: [7] * len(text), text="aa")
    assert chosen.origin == "given text" and chosen.ids_S.tolist() == [7] * 5
