"""Run a bundle on ONNX Runtime's CUDA provider over stub libraries, in a process of its own, with its log on stderr.

    python -m tests.cuda_stub_run BUNDLE BACKEND

Values mean nothing there, and are not looked at. PyTorch need not know of a GPU: with the stubs its host memory is
what the provider takes for the GPU's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from blockexport.models.checkpoints.checkpoint import Checkpoint
from tests.exported import random_model


def stub_model() -> Checkpoint:
    """What is run there: heads that Flash takes, and no window."""
    return random_model(head_dim=16, sliding_window=None, layer_types=())


def main(bundle: Path, backend: str) -> None:
    """A prompt, steps over two growths, another prompt, and other rows; then what `compare` says of the placement."""
    from blockexport.compare.judge import JudgeOptions
    from blockexport.compare.judged_bundle import judge_bundle
    from blockexport.runtime import onnx_decoder
    from blockexport.runtime.compute_device import ComputeDevice
    from blockexport.runtime.onnx_cuda_decoder import CudaOnnxDecoder
    from blockexport.runtime.onnx_session import ort, session_options
    from blockexport.runtime.open import open_decoder

    ort.set_default_logger_severity(0)
    ort.set_default_logger_verbosity(1)

    def verbose(threads: int = 0) -> ort.SessionOptions:
        options = session_options(threads)
        options.log_severity_level, options.log_verbosity_level = 0, 1
        return options

    vars(onnx_decoder)["session_options"] = verbose
    ComputeDevice._require = lambda self: None  # type: ignore[method-assign]
    ComputeDevice.torch = property(lambda self: torch.device("cpu"))  # type: ignore[assignment, method-assign]
    decoder = open_decoder(bundle, backend, device="cuda", threads=1, first_slots=8)
    tokens = torch.ones(1, 5, dtype=torch.int64)
    for rows in (1, 1, 3):
        decoder.reset(rows)
        decoder.prefill(tokens.expand(rows, -1))
        for _ in range(15):
            decoder.step(tokens[:, :1].expand(rows, -1))
    assert isinstance(decoder, CudaOnnxDecoder)
    graphs = sorted(int(step.graph) for step in decoder._steps.values())
    sys.stdout.write(f"graphs {graphs} {decoder._records}\nslots {decoder.held(0)[0].shape[2]}\n")
    ort.set_default_logger_severity(2)
    vars(onnx_decoder)["session_options"] = session_options
    asked = JudgeOptions(checks=("placement",))
    (result,) = judge_bundle(bundle, asked, backend=backend, made_of=stub_model(), device="cuda").report.checks
    sys.stdout.write(f"{result.verdict}: {result.message}\n")
    sys.stdout.flush()
    os._exit(0)  # the provider's clean-up asks the libraries for more than there is in them


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
