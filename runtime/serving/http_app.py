"""The HTTP side of a server: OpenAI's endpoints, `/health` and `/metrics`, by Starlette."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blockexport.models.wording import size
from blockexport.runtime.serving.answer_stream import AnswerStream, SchedulerThread
from blockexport.runtime.serving.metrics import CONTENT_TYPE
from blockexport.runtime.serving.openai_answer import Shape, error_body
from blockexport.runtime.serving.openai_body import BadRequest, ChatBody, CompletionBody, read_body
from blockexport.runtime.serving.prompts import Prompts
from blockexport.runtime.serving.request import End, Ending, NewToken
from blockexport.runtime.serving.scheduler import BusyError, ClosedError, Scheduler

RETRY_AFTER = "1"  # seconds
_STATUS = {Ending.TIMED_OUT: 504, Ending.FAILED: 500, Ending.CANCELLED: 503}
_SAID = {Ending.TIMED_OUT: "the time for one request is over", Ending.CANCELLED: "the server has shut down"}


@dataclass(frozen=True)
class HttpLimits:
    """What a client may ask of the server.

    Attributes:
        body_bytes: of a request.
        body_seconds: in which a request's body has to come.
        send_seconds: for which a client may not read before it is given up.
        api_key: that every request but `/health` has to have; None asks for none.
    """

    body_bytes: int = 1 << 20
    body_seconds: float = 30.0
    send_seconds: float = 60.0
    api_key: str | None = None


class HttpApp:
    """The endpoints of one model."""

    def __init__(self, scheduler: Scheduler, prompts: Prompts, name: str, limits: HttpLimits) -> None:
        self._scheduler, self._prompts, self._name, self._limits = scheduler, prompts, name, limits
        self._thread = SchedulerThread(scheduler)

    def asgi(self) -> Starlette:
        """The application."""
        post = {"/v1/chat/completions": ChatBody, "/v1/completions": CompletionBody}
        routes = [Route(path, partial(self._complete, kind), methods=["POST"]) for path, kind in post.items()]
        routes += [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
            BadRequest: _bad_request,
            BusyError: _busy,
            HTTPException: _http_error,
            Exception: _our_fault,
        }
        guard = Middleware(Guard, scheduler=self._scheduler, api_key=self._limits.api_key)
        return Starlette(routes=routes, exception_handlers=handlers, middleware=[guard], lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._thread.start()
        yield
        await asyncio.to_thread(self._thread.stop)

    async def _complete(self, kind: type[ChatBody] | type[CompletionBody], request: Request) -> Response:
        content = await self._content(request)
        body: ChatBody | CompletionBody = read_body(kind, content)
        if body.model != self._name:
            raise BadRequest(_no_model(body.model, self._name), "model", status=404, code="model_not_found")
        asked, text = await asyncio.to_thread(self._prompts.read, body)
        shape = Shape(kind is ChatBody, body.model, self._prompts.tokenizer.token_bytes, len(asked.prompt_ids))
        stream = AnswerStream(self._scheduler, asked, text)
        if body.stream:
            usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            return EventResponse(stream, _events(stream, shape, usage), self._limits.send_seconds)
        return await _whole(request, stream, shape)

    async def _content(self, request: Request) -> bytes:
        """The body of a request, within its limits."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise BadRequest(f"Content-Type is {kind!r}, and must be application/json", status=415)
        most, parts, length = self._limits.body_bytes, [], 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.stream():
                    length += len(part)
                    if length > most:
                        raise BadRequest(f"the body has more than {size(most)}: send a shorter one", status=413)
                    parts.append(part)
        except TimeoutError as error:
            message = f"the body did not come within {self._limits.body_seconds:g} s: send it faster"
            raise BadRequest(message, status=408) from error
        except ClientDisconnect as error:
            raise BadRequest("the connection was closed before the body was whole") from error
        return b"".join(parts)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_entry()]})

    async def _model(self, request: Request) -> Response:
        if request.path_params["name"] != self._name:
            message = _no_model(request.path_params["name"], self._name)
            raise BadRequest(message, "model", status=404, code="model_not_found")
        return JSONResponse(self._model_entry())

    def _model_entry(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": 0, "owned_by": "blockexport"}

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._scheduler.metrics_page(), media_type=CONTENT_TYPE)


class Guard:
    """Asks for the key, and counts responses."""

    def __init__(self, app: ASGIApp, scheduler: Scheduler, api_key: str | None) -> None:
        self._app, self._metrics, self._key = app, scheduler.metrics, api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responses[message["status"]] += 1
            await send(message)

        app = self._app if scope["path"] == "/health" or self._knows(Request(scope)) else _key_is_missing()
        await app(scope, receive, counted)

    def _knows(self, request: Request) -> bool:
        if self._key is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key.encode())


class EventResponse(StreamingResponse):
    """Server-sent events of an answer, which is given up when the client leaves, or reads nothing for a while."""

    def __init__(self, stream: AnswerStream, events: AsyncIterator[str], send_seconds: float) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._stream, self._send_seconds = stream, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.cancel()

    async def stream_response(self, send: Send) -> None:
        """See Starlette."""

        async def patient(message: Message) -> None:
            async with asyncio.timeout(self._send_seconds):
                await send(message)

        # uvicorn closes the connection of a response that is not whole.
        with contextlib.suppress(TimeoutError):
            await super().stream_response(patient)


async def _events(stream: AnswerStream, shape: Shape, usage: bool) -> AsyncIterator[str]:
    for chunk in shape.begin():
        yield _event(chunk)
    while True:
        events = await stream.next()
        tokens = [one for one in events if isinstance(one, NewToken)]
        end = events[-1] if isinstance(events[-1], End) else None
        text = "".join(one.text for one in tokens) + (end.text if end else "")
        if text or any(one.logprobs for one in tokens):
            yield _event(shape.piece(text, tokens))
        if end is not None:
            break
    if end.why in _STATUS:
        yield _event(_failure(end))
    else:
        yield _event(shape.finish(end.why))
        if usage:
            yield _event(shape.tally(end.new_tokens))
    yield "data: [DONE]\n\n"


async def _whole(request: Request, stream: AnswerStream, shape: Shape) -> Response:
    """The whole answer; given up where the client leaves before."""
    gone = asyncio.ensure_future(_left(request))
    tokens: list[NewToken] = []
    try:
        while True:
            coming = asyncio.ensure_future(stream.next())
            await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                coming.cancel()
                return Response(status_code=499)  # nginx's number; nobody reads it but the metrics
            events = coming.result()
            tokens += [one for one in events if isinstance(one, NewToken)]
            end = events[-1]
            if isinstance(end, End):
                break
    finally:
        gone.cancel()
        stream.cancel()
    if end.why in _STATUS:
        return JSONResponse(_failure(end), _STATUS[end.why])
    return JSONResponse(shape.whole("".join(one.text for one in tokens) + end.text, tokens, end.why))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _failure(end: End) -> dict[str, Any]:
    return error_body(
        end.message or _SAID.get(end.why, str(end.why)), "server_error", code=str(end.why).replace(" ", "_")
    )


def _no_model(asked: str, name: str) -> str:
    return f"there is no model {asked[:100]!r}: this server has {name!r}"


def _key_is_missing() -> Response:
    message = "no API key, or a wrong one: send the server's as Authorization: Bearer KEY"
    body = error_body(message, "invalid_request_error", code="invalid_api_key")
    return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    body = error_body(error.message, "invalid_request_error", error.param, error.code)
    # The rest of a body that was not read would be taken for the next request.
    return JSONResponse(body, error.status, {"Connection": "close"} if error.status in (408, 413, 415) else None)


async def _busy(request: Request, error: Exception) -> Response:
    status = 503 if isinstance(error, ClosedError) else 429
    return JSONResponse(error_body(str(error), "server_busy", code="busy"), status, {"Retry-After": RETRY_AFTER})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}"
    return JSONResponse(error_body(message, "invalid_request_error"), error.status_code, error.headers)


async def _our_fault(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body(f"a bug of the server's: {type(error).__name__}", "server_error"), 500)
