"""A chat template turns messages into the prompt a model was trained on.

It is a program of a stranger's, so it is rendered in a process of its own (`template_worker`) with a limit of time,
memory and length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, read_text
from blockexport.runtime.text.bounded_process import Bounds, OutOfBounds, run_bounded

Message = Mapping[str, Any]

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_BOUNDS = Bounds(cpu_seconds=2, memory_bytes=512 << 20)
PROMPT_CHARACTERS = 1 << 22  # of a prompt beyond its messages: the longest contexts are as long

_WORKER = "blockexport.runtime.text.template_worker"


def find_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The bundle's chat template: chat_template.jinja, else the entry of tokenizer_config.json; None without one.

    Raises:
        UsageError: several named templates and none called `default`, or an entry of another type.
    """
    path = folder / TEMPLATE_FILE
    if is_there(path):
        return read_text(path)
    entry = tokenizer_config.get("chat_template")
    if entry is None or isinstance(entry, str):
        return entry
    try:
        named = {item["name"]: item["template"] for item in entry}
    except (TypeError, KeyError):
        named = {None: None}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise UsageError(
            "chat_template in tokenizer_config.json must be text or a list of {name, template}: fix it, or remove it "
            "to go without"
        )
    if "default" not in named:
        raise UsageError(
            f"the chat templates are called {', '.join(named)} and none is the default: put the one you want "
            f"into {path}"
        )
    return str(named["default"])


def render_chat(template: str, messages: Sequence[Message], special_tokens: Mapping[str, str]) -> str:
    """The prompt for `messages`, each a mapping with `role` and `content`, with the opening of the assistant's turn.

    Args:
        template: the Jinja source.
        messages: the conversation so far.
        special_tokens: `bos_token`, `eos_token` and so on, as text; the template writes them itself.

    Raises:
        UsageError: the template is broken, refuses the messages, tries to leave the sandbox, or exceeds its limits.
    """
    (answer,) = render_chats(template, [messages], special_tokens)
    if isinstance(answer, UsageError):
        raise answer
    return answer


def render_chats(
    template: str, conversations: Sequence[Sequence[Message]], special_tokens: Mapping[str, str]
) -> list[str | UsageError]:
    """The prompt for each conversation, or why there is none; the limits are for all of them together."""
    given = sum(len(str(message)) for messages in conversations for message in messages)
    request = {
        "template": template,
        "conversations": [[dict(message) for message in messages] for messages in conversations],
        "special_tokens": dict(special_tokens),
        "characters": PROMPT_CHARACTERS + 2 * given,
    }
    try:
        answers: list[dict[str, str]] = run_bounded(_WORKER, request, TEMPLATE_BOUNDS)
    except OutOfBounds as error:
        answers = [{"error": str(error)}] * len(conversations)
    return [a["text"] if "text" in a else _failure(a["error"]) for a in answers]


def _failure(reason: str) -> UsageError:
    shown = reason if len(reason) <= 300 else f"{reason[:297]}..."
    return UsageError(f"the chat template failed: {shown.rstrip('.')}. Use --raw to send the prompt as it is")
