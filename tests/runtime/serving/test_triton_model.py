"""Triton's side of the text model, with a stand-in for its module: what `test_triton.py` holds against the server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockexport.export.triton_repository import write_repository
from blockexport.runtime.serving.triton_model import TritonPythonModel
from tests.runtime.serving.test_triton_repository import asked_for

FINAL = 1


class Sender:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.cancelled = self.ended = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        assert not self.ended, "nothing may come after the last response"
        self.told.append(response)
        self.ended = flags == FINAL

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self) -> list[Any]:
        end = time.monotonic() + 60
        while not self.ended and time.monotonic() < end:
            time.sleep(0.002)
        assert self.ended
        return self.told


class Error:
    INVALID_ARG, UNAVAILABLE, INTERNAL, CANCELLED = range(4)

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


def response(output_tensors: list[Any], error: Error | None = None) -> SimpleNamespace:
    values = {name: value[0].decode() for name, value in output_tensors}
    return SimpleNamespace(error=error, **values)


class Request:
    def __init__(self, **inputs: object) -> None:
        self.sender, self.inputs = Sender(), inputs

    def get_response_sender(self) -> Sender:
        return self.sender


def tensor_of(request: Request, name: str) -> Any:
    if name not in request.inputs:
        return None
    return SimpleNamespace(as_numpy=lambda: np.array([request.inputs[name]], dtype=object))


@pytest.fixture(scope="module")
def model(judged_stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonPythonModel]:
    utilities = SimpleNamespace(
        get_input_tensor_by_name=tensor_of,
        Tensor=lambda name, value: (name, value),
        InferenceResponse=response,
        TritonError=Error,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
    )
    repository = tmp_path_factory.mktemp("models")
    (folder, *_) = write_repository(judged_stories, repository, asked_for(rows=1, queue=1))
    parameters = {
        name: {"string_value": value} for name, value in (("rows", "1"), ("queue", "1"), ("backend", "onnxruntime"))
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", utilities)
        made = TritonPythonModel()
        config = json.dumps({"parameters": parameters})
        made.initialize({"model_config": config, "model_repository": str(folder), "model_version": "1"})
        yield made
        made.finalize()


def answered(model: TritonPythonModel, **inputs: object) -> list[Any]:
    request = Request(**inputs)
    model.execute([request])
    return request.sender.wait()


def parameters(**values: object) -> bytes:
    return json.dumps({"max_tokens": 12, "temperature": 0, **values}).encode()


def test_pieces_and_the_whole(model: TritonPythonModel) -> None:
    pieces = answered(model, text_input=b"Once upon", sampling_parameters=parameters(), stream=True)
    (whole,) = answered(model, text_input=b"Once upon", sampling_parameters=parameters())
    assert len(pieces) > 5 and "".join(one.text_output for one in pieces) == whole.text_output
    assert [one.finish_reason for one in pieces] == [""] * (len(pieces) - 1) + ["length"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "text_input is missing"),
        ({"text_input": b"\xff"}, "text_input is not UTF-8: invalid start byte at byte 0"),
        ({"text_input": b"a", "sampling_parameters": b"{"}, "sampling_parameters is not JSON"),
        ({"text_input": b"a", "sampling_parameters": b"[]"}, "sampling_parameters must be an object"),
        ({"text_input": b"a", "sampling_parameters": b'{"n": 2}'}, "n is 2"),
        ({"text_input": b"a", "sampling_parameters": b'{"seeds": 2}'}, "seeds"),
        ({"text_input": b"a", "chat": True}, "template"),
    ],
)
def test_wrong_requests(model: TritonPythonModel, inputs: dict[str, object], message: str) -> None:
    (only,) = answered(model, **inputs)
    assert only.error.code == Error.INVALID_ARG and message in only.error.message


def test_a_full_queue_and_a_client_that_leaves(model: TritonPythonModel) -> None:
    requests = [Request(text_input=b"Once", sampling_parameters=parameters(max_tokens=500)) for _ in range(3)]
    model.execute(requests)
    (refused,) = requests[2].sender.wait()
    assert refused.error.code == Error.UNAVAILABLE and "try again later" in refused.error.message
    assert len(model._answers._live) == 2, "what was refused is not looked after"
    for request in requests[:2]:
        request.sender.cancelled = True
    for request in requests[:2]:
        assert request.sender.wait()[-1].error.code == Error.CANCELLED
    assert answered(model, text_input=b"Once", sampling_parameters=parameters())[-1].finish_reason == "length"


def test_a_response_that_cannot_be_sent_stops_no_other(model: TritonPythonModel) -> None:
    broken = Request(text_input=b"Once", sampling_parameters=parameters(), stream=True)
    broken.sender.ended = True  # so that it takes nothing
    model.execute([broken])
    assert answered(model, text_input=b"Once", sampling_parameters=parameters())[-1].finish_reason == "length"
