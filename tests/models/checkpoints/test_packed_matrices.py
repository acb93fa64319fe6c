"""Packed matrices are read as what they stand for, by their values and by their codes, or refused with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockexport.models.checkpoints import packed_values
from blockexport.models.checkpoints.safetensors_checkpoint import SafetensorsCheckpoint
from blockexport.models.errors import UsageError
from blockexport.models.quantised_matrix import QuantisationScheme
from tests.packed_folders import Pack, PackedFolder, write_packed

QUERY = "model.layers.1.self_attn.q_proj"
CASES = {
    "compressed-tensors int4": Pack("compressed-tensors", scales=torch.bfloat16),
    "compressed-tensors int8 of channels": Pack("compressed-tensors", 8, None),
    "compressed-tensors int4 of 64 in order": Pack("compressed-tensors", 4, 64, order=True),
    "compressed-tensors int8 of 48 in order": Pack("compressed-tensors", 8, 48, order=True),
    "compressed-tensors with zero points": Pack("compressed-tensors", 4, 32, symmetric=False),
    "GPTQ int4": Pack(),
    "GPTQ int4 in order": Pack(order=True),
    "GPTQ int8 of 128 in order, second form": Pack("gptq", 8, 128, order=True, form="gptq_v2"),
    "GPTQ int4 of 256": Pack("gptq", 4, 256),
    "GPTQ int4 of 200, which is all": Pack("gptq", 4, 200, order=True),
    "GPTQ with zero points in order": Pack("gptq", 4, 64, order=True, symmetric=False),
    "GPTQ int8 of channels with zero points, second form": Pack("gptq", 8, None, symmetric=False, form="gptq_v2"),
    "AWQ": Pack("awq", 4, 32, symmetric=False),
    "AWQ of channels": Pack("awq", 4, None, symmetric=False),
}


@pytest.mark.parametrize("name", list(CASES))
def test_values_and_codes_are_what_the_folder_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(packed_values, "_STRIP", 64)  # several in a matrix
    pack = CASES[name]
    source = write_packed(tmp_path, pack, num_hidden_layers=1)
    checkpoint = SafetensorsCheckpoint(source.path)
    assert len(source.packed) == 7 and checkpoint.source.files == (tmp_path / "model.safetensors",)
    for tensor, wanted in source.values.items():
        entry = checkpoint.entries[tensor]
        assert torch.equal(checkpoint.read(tensor), wanted), tensor
        if tensor not in source.packed:
            assert entry.codes is None
            continue
        if pack.group == 48:
            assert entry.codes is None and entry.order is None
            continue
        width = wanted.shape[1]
        group = pack.group or next(size for size in (128, 64, 32) if width % size == 0)
        assert entry.codes == QuantisationScheme(pack.bits, min(group, 128), not pack.symmetric)
        matrix = checkpoint.read_codes(tensor)
        assert torch.equal(matrix.dequantised(), wanted), tensor
        assert matrix.scales_GN.dtype == pack.scales
        # Of one group, every order is as good as that of the file.
        assert (entry.order is not None) == (matrix.order_K is not None) == (pack.order and group < width)


def test_matrices_that_look_at_the_same_inputs_have_one_order(tmp_path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(write_packed(tmp_path, CASES["GPTQ int4 in order"]).path)
    orders = {name: entry.order for name, entry in checkpoint.entries.items() if entry.order is not None}
    assert len(orders) == 21 and len(set(orders.values())) == 12
    assert orders[f"{QUERY}.weight"] == orders[f"{QUERY.replace('q_proj', 'v_proj')}.weight"]


def test_biases_of_zero_that_older_tools_wrote_are_left_out(tmp_path: Path) -> None:
    source = write_packed(tmp_path, CASES["GPTQ int4"])
    _change(tmp_path, lambda tensors: tensors.update({f"{QUERY}.bias": torch.zeros(64)}))
    checkpoint = SafetensorsCheckpoint(source.path)
    assert checkpoint.notes == (f"biases of 0 that the architecture has not are left out: {QUERY}.bias",)
    _change(tmp_path, lambda tensors: tensors.update({f"{QUERY}.bias": torch.ones(64)}))
    with pytest.raises(UsageError, match=rf"holds tensor {QUERY}.bias, which it does not use"):
        SafetensorsCheckpoint(source.path)


def _change(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PackedFolder]:
    packs = {"gptq": CASES["GPTQ int4 in order"], "ct": CASES["compressed-tensors int4"], "awq": CASES["AWQ"]}
    packs["zeros"] = CASES["GPTQ with zero points in order"]
    return {name: write_packed(tmp_path_factory.mktemp(name), pack) for name, pack in packs.items()}


def _set(name: str, place: tuple[int, ...], value: int) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{QUERY}.{name}"][place] = value

    return change


def _put(name: str, value: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({f"{QUERY}.{name}": value})


def _drop(*names: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: [tensors.pop(f"{QUERY}.{name}") for name in names]


def _unpacked(tensors: dict[str, torch.Tensor]) -> None:
    _drop("weight_packed", "weight_scale", "weight_shape")(tensors)
    _put("weight", torch.ones(64, 96))(tensors)


def _packed_head(tensors: dict[str, torch.Tensor]) -> None:
    for part in ("weight_packed", "weight_scale", "weight_shape"):
        tensors[f"lm_head.{part}"] = tensors[f"{QUERY}.{part}"].clone()


REFUSED: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "no scales": ("gptq", _drop("scales"), f"lacks {QUERY}.scales, without which GPTQ int4 cannot be read"),
    "no order": ("gptq", _drop("g_idx"), f"lacks {QUERY}.g_idx"),
    "no shape": ("ct", _drop("weight_shape"), f"lacks {QUERY}.weight_shape"),
    "a group too many": ("gptq", _set("g_idx", (3,), 3), "puts inputs in groups 0..3, and there are 3"),
    "a group below": ("gptq", _set("g_idx", (3,), -1), "puts inputs in groups -1..2"),
    "another zero point": ("gptq", _set("qzeros", (1, 2), 0x77777776), "has 1 zero points that are not 8"),
    "a zero point beyond": ("zeros", _set("qzeros", (1, 2), 0x777777F7), "has 1 zero points of 16, which is no code"),
    "scales of other groups": ("ct", _put("weight_scale", torch.ones(64, 2)), r"\[64, 2\]; a matrix of 64 x 96 in"),
    "no codes at all": ("gptq", _put("qweight", torch.empty(0, 64, dtype=torch.int32)), "which has no codes"),
    "codes as floats": ("gptq", _put("qweight", torch.ones(12, 64)), r"F32 \[12, 64\]; .* calls for I32 \[12, 64\]"),
    "another shape": ("ct", _put("weight_shape", torch.tensor([64, 97])), "a matrix of 64 x 97 in"),
    "no shape at all": ("ct", _put("weight_shape", torch.tensor([64, 0])), r"is \[64, 0\]; both must be 1 or more"),
    "zero points of a symmetric one": ("ct", _put("weight_zero_point", torch.zeros(8, 3)), "says that .* is symmetric"),
    "packed and not": ("awq", _put("weight", torch.ones(64, 96)), "twice: packed and as"),
    "not packed, and said to be": ("ct", _unpacked, f"has {QUERY}.weight as it is, and .* says that it is packed"),
    "packed, and said not to be": ("ct", _packed_head, "has lm_head packed, and .* says that it is not"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_does_not_fit_together_is_refused(folders: dict[str, PackedFolder], tmp_path: Path, name: str) -> None:
    kind, change, said = REFUSED[name]
    folder = shutil.copytree(folders[kind].path, tmp_path / "bad")
    _change(folder, change)
    for read in (SafetensorsCheckpoint.read, SafetensorsCheckpoint.read_codes):
        with pytest.raises(UsageError, match=said):
            read(SafetensorsCheckpoint(folder), f"{QUERY}.weight")


def test_a_config_that_lost_or_kept_its_key_is_refused(folders: dict[str, PackedFolder], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["ct"].path, tmp_path / "bad")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("quantization_config", "task_specific_params"))
    with pytest.raises(UsageError, match=r"Packed ones are read where quantization_config in config.json"):
        SafetensorsCheckpoint(folder)
    (folder / "config.json").write_text(config)
    save_file(folders["ct"].values, folder / "model.safetensors")
    with pytest.raises(UsageError, match="no tensor is a weight_packed: remove quantization_config"):
        SafetensorsCheckpoint(folder)
