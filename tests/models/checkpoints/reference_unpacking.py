"""Unpacks a checkpoint with the code of the tools that pack such checkpoints. Run as a program, in their environment:

    reference_unpacking.py FOLDER OUTPUT

writes the dequantised weights of FOLDER, in float32 under `MODULE.weight`, to the safetensors file OUTPUT.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from safetensors.torch import load_file, save_file

Parts = dict[str, torch.Tensor]


def compressed_tensors(parts: Parts, config: dict[str, Any]) -> torch.Tensor:
    """[N, K], by the library's own decompressor. Scales in float32, so that nothing is rounded to their type."""
    compressors, quantization, forward = (
        importlib.import_module(f"compressed_tensors.{name}")
        for name in ("compressors", "quantization", "quantization.lifecycle.forward")
    )
    arguments = quantization.QuantizationArgs(**config["config_groups"]["group_0"]["weights"])
    bits, scales, shape = arguments.num_bits, parts["weight_scale"].float(), torch.Size(parts["weight_shape"])
    weight: torch.Tensor
    if arguments.symmetric:
        data = {**parts, "weight_scale": scales}
        weight = compressors.PackedQuantizationCompressor().decompress_weight(data, arguments)
    else:  # this version has the two steps, and does not take them together
        codes = compressors.unpack_from_int32(parts["weight_packed"], bits, shape)
        grid = torch.Size((shape[0], scales.shape[1]))
        zeros = compressors.unpack_from_int32(parts["weight_zero_point"], bits, grid, packed_dim=0)
        weight = forward.dequantize(x_q=codes, scale=scales, zero_point=zeros)
    return weight


def gptq(parts: Parts, config: dict[str, Any]) -> torch.Tensor:
    """[N, K], by the method of GPTQModel's layers, zero points converted by its own function where they are v1's."""
    layers = _part_of("gptqmodel.nn_modules.qlinear")
    bits, (words, outputs) = config["bits"], parts["qweight"].shape
    width, steps = words * 32 // bits, torch.arange(0, 32, bits, dtype=torch.int32)
    layer = types.SimpleNamespace(
        **{name: value.clone() for name, value in parts.items()},
        bits=bits,
        pack_factor=32 // bits,
        maxq=2**bits - 1,
        in_features=width,
        planar=False,
        dequant_dtype=torch.int16,
        _init_wf_unsqueeze_buffers=lambda: None,
        wf_unsqueeze_zero=steps.view(1, 1, -1),
        wf_unsqueeze_neg_one=steps.view(1, -1, 1),
    )
    layer.scales = layer.scales.float()
    base = layers.PackableQuantLinear
    layer._dequantize_from_codes = types.MethodType(base._dequantize_from_codes, layer)
    if config["checkpoint_format"] == "gptq":
        offset = sum(1 << shift for shift in range(0, 32, bits))
        layer.qzeros += offset  # as convert_gptq_v1_to_v2_format_module does
    weight_KN: torch.Tensor = base.dequantize_weight(layer)
    assert weight_KN.shape == (width, outputs)
    return weight_KN.T


def awq(parts: Parts, config: dict[str, Any]) -> torch.Tensor:
    """[N, K], by the function that GPTQModel took over from AutoAWQ."""
    packing = _part_of("gptqmodel.quantization.awq.utils.packing_utils")
    width = len(parts["qweight"])
    group = config["group_size"] if config["group_size"] > 0 else width
    weight_KN: torch.Tensor = packing.dequantize_gemm(
        parts["qweight"], parts["qzeros"], parts["scales"].float(), config["bits"], group
    )
    return weight_KN.T


class _Absent:
    """Finds modules that are not there, as stand-ins: the package's other parts want a GPU and much else."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Of the wanted module alone, and of the folders on the way to it."""
        if not name.startswith("gptqmodel") or name == self.wanted:
            return None
        spec = importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        if self.wanted.startswith(f"{name}."):
            found = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
            assert found is not None
            spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: Any) -> Any:
        """A module that has whatever it is asked for."""
        module: Any = types.ModuleType(spec.name)
        if spec.submodule_search_locations is None:
            module.__path__ = []
            module.__getattr__ = lambda name: MagicMock(name=name)
        return module

    def exec_module(self, module: object) -> None:
        """Nothing: the file is not run."""


def _part_of(name: str) -> Any:
    """One module of a package, run without the rest of it."""
    finder = _Absent(name)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


TOOLS = {"compressed-tensors": compressed_tensors, "gptq": gptq, "awq": awq}


def main(folder: Path, output: Path) -> None:
    """Unpack every packed module of a folder."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    modules: dict[str, Parts] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = tensor
    unpack = TOOLS[config["quant_method"]]
    packed = {name: parts for name, parts in modules.items() if parts.keys() & {"qweight", "weight_packed"}}
    save_file({f"{name}.weight": unpack(parts, config).contiguous() for name, parts in packed.items()}, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
