"""A bundle behind HTTP, by uvicorn: the socket, the limits on connections, and the end."""

from __future__ import annotations

import contextlib
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from blockexport.models.errors import UsageError
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.serving.http_app import HttpApp, HttpLimits
from blockexport.runtime.serving.openai_answer import error_body_bytes
from blockexport.runtime.serving.prompts import Prompts
from blockexport.runtime.serving.scheduler import Scheduler

HEADER_BYTES = 1 << 14  # of a request's first line and headers
KEEP_ALIVE = 15  # seconds for which a connection without a request stays open


@dataclass(frozen=True)
class ServerOptions:
    """How a bundle is served.

    Attributes:
        host: the address to listen on.
        port: 0 takes a free one.
        name: what clients call the model; the bundle's folder by default.
        rows: answers at once.
        queue_limit: requests that may wait for a row.
        most_new_tokens: of any answer; None goes on to the last cache slot.
        seconds: for one request, waiting included; None sets no limit.
        connections: open at once.
        drain_seconds: after SIGTERM, for what has begun to end.
        http: what a client may ask.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    rows: int = 8
    queue_limit: int = 64
    most_new_tokens: int | None = None
    seconds: float | None = 600.0
    connections: int = 512
    drain_seconds: int = 60
    http: HttpLimits = field(default_factory=HttpLimits)


def serve(folder: Path, decoder: Decoder, options: ServerOptions, ready: Callable[[str], None]) -> None:
    """Serve a bundle until SIGTERM or SIGINT, and then until the answers that have begun are whole.

    Args:
        folder: the bundle, for its tokenizer.
        decoder: its decoder, whose cache gets the rows.
        options: see there.
        ready: told the address, `http://HOST:PORT`, from which on connections are taken.

    Raises:
        UsageError: no tokenizer, an address that cannot be listened on, more rows than an engine takes.
        NotJudgedError: the cache of so many rows would be larger than this machine's memory.
    """
    app = application(folder, decoder, options)
    with _listening(options.host, options.port) as listener:
        config = uvicorn.Config(
            app,
            http=_limited(options.connections),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=options.drain_seconds,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        ready(_address(listener))
        _Server(config).run(sockets=[listener])


def application(folder: Path, decoder: Decoder, options: ServerOptions) -> Starlette:
    """The endpoints of a bundle's model, with a scheduler that runs while they do; see `serve`."""
    prompts = Prompts(folder, decoder, options.seconds, options.most_new_tokens)
    scheduler = Scheduler(decoder, options.rows, queue_limit=options.queue_limit)
    return HttpApp(scheduler, prompts, options.name or folder.resolve().name, options.http).asgi()


def free_address(host: str, port: int) -> tuple[str, int]:
    """An address that can be listened on, for a server that makes its own socket.

    Raises:
        UsageError: it cannot.
    """
    with _listening(host, port) as listener:
        return listener.getsockname()[0], listener.getsockname()[1]


class _Server(uvicorn.Server):
    """uvicorn's, which would raise the signals that ended it once more when all is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{host} port {port} cannot be listened on ({said}): choose another --port or --host"
        ) from error
    with listener:
        yield listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _limited(most: int) -> type[H11Protocol]:
    """uvicorn's protocol for at most `most` connections, none of which may be silent for long."""
    body = error_body_bytes(f"{most} connections are open, and no more may be: try again later")
    refusal = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body

    class Limited(H11Protocol):
        _look: TimerHandle | None = None
        _idle_after: Any = None
        _refused = False

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            if len(self.connections) >= most:
                self._refused = True
                transport.write(refusal)
                transport.close()
                return
            super().connection_made(transport)
            self._look = self.loop.call_later(KEEP_ALIVE, self._end_if_silent)

        def data_received(self, data: bytes) -> None:
            if not self._refused:
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._look is not None:
                self._look.cancel()
            if not self._refused:
                super().connection_lost(exc)

        def _end_if_silent(self) -> None:
            """A request that is never whole begins no cycle; uvicorn itself waits for it for ever."""
            if self.transport.is_closing():  # since the last look: what is left to send, nobody reads
                self.transport.abort()
                return
            cycle: Any = self.cycle  # None before the first request, whatever uvicorn's annotation says
            idle = cycle is None or cycle.response_complete
            if idle and self._idle_after is cycle:  # so it was at the last look, and nothing has begun since
                self.transport.close()
            self._idle_after = cycle if idle else self
            self._look = self.loop.call_later(KEEP_ALIVE, self._end_if_silent)

    return Limited
