"""ONNX files good and bad, by content, kind and size."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from blockexport.export.lint.graph_file import read_graph
from blockexport.models.errors import UsageError
from tests.export.tensorrt.trt_support import cached_attention


@pytest.mark.parametrize("name", ["model.onnx", "model", "model.json", "model.textproto", "model.onnxtxt"])
def test_binary_onnx_is_read_whatever_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(cached_attention().SerializeToString())
    assert read_graph(tmp_path / name) == cached_attention()


@pytest.mark.parametrize("name", ["model.json", "model.textproto", "model.onnxtxt"])
def test_textual_onnx_is_read_where_the_name_says_so(
    name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    onnx.save(cached_attention(), tmp_path / name)
    recwarn.clear()
    assert [node.op_type for node in read_graph(tmp_path / name).graph.node][-1] == "Attention"
    assert not recwarn.list
    (tmp_path / "renamed.onnx").write_bytes((tmp_path / name).read_bytes())
    with pytest.raises(UsageError, match="is not a readable ONNX file"):
        read_graph(tmp_path / "renamed.onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".json", ".textproto", ".onnxtxt", ".pbtxt"])
@pytest.mark.parametrize(
    "content",
    [
        b'{"schema_version": 1}',
        b"[1]",
        b"null",
        b"[" * 100_000,
        b"graph { node { attribute { g {" + b"node { attribute { g {" * 20_000,
        b"not onnx at all",
        bytes(range(256)) * 9,
        b"<ir_version: 8> f (float[2] x) => (",
    ],
    ids=["object", "list", "null", "brackets", "braces", "words", "bytes", "half"],
)
def test_what_is_not_onnx_is_refused_in_one_line(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_graph(path)
    said = str(caught.value)
    assert said.startswith(f"{path} is not a readable ONNX file (") and said.endswith("model.onnx, or any other")
    assert ("Nor is it readable as " in said) is (suffix != ".onnx")
    assert "\n" not in said


def test_a_file_without_nodes_holds_no_graph(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match="there is no graph in it"):
        read_graph(tmp_path / "empty.onnx")


def test_what_is_no_file_is_refused_by_name_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "around").symlink_to("around")
    for path, said in (
        (Path("/dev/zero"), "is a character device, and has to be a file"),
        (tmp_path / "pipe", "is a pipe, and has to be a file"),
        (tmp_path / "folder", "is a folder, and has to be a file"),
        (tmp_path / "around", "cannot be read: "),
        (tmp_path / "absent", "cannot be read: No such file or directory"),
    ):
        with pytest.raises(UsageError, match=said):
            read_graph(path)


def test_a_file_beyond_protobufs_limit_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate((2 << 30) + 1)  # a hole: it takes no room
    with pytest.raises(UsageError, match="has 2147483649 bytes, and an ONNX file has 2147483648 at most"):
        read_graph(path)


def test_large_tensors_are_dropped_and_small_ones_kept(tmp_path: Path) -> None:
    model = cached_attention()
    large, small = np.ones(20_000, np.float32), np.arange(5)
    model.graph.initializer.extend([numpy_helper.from_array(large, "large"), numpy_helper.from_array(small, "small")])
    onnx.save(model, tmp_path / "model.onnx")
    read = {tensor.name: tensor for tensor in read_graph(tmp_path / "model.onnx").graph.initializer}
    assert (read["large"].raw_data, list(read["large"].dims)) == (b"", [20_000])
    assert numpy_helper.to_array(read["small"]).tolist() == [0, 1, 2, 3, 4]
