"""Chat templates rendered: the work of a process of its own, which `bounded_process` starts.

Templates are Jinja programs that come with a checkpoint, so they run in a sandbox that can neither change what it is
given nor reach beyond it. The environment is the one transformers gives them (utils/chat_template_utils.py):
trim_blocks, lstrip_blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves characters alone,
and `{% generation %}` blocks, which are printed as they are.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blockexport.runtime.text.bounded_process import serve


def render_all(request: Any) -> list[dict[str, str]]:
    """Each conversation of `request` as `{"text": prompt}` or `{"error": why not}`."""
    answers: list[dict[str, str]] = []
    room = request["characters"]
    for messages in request["conversations"]:
        try:
            text = _render(request["template"], messages, request["special_tokens"])
            if len(text) > room:
                raise ValueError(f"its prompt has {len(text)} characters, and {request['characters']} are the most")
            text.encode("utf-8")  # a template may hold half of a character, as \\ud800
            room -= len(text)
            answers.append({"text": text})
        except jinja2.TemplateError as error:
            answers.append({"error": str(error)})
        except MemoryError:
            raise
        # A template is a program of someone else's: whatever it raises is its failure, not ours.
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    return answers


def _render(template: str, messages: Any, special_tokens: dict[str, str]) -> str:
    return (
        _environment()
        .from_string(template)
        .render(messages=messages, tools=None, documents=None, add_generation_prompt=True, **special_tokens)
    )


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
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
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


if __name__ == "__main__":
    serve(render_all)
