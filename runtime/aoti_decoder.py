"""A bundle's AOTInductor package behind the Decoder interface: compiled code that updates the cache in place."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch

from blockexport.export.bundle.aoti_machine import AOTI_INFO, check_machine
from blockexport.export.bundle.check_graph import read_graph
from blockexport.export.bundle.file_check import check_file
from blockexport.export.bundle.manifest import AOTI_FILE
from blockexport.models.block.rope import require_table_rows
from blockexport.models.errors import UsageError
from blockexport.runtime.backends import Opening
from blockexport.runtime.decoder import Decoder


class AotiDecoder(Decoder):
    """The package of a bundle, or one in `package_folder` that is still to be judged."""

    def __init__(self, wanted: Opening, package_folder: Path | None = None) -> None:
        folder, manifest = wanted.folder, wanted.manifest
        path = (package_folder or folder) / AOTI_FILE
        if not path.is_file():
            raise UsageError(f"{folder} has no {AOTI_FILE}: `blockexport aoti {shlex.quote(str(folder))}` makes one")
        self.interface = wanted.interface
        require_table_rows(self.max_sequence_length, manifest.rope_table_rows, self.config)
        read_graph(folder, manifest)  # which tells a forged M from the bundle's
        self.device = wanted.device
        check_machine(path.with_name(AOTI_INFO), self.device.torch)
        if package_folder is None:
            # Machine code: nothing of it runs that was not compared.
            if AOTI_FILE not in manifest.files:
                raise UsageError(
                    f"{path} is not in the manifest, and is machine code that would run: remove it, and make it with "
                    f"`blockexport aoti {shlex.quote(str(folder))}`"
                )
            check_file(path, manifest.files[AOTI_FILE], whole=True)
        index = self.device.index if self.device.on_gpu else -1
        try:
            self._run_package = torch._inductor.aoti_load_package(str(path), device_index=index)
        except RuntimeError as error:
            raise UsageError(f"{path} does not load: {error}") from error
        self.reset()

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        at = self.device.torch
        with torch.inference_mode():
            outputs: torch.Tensor = self._run_package(
                inputs.contiguous().to(at), position_ids_BS.contiguous().to(at), self._past
            )
        return outputs.to("cpu")
