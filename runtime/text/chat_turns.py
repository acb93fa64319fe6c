"""`chat_turns.json`: a chat template as the fixed text around each turn, for programs that have no Jinja.

Most templates only put a frame around the messages. The frame is found by rendering the template with marked messages,
and kept only if it gives the template's own text for other conversations too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, read_json_object
from blockexport.models.strict_json import read_record
from blockexport.runtime.text.bundle_tokenizer import chat_template_of
from blockexport.runtime.text.chat_template import Message, render_chats

CHAT_TURNS_FILE = "chat_turns.json"
_THOUGHT = "</think>"
# What shows where a template puts its texts, and what it does to them.
_MARKS = ["first-mark", "second-mark", "third-mark"]
_SYSTEM_MARK = "system-mark"
_SPACED = "\tspaced\t"
_THINKING = ["a", f"thought-mark{_THOUGHT}\n\nb", "c"]
# What a frame that was found is tried on.
_TRIALS = [
    "What is 2 + 2?",
    "Four.\nOr so\n",
    " \tindented\n\ntwice ",
    f"<think>\nhm{_THOUGHT}\n\n so",
    f"<|x|> {{{{ y }}}} {_THOUGHT} é",
    "",
    "b",
]
_TRIAL_SYSTEMS = ("Be brief.", " spaced\n")
_TRIAL_LENGTHS = (1, 3, 5, 7)

Render = Callable[[Sequence[Message]], str]


@dataclass(frozen=True)
class ChatTurns:
    """The frame of a conversation that ends with the user and waits for the assistant.

    `before` text `answered` text `next` text `answer`: `answered` leads to an answer that is there, `answer` to the one
    that is asked for. A system message at the start takes the place of `before` with
    `system[0]` text `system[1]`. `trim` says that white space around each text is dropped, `drop_thinking` that of an
    earlier answer only what stands after `</think>` is shown, without newlines in front.
    """

    before: str
    answer: str
    answered: str
    next: str
    system: tuple[str, str] | None
    trim: bool
    drop_thinking: bool

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether `messages` are a conversation that `render` takes."""
        roles = [message["role"] for message in messages]
        if roles[:1] == ["system"] and self.system is not None:
            roles = roles[1:]
        return len(roles) % 2 == 1 and all(role == ("assistant" if i % 2 else "user") for i, role in enumerate(roles))

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt for `messages`: an optional system message, then user and assistant in turns, the user last."""
        texts = [self._shown(str(m["content"]), m["role"] == "assistant") for m in messages]
        if messages[0]["role"] == "system":
            assert self.system is not None
            start, texts = self.system[0] + texts[0] + self.system[1], texts[1:]
        else:
            start = self.before
        turns = [text + (self.next if i % 2 else self.answered) for i, text in enumerate(texts[:-1])]
        return start + "".join(turns) + texts[-1] + self.answer

    def _shown(self, text: str, answered: bool) -> str:
        if answered and self.drop_thinking:
            text = text.split(_THOUGHT)[-1].lstrip("\n")
        return text.strip() if self.trim else text


def chat_turns_of(render: Render) -> ChatTurns | None:
    """The frame that `render`, a chat template, puts around messages; None where there is no such frame."""
    try:
        turns = _measure(render, with_system=True) or _measure(render, with_system=False)
        return turns if turns is not None and _holds(turns, render) else None
    except (UsageError, ValueError):
        return None


def read_chat_turns(folder: Path) -> ChatTurns | None:
    """The frame in a bundle's folder; None where it has none.

    Raises:
        UsageError: the file is damaged.
    """
    path = folder / CHAT_TURNS_FILE
    if not is_there(path):
        return None
    try:
        return read_record(ChatTurns, read_json_object(path, "export the bundle again"), "")
    except ValueError as error:
        raise UsageError(f"{path}: {error}: export the bundle again") from error


def write_chat_turns(folder: Path, note: Callable[[str], None] = lambda message: None) -> list[str]:
    """Write the file into a bundle's folder; returns its name, or nothing where the bundle has no such frame.

    A template that asks for the date has none: what it writes would be the day of the export. One that fails on the
    simplest conversation is told to `note`: the bundle is good for raw prompts.
    """
    if not (folder / "tokenizer.json").is_file():
        return []
    template, special_tokens = chat_template_of(folder)
    if template is None:
        return []
    probes = _probes()
    prompts = render_chats(template, probes, special_tokens)
    if isinstance(prompts[0], UsageError):
        note(str(prompts[0]))
    if "strftime_now" in template:
        return []
    known = {json.dumps(messages): prompt for messages, prompt in zip(probes, prompts, strict=True)}
    turns = chat_turns_of(lambda messages: _known(known, messages))
    if turns is None:
        return []
    text = json.dumps(asdict(turns), ensure_ascii=False, indent=2) + "\n"
    (folder / CHAT_TURNS_FILE).write_text(text, encoding="utf-8")
    return [CHAT_TURNS_FILE]


def _known(prompts: Mapping[str, str | UsageError], messages: Sequence[Message]) -> str:
    prompt = prompts[json.dumps(messages)]
    if isinstance(prompt, UsageError):
        raise prompt
    return prompt


def _probes() -> list[list[Message]]:
    """Every conversation that the search for a frame may ask for, the simplest first."""
    asked = [_conversation(["hello"]), _conversation(_MARKS), _conversation(_MARKS, _SYSTEM_MARK)]
    asked += [_conversation([_SPACED]), _conversation(_THINKING)]
    return asked + [
        _conversation(_TRIALS[:length], system) for system in (None, *_TRIAL_SYSTEMS) for length in _TRIAL_LENGTHS
    ]


def _conversation(texts: Sequence[str], system: str | None = None) -> list[Message]:
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return start + [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


def _measure(render: Render, *, with_system: bool) -> ChatTurns | None:
    before, rest = _cut(render(_conversation(_MARKS)), _MARKS[0])
    answered, rest = _cut(rest, _MARKS[1])
    following, answer = _cut(rest, _MARKS[2])
    trim = _SPACED not in render(_conversation([_SPACED]))
    drop_thinking = "thought-mark" not in render(_conversation(_THINKING))
    system = None
    if with_system:
        try:
            start, rest = _cut(render(_conversation(_MARKS, _SYSTEM_MARK)), _SYSTEM_MARK)
        except (UsageError, ValueError):
            return None
        system = (start, _cut(rest, _MARKS[0])[0])
    return ChatTurns(before, answer, answered, following, system, trim, drop_thinking)


def _cut(text: str, mark: str) -> tuple[str, str]:
    """What is before and after `mark`; ValueError unless it is there once."""
    before, after = text.split(mark)
    return before, after


def _holds(turns: ChatTurns, render: Render) -> bool:
    """Whether the frame gives what the template gives, for conversations that could show that it is no frame."""
    systems = [None] if turns.system is None else [None, *_TRIAL_SYSTEMS]
    return all(
        turns.render(conversation) == render(conversation)
        for system in systems
        for length in _TRIAL_LENGTHS
        for conversation in [_conversation(_TRIALS[:length], system)]
    )
