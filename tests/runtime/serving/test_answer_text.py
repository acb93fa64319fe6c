"""Stop strings: nothing of one is given, wherever the tokens cut it, and nothing else is lost."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

from blockexport.runtime.serving.answer_text import AnswerText
from blockexport.runtime.text.detokenize import StreamDecoder


class Spelled:
    """A stream whose tokens are given pieces of text."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self.pieces, self.rest = pieces, rest

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return self.rest


def told(pieces: list[str], stops: list[str], rest: str = "") -> tuple[str, bool]:
    text = AnswerText(cast(StreamDecoder, Spelled(pieces, rest)), stops)
    said = "".join(text.push(i) for i in range(len(pieces)))
    return said + text.flush(), text.stopped


@pytest.mark.parametrize("stops", [["ab"], ["aab"], ["bab", "c"], ["abaabb"], ["aa", "ba"], ["aabab", "b"]])
def test_every_cut_gives_the_text_before_the_first_stop(stops: list[str]) -> None:
    for letters in itertools.product("abc", repeat=5):
        whole = "".join(letters)
        found = [whole.find(stop) for stop in stops if stop in whole]
        for cut in range(6):
            said, stopped = told([whole[:cut], *whole[cut:]], stops)
            if stopped:
                assert any(whole[len(said) :].startswith(stop) for stop in stops), (whole, stops, said)
            assert stopped == bool(found)
            assert stopped or said == whole


def test_what_may_begin_a_stop_is_held_back_and_given_at_the_end() -> None:
    text = AnswerText(cast(StreamDecoder, Spelled(["x###", "#", " y#"])), ["###\n"])
    assert [text.push(i) for i in range(3)] == ["x", "#", "### y"]
    assert text.flush() == "#"


def test_a_stop_in_what_was_left_of_a_character_counts() -> None:
    assert told(["ab"], ["b\ufffd"], "\ufffd") == ("a", True)
