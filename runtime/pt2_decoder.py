"""A bundle's `model.pt2` behind the Decoder interface, run by PyTorch from the file alone."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch.export.passes import move_to_device_pass

from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.file_check import check_artifact
from blockexport.export.bundle.manifest import PT2_FILE, Manifest
from blockexport.models.block.rope import require_table_rows
from blockexport.models.errors import UsageError
from blockexport.models.interface import Port
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder

_REMEDY = "Copy the whole bundle again, or export it again with --pt2"


class Pt2Decoder(Decoder):
    """The exported program of a bundle. It is pure: each run hands back new caches."""

    def __init__(self, wanted: Opening) -> None:
        folder, manifest, verify = wanted.folder, wanted.manifest, wanted.verify
        path = folder / PT2_FILE
        if not path.is_file():
            raise UsageError(f"{folder} has no {PT2_FILE}: export with --pt2 to have one")
        self.interface = wanted.interface
        require_table_rows(self.max_sequence_length, manifest.rope_table_rows, self.config, least=2)
        read_graph(folder, manifest)  # which tells a forged M from the bundle's
        # PyTorch unpickles it, which can run code: nothing of it is read that was not compared.
        if PT2_FILE not in manifest.files:
            raise UsageError(
                f"{path} is not in the manifest, and is code that would run: remove it, and export again with --pt2"
            )
        check_artifact(folder, manifest, PT2_FILE, "nothing" if verify == "nothing" else "whole")
        program = _load(path)
        _check_interface(path, program, manifest)
        self.device = wanted.device
        if self.device.on_gpu:
            program = move_to_device_pass(program, str(self.device))
        self._program = program.module()
        self.reset()

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            at = self.device.torch
            outputs, self._past = self._program(inputs.to(at), position_ids_BS.contiguous().to(at), self._past)
        result: torch.Tensor = outputs
        return result.to("cpu")


def _load(path: Path) -> torch.export.ExportedProgram:
    log = logging.getLogger("torch.export")  # it prints a traceback of what it raises as well
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's deserialiser about its own pytree
            return torch.export.load(path)
    except Exception as error:  # a zip, pickle or schema error, depending on where the damage is
        reason = str(error).partition("\n")[0]
        if "warnings above" in reason:  # which are those that were kept back
            reason = "what is in it cannot be read"
        raise UsageError(f"PyTorch {torch.__version__} does not load {path}: {reason}. {_REMEDY}") from error
    finally:
        log.setLevel(level)


def _check_interface(path: Path, program: torch.export.ExportedProgram, manifest: Manifest) -> None:
    """Whether the program's tensors are those of the manifest; axes of any size, M among them, fit every number.

    Raises:
        UsageError: it is a program of another model.
    """
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    signature = program.graph_signature
    for kind, names, ports in (
        ("inputs", signature.user_inputs, manifest.inputs),
        ("outputs", signature.user_outputs, manifest.outputs),
    ):
        if len(names) != len(ports):
            raise UsageError(f"{path} has {len(names)} {kind}, and the manifest lists {len(ports)}. {_REMEDY}")
        for name, port in zip(names, ports, strict=True):
            value = values[str(name)]  # whose axes of any size are of SymInts, and no ints
            found = Port.declared(str(name), str(value.dtype).removeprefix("torch."), value.shape)
            if not _fits(found, port):
                raise UsageError(f"{path} has {found} among its {kind}, and the manifest lists {port}. {_REMEDY}")


def _fits(found: Port, port: Port) -> bool:
    if found.dtype != port.dtype or len(found.shape) != len(port.shape):
        return False
    return all(have in ("any", want) for have, want in zip(found.shape, port.shape, strict=True))
