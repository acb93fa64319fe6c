"""A bundle in Triton Inference Server's Python backend: its scheduler, with answers as streams of responses.

`blockexport triton` writes a model repository whose `model.py` is this class. Inputs and outputs have the names that
Triton's vLLM backend gives them, and the parameters those of OpenAI's interface. Source: the README of
github.com/triton-inference-server/python_backend.
"""

from __future__ import annotations

import importlib
import json
import logging
import queue
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blockexport.models.errors import BlockexportError
from blockexport.runtime.open import open_decoder
from blockexport.runtime.serving.answer_stream import SchedulerThread
from blockexport.runtime.serving.openai_body import BadRequest, ChatBody, CompletionBody, read_body
from blockexport.runtime.serving.prompts import Prompts
from blockexport.runtime.serving.request import End, Ending, NewToken
from blockexport.runtime.serving.scheduler import BusyError, Scheduler
from blockexport.runtime.serving.ticket import Ticket
from blockexport.runtime.threads import use_threads

BUNDLE = "bundle"
"""Where a version's folder has the bundle."""
ROWS, QUEUE, BACKEND = "rows", "queue", "backend"
"""Parameters of `config.pbtxt`."""
TEXT, PARAMETERS, STREAM, CHAT = "text_input", "sampling_parameters", "stream", "chat"
OUTPUT, REASON = "text_output", "finish_reason"
_log = logging.getLogger(__name__)
_LOOK = 0.05  # seconds between two looks for clients that have left


class TritonPythonModel:
    """What the Python backend makes one of and calls; decoupled, so that a request has as many responses as it needs.

    Requests come on the backend's thread and are handed to the scheduler, which has one of its own. A third sends what
    that tells, so that a turn never waits for a client.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle. An error here is what Triton says of a model that is not ready."""
        self._triton = importlib.import_module("triton_python_backend_utils")
        given = {name: one["string_value"] for name, one in json.loads(args["model_config"])["parameters"].items()}
        folder = Path(args["model_repository"], args["model_version"], BUNDLE)
        use_threads(None)
        decoder = open_decoder(folder, given[BACKEND])
        self._prompts = Prompts(folder, decoder, None, None)
        self._scheduler = Scheduler(decoder, int(given[ROWS]), queue_limit=int(given[QUEUE]))
        self._turns = SchedulerThread(self._scheduler)
        self._turns.start()
        self._answers = _Answers(self._triton)

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand requests in; what is wrong with one is the error of its only response."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                stream, body = self._read(request)
                asked, text = self._prompts.read(body)
                listener = self._answers.listener(sender, stream=stream)
                listener.ticket = self._scheduler.submit(asked, listener.tell, text)
            except BusyError as error:
                self._answers.refuse(sender, str(error), "UNAVAILABLE")
            except (BadRequest, BlockexportError) as error:
                self._answers.refuse(sender, str(error), "INVALID_ARG")

    def finalize(self) -> None:
        """Give up what has not ended, and stop."""
        self._turns.stop()
        self._answers.stop()

    def _read(self, request: Any) -> tuple[bool, ChatBody | CompletionBody]:
        """Whether pieces are wanted, and the request in OpenAI's form."""
        prompt, given = self._text(request, TEXT), self._text(request, PARAMETERS)
        try:
            parameters = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{PARAMETERS} is not JSON ({error}): send one object") from error
        if not isinstance(parameters, dict) or {"messages", "prompt", "model", "stream"} & parameters.keys():
            raise BadRequest(f"{PARAMETERS} must be an object, without messages, prompt, model and stream")
        if prompt is None:
            raise BadRequest(f"{TEXT} is missing")
        asked: dict[str, Any] = {"model": "", **parameters}
        if self._flag(request, CHAT):
            chat = {**asked, "messages": [{"role": "user", "content": prompt}]}
            return self._flag(request, STREAM), read_body(ChatBody, json.dumps(chat).encode())
        return self._flag(request, STREAM), read_body(CompletionBody, json.dumps({**asked, "prompt": prompt}).encode())

    def _text(self, request: Any, name: str) -> str | None:
        tensor = self._triton.get_input_tensor_by_name(request, name)
        if tensor is None:
            return None
        try:
            return str(tensor.as_numpy().reshape(-1)[0].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise BadRequest(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from error

    def _flag(self, request: Any, name: str) -> bool:
        tensor = self._triton.get_input_tensor_by_name(request, name)
        return tensor is not None and bool(tensor.as_numpy().reshape(-1)[0])


class _Listener:
    """One answer on its way to one client: piece by piece, or whole at its end."""

    def __init__(self, answers: _Answers, sender: Any, *, stream: bool) -> None:
        self.sender = sender
        self.ticket: Ticket | None = None  # until it is handed in
        self._answers, self._stream, self._held = answers, stream, ""

    def tell(self, event: NewToken | End) -> None:
        """See `Listener`; on the scheduler's thread."""
        self._held += event.text
        if isinstance(event, End):
            self._answers.hand_over(partial(self._answers.finish, self, self._held, event))
        elif self._stream and self._held:
            self._answers.hand_over(partial(self._answers.piece, self, self._held))
            self._held = ""


class _Answers:
    """Sends responses on a thread of its own, and gives up the requests of clients that have left."""

    def __init__(self, triton: Any) -> None:
        self._triton = triton
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._live: set[_Listener] = set()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def listener(self, sender: Any, *, stream: bool) -> _Listener:
        """Of a request that is about to be handed in."""
        made = _Listener(self, sender, stream=stream)
        self._work.put(partial(self._live.add, made))
        return made

    def hand_over(self, work: Any) -> None:
        """Have something sent, after what was handed over before."""
        self._work.put(work)

    def refuse(self, sender: Any, message: str, code: str) -> None:
        """Answer with an error alone; the codes are those of `TritonError`."""
        self._work.put(partial(self._refuse, sender, message, code))

    def stop(self) -> None:
        """Send what is left, and end."""
        self._work.put(None)
        self._thread.join()

    def piece(self, of: _Listener, text: str) -> None:
        """Send a part of an answer."""
        of.sender.send(self._response(text, ""))

    def finish(self, of: _Listener, text: str, end: End) -> None:
        """Send the last part, or why there is none."""
        self._live.discard(of)
        if end.why is Ending.FAILED:
            self._refuse(of.sender, end.message, "INTERNAL")
        elif end.why is Ending.CANCELLED:
            self._refuse(of.sender, "the request was cancelled", "CANCELLED")
        else:
            of.sender.send(self._response(text, str(end.why)), flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _refuse(self, sender: Any, message: str, code: str) -> None:
        self._live = {one for one in self._live if one.sender is not sender}  # where it was not handed in
        error = self._triton.TritonError(message, getattr(self._triton.TritonError, code))
        response = self._triton.InferenceResponse(output_tensors=[], error=error)
        sender.send(response, flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, text: str, reason: str) -> Any:
        values = {OUTPUT: text, REASON: reason}
        return self._triton.InferenceResponse(
            output_tensors=[
                self._triton.Tensor(name, np.array([value.encode()], dtype=np.object_))
                for name, value in values.items()
            ]
        )

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                work = self._work.get(timeout=_LOOK)
            except queue.Empty:
                work = _nothing
            if work is None:
                return
            try:
                work()
            except Exception:  # one client's response could not be sent: the others' answers go on
                _log.exception("a response could not be sent")
            if time.monotonic() - looked > _LOOK:
                for one in self._live:
                    if one.ticket is not None and one.sender.is_cancelled():
                        one.ticket.cancel()
                looked = time.monotonic()


def _nothing() -> None:
    """Nobody has anything to send."""
