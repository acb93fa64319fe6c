"""`blockexport lint` on files good and bad."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from blockexport.cli.main import main
from blockexport.cli.start import open_standard_streams
from blockexport.models.checkpoints.sources import open_checkpoint
from tests.export.tensorrt.trt_support import attend, cached_attention, write_cache
from tests.exported import export, random_model
from tests.small_models import small_config, small_weights, write_folder

CAUSAL = cached_attention(
    [
        write_cache("past_key", "key", "present_key"),
        write_cache("past_value", "value", "present_value"),
        attend("query", "present_key", "present_value", is_causal=1),
    ]
)


def test_a_clean_file_or_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(cached_attention(), tmp_path / "model.onnx")
    assert main(["lint", str(tmp_path / "model.onnx")]) == 0
    assert main(["lint", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("none of the known traps") == 2


def test_a_trap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(CAUSAL, tmp_path / "model.onnx")
    assert main(["lint", str(tmp_path / "model.onnx")]) == 1
    out = capsys.readouterr().out
    assert "causal-cache: Attention attention: is_causal over a static cache" in out
    assert "1 found" in out
    assert main(["lint", str(tmp_path / "model.onnx"), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["rule"], finding["fate"]) == ("causal-cache", "builds without a word")


def test_a_path_that_is_not_utf_8_is_read_where_nothing_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading PyTorch's and ONNX's files needs no name; where a backend or a file needs it, it is refused."""
    open_standard_streams()  # as the command does
    config, source = small_config(), tmp_path / "\udcff source"
    write_folder(source, config, small_weights(config))
    export(open_checkpoint(str(source)), tmp_path / "bundle", slots=32)
    odd = shutil.copytree(tmp_path / "bundle", tmp_path / "\udcfe.bundle")
    assert main(["lint", str(odd)]) == main(["lint", str(odd / "model.onnx"), "--json"]) == 0
    assert main(["inspect", str(source)]) == main(["inspect", str(source), "--json"]) == 0
    compared = ["compare", str(tmp_path / "bundle"), "--model", str(source), "--check", "prefill", "-q"]
    assert main(compared) == 0 and main([*compared, "--json"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_no_onnx_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.onnx").write_text("text")
    (tmp_path / "manifest.json").write_text("{}x")
    for path, said in (
        (tmp_path / "file.onnx", "is not a readable ONNX file"),
        (tmp_path / "manifest.json", "Nor is it readable as json"),
        (tmp_path / "absent.onnx", "No such file or directory"),
        (Path("/dev/zero"), "/dev/zero is a character device"),
    ):
        assert main(["lint", str(path)]) == 2
        assert said in capsys.readouterr().err


def test_a_trap_in_every_layer_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(random_model(), tmp_path)
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "Attention":
            del node.attribute[:]
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert main(["lint", str(tmp_path)]) == 1
    trap, total = capsys.readouterr().out.splitlines()
    assert trap.startswith("attention-scale: layers 0..2: Attention model.layers.0.")
    assert " (and the same at 2 more). TensorRT builds without a word. " in trap
    assert total.endswith("1 found, at 3 nodes")
    assert main(["lint", str(tmp_path), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert len(finding["nodes"]) == 3
