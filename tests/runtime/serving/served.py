"""A small model behind the HTTP application, in this process, and what to ask it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from blockexport.runtime.decoder import Decoder
from blockexport.runtime.serving.http_app import HttpApp, HttpLimits
from blockexport.runtime.serving.prompts import Prompts
from blockexport.runtime.serving.scheduler import Scheduler
from blockexport.runtime.text.chat_turns import write_chat_turns

NAME = "stories"
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def with_template(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle that has a chat template: each message, and a space after it."""
    shutil.copytree(bundle, folder, copy_function=shutil.copy)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_chat_turns(folder)
    return folder


@contextmanager
def client_of(
    folder: Path,
    decoder: Decoder,
    limits: HttpLimits | None = None,
    *,
    rows: int = 4,
    queue_limit: int = 64,
    seconds: float | None = None,
    most_new_tokens: int | None = None,
) -> Iterator[TestClient]:
    """A client of an application that runs; its last requests are answered before it ends."""
    scheduler = Scheduler(decoder, rows, queue_limit=queue_limit)
    prompts = Prompts(folder, decoder, seconds, most_new_tokens)
    app = HttpApp(scheduler, prompts, NAME, limits or HttpLimits()).asgi()
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def chat(**more: Any) -> dict[str, Any]:
    """A small body for `/v1/chat/completions`."""
    return {"model": NAME, "messages": [{"role": "user", "content": "Once upon"}], "max_tokens": 4} | more


def completion(**more: Any) -> dict[str, Any]:
    """A small body for `/v1/completions`."""
    return {"model": NAME, "prompt": "Once upon", "max_tokens": 4, "temperature": 0} | more
