"""A chat template turns messages into the prompt a model was trained on.

Templates are Jinja programs that come with a checkpoint, so they run in a sandbox that can neither change what it is
given nor reach beyond it. The environment is the one transformers gives them (utils/chat_template_utils.py):
trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves characters alone,
and `{% generation %}` blocks, which are printed as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import is_there, read_text

Message = Mapping[str, Any]

TEMPLATE_FILE = "chat_template.jinja"


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
    except (TypeError, KeyError) as error:
        raise UsageError(
            "chat_template in tokenizer_config.json must be text or a list of {name, template}: use --raw to go without"
        ) from error
    if "default" not in named:
        raise UsageError(
            f"the chat templates are called {', '.join(named)} and none is the default: use --raw, or put the one you "
            f"want into {path}"
        )
    return str(named["default"])


def render_chat(
    template: str, messages: Sequence[Message], special_tokens: Mapping[str, str], *, add_generation_prompt: bool = True
) -> str:
    """The prompt for `messages`, each a mapping with `role` and `content`.

    Args:
        template: the Jinja source.
        messages: the conversation so far.
        special_tokens: `bos_token`, `eos_token` and so on, as text; the template writes them itself.
        add_generation_prompt: end with the opening of the assistant's turn.

    Raises:
        UsageError: the template is broken, refuses the messages, or tries to leave the sandbox.
    """
    try:
        return (
            _environment()
            .from_string(template)
            .render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **special_tokens,
            )
        )
    except jinja2.TemplateError as error:
        raise UsageError(f"the chat template failed: {error}. Use --raw to send the prompt as it is") from error
    # A template is a program of someone else's: whatever it raises is its failure, not ours.
    except Exception as error:
        raise UsageError(
            f"the chat template failed with {type(error).__name__}: {error}. Use --raw to send the prompt as it is"
        ) from error


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; here it only prints them."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _strftime_now}
    environment.globals.update(functions)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
