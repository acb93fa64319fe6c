"""Judging a bundle by what its files hold alone, and spoiling those files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.figures import Figures
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.judged_bundle import bundle_options
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.element_types import BY_SAFETENSORS
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.stored_codes import Change, on_its_own, place_of

Measured = TypeVar("Measured", bound=Figures)


def judged(folder: Path, checkpoint: Checkpoint, name: str, backend: str = "replay") -> CheckResult:
    """The result of the check `name`; the replay, since it opens every precision."""
    options = replace(bundle_options(folder, backend, JudgeOptions(checks=(name,))), explain=None)
    (result,) = judge(open_decoder(folder, backend, verify="nothing"), checkpoint, options).checks
    return result


def figures_of(result: CheckResult, kind: type[Measured]) -> Measured:
    """What a check measured, which has to be of that kind."""
    assert isinstance(result.figures, kind)
    return result.figures


def spoilt(bundle: Path, folder: Path, file: str, changes: dict[str, Change]) -> Path:
    """A copy of a bundle with tensors of a safetensors file changed in place, type and shape kept.

    A quantised matrix that lies side by side with others is changed by its own name, as if it were by itself.
    """
    shutil.copytree(bundle, folder)
    path = folder / file
    header = read_header(path)
    data = bytearray(path.read_bytes())
    for part, change in changes.items():
        name = part
        if part not in header:
            own, _, what = part.rpartition(".")
            whole, outputs = place_of(bundle, own, header)
            name, change = f"{whole}.{what}", on_its_own(bundle, part, change, outputs)
        at = header[name]
        dtype = BY_SAFETENSORS[at.dtype].torch_dtype
        before = torch.frombuffer(data[at.offset : at.offset + at.length], dtype=dtype).view(at.shape)
        after = change(before.clone()).to(before.dtype).contiguous()
        assert after.numel() == before.numel()
        data[at.offset : at.offset + at.length] = after.flatten().view(torch.uint8).numpy().tobytes()
    path.write_bytes(data)
    return folder
