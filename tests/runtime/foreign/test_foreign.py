"""Decoders of other tools behind the Decoder interface: conventions recognised, called rightly, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from blockexport.export.bundle.onnx_file import read_onnx
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import ArtifactError, NotJudgedError, UsageError
from blockexport.models.interface import Ends
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.foreign.foreign_convention import recognise
from blockexport.runtime.foreign.foreign_decoder import ForeignDecoder
from blockexport.runtime.foreign.foreign_file import check_architecture
from blockexport.runtime.foreign.open_foreign import open_foreign, read_foreign
from tests.exported import export, random_model
from tests.foreign_files import (
    ForeignExports,
    changed,
    count_positions_inside,
    give_last_logits,
    keep_some_logits,
    take_int32,
)
from tests.output_cuts import CUTS

SLOTS = 40


@pytest.fixture(scope="module")
def source(foreign: ForeignExports) -> Path:
    return foreign.source()


@pytest.fixture(scope="module")
def files(foreign: ForeignExports) -> dict[str, Path]:
    """The same model by two conventions."""
    return {"growing": foreign.growing(), "shared": foreign.genai()}


def opened(path: Path, source: Path, slots: int = SLOTS) -> ForeignDecoder:
    config = open_checkpoint(str(source)).config
    return open_foreign(read_foreign([path]), config, max_sequence_length=slots)


def eager(source: Path, slots: int = SLOTS) -> EagerDecoder:
    return EagerDecoder(load_model(open_checkpoint(str(source)), torch.float32, slots), slots)


def ids(rows: int, length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 131, (rows, length), generator=torch.Generator().manual_seed(seed))


def rows_of_unequal_length(decoder: Decoder) -> list[torch.Tensor]:
    """Valid logits of a padded prompt and of steps, then each row's part of the cache."""
    lengths = [9, 3, 12]
    decoder.reset(3)
    prompt_BSV = decoder.prefill(ids(3, 12, 1), torch.tensor(lengths))
    seen = [row_SV[:length] for row_SV, length in zip(prompt_BSV, lengths, strict=True)]
    if decoder.one_a_row:
        seen = [prompt_BSV[2]]
    seen += [decoder.step(ids(3, 1, 2 + i)) for i in range(5)]
    for layer in range(2):
        for cache_BKMH in decoder.cache(layer):
            assert cache_BKMH.shape == (3, 3, SLOTS, 16)
            seen += [row_KMH[:, : length + 5] for row_KMH, length in zip(cache_BKMH, lengths, strict=True)]
    return seen


def chunks_and_steps(decoder: Decoder) -> list[torch.Tensor]:
    """A prompt in three chunks, and steps up to the last slot."""
    decoder.reset(1)
    seen = [decoder.prefill(ids(1, length, length)) for length in (5, 1, 8)]
    return seen + [decoder.step(ids(1, 1, i)) for i in range(SLOTS - 14)]


def agree(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=5e-5)


@pytest.mark.parametrize("kind", ["growing", "shared"])
def test_it_is_called_as_its_own_runtime_calls_it(kind: str, files: dict[str, Path], source: Path) -> None:
    decoder, expected = opened(files[kind], source), eager(source)
    assert (decoder.one_a_row, decoder.foreign.no_rows) == (False, None)
    assert (decoder.foreign.no_slots is None) is (kind == "shared")
    agree(rows_of_unequal_length(decoder), rows_of_unequal_length(expected))
    agree(chunks_and_steps(decoder), chunks_and_steps(expected))
    with pytest.raises(UsageError, match=f"need {SLOTS + 1} cache slots"):
        decoder.step(ids(1, 1, 0))


VARIANTS = [take_int32, count_positions_inside, keep_some_logits]


@pytest.mark.parametrize("change", VARIANTS)
def test_variants_of_the_growing_convention(
    change: Callable[[onnx.ModelProto], None], files: dict[str, Path], source: Path, tmp_path: Path
) -> None:
    decoder = opened(changed(files["growing"], tmp_path / "other.onnx", change), source)
    ports = decoder.convention.ports
    assert ({port.dtype for port in ports.values()} == {torch.int32}) is (change is take_int32)
    assert ("position_ids" in ports) is (change is not count_positions_inside)
    assert ("num_logits_to_keep" in ports) is (change is keep_some_logits)
    agree(rows_of_unequal_length(decoder), _without_keys(rows_of_unequal_length(eager(source)), change, decoder))
    agree(chunks_and_steps(decoder), chunks_and_steps(eager(source)))


def _without_keys(
    expected: list[torch.Tensor], change: Callable[[onnx.ModelProto], None], decoder: ForeignDecoder
) -> list[torch.Tensor]:
    """Keys of padded rows are turned by other angles where the graph counts the padding; the logits are not."""
    if change is not count_positions_inside:
        return expected
    ours = rows_of_unequal_length(decoder)
    keys = [8 + layer * 6 + row for layer in range(2) for row in range(2)]  # rows 0 and 1 are padded
    for i in keys:
        assert float((ours[i] - expected[i]).abs().max()) > 0.1
    return [ours[i] if i in keys else tensor for i, tensor in enumerate(expected)]


def test_logits_of_the_last_position_only(files: dict[str, Path], source: Path, tmp_path: Path) -> None:
    decoder = opened(changed(files["growing"], tmp_path / "last.onnx", give_last_logits), source)
    assert decoder.one_a_row
    assert decoder.prefill(ids(1, 7, 0)).shape == (1, 1, 131)
    ours = rows_of_unequal_length(decoder)
    model = load_model(open_checkpoint(str(source)), torch.float32, SLOTS, ends=Ends.LAST_LOGITS)
    agree(ours, rows_of_unequal_length(EagerDecoder(model, SLOTS)))


def test_what_a_growing_cache_cannot_do_is_said(files: dict[str, Path], source: Path, tmp_path: Path) -> None:
    decoder = opened(files["growing"], source)
    decoder.prefill(ids(1, 4, 0))
    with pytest.raises(UsageError, match=r"positions start at \[2\] and the rows hold \[4\] tokens"):
        decoder.forward(ids(1, 1, 0), torch.tensor([[2]]))
    counting = opened(changed(files["growing"], tmp_path / "counts.onnx", count_positions_inside), source)
    counting.reset(2)
    counting.prefill(ids(2, 4, 0))
    with pytest.raises(UsageError, match="only a first prompt may be padded"):
        counting.prefill(ids(2, 4, 0), torch.tensor([4, 2]))
    shared = opened(files["shared"], source)
    shared.reset(2)
    shared.prefill(ids(2, 4, 0))
    with pytest.raises(UsageError, match="further chunks of a prompt in one row only"):
        shared.prefill(ids(2, 4, 0))


def test_a_batch_of_one_and_no_mask_are_reasons_against_rows(
    files: dict[str, Path], source: Path, tmp_path: Path
) -> None:
    def fix_batch(model: onnx.ModelProto) -> None:
        for value in model.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 1

    fixed = opened(changed(files["growing"], tmp_path / "fixed.onnx", fix_batch), source)
    assert fixed.foreign.no_rows == "the file fixes its batch at one row"
    agree(chunks_and_steps(fixed), chunks_and_steps(eager(source)))

    def fix_batch_of_ids(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1

    secretly = opened(changed(files["growing"], tmp_path / "secretly.onnx", fix_batch_of_ids), source)
    assert "does not run with rows of unequal length: ONNX Runtime" in (secretly.foreign.no_rows or "")


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("growing", name) for name in CUTS), ("shared", "one row"), ("shared", "one column")],
)
def test_an_output_of_another_shape_is_the_files_fault(
    kind: str, name: str, files: dict[str, Path], source: Path, tmp_path: Path
) -> None:
    """What opens may not raise it: the checks find it, in the calls that show it."""
    cut, output = CUTS[name]
    decoder = opened(changed(files[kind], tmp_path / "cut.onnx", cut), source)
    assert (decoder.foreign.no_rows, decoder.one_a_row) == (None, False)
    decoder.reset(2)
    said = rf"{re.escape(output)} has the shape .* and should have \[2, .*\], when 2 rows of 9 tokens "
    with pytest.raises(ArtifactError, match=said):
        decoder.prefill(ids(2, 9, 1))


Change = Callable[[onnx.ModelProto], None]


def _input(name: str, kind: int = TensorProto.INT64, shape: tuple[str | int, ...] = ("b", "s")) -> Change:
    def change(model: onnx.ModelProto) -> None:
        kept = [value for value in model.graph.input if value.name != name]
        del model.graph.input[:]
        model.graph.input.extend([*kept, helper.make_tensor_value_info(name, kind, shape)])

    return change


def _cache(name: str, kind: int = TensorProto.FLOAT) -> Change:
    return _input(name, kind, ("b", 3, "p", 16))


def _drop(kind: str, prefix: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        values = getattr(model.graph, kind)
        kept = [value for value in values if not value.name.startswith(prefix)]
        del values[:]
        values.extend(kept)

    return change


def _fixed_length(model: onnx.ModelProto) -> None:
    for value in [*model.graph.input, *model.graph.output]:
        if "key" in value.name or "value" in value.name:
            value.type.tensor_type.shape.dim[2].dim_value = 64


def _fixed_length_without_places(model: onnx.ModelProto) -> None:
    _fixed_length(model)
    _drop("input", "position_ids")(model)


def _operator(name: str, domain: str = "com.microsoft") -> Change:
    return lambda model: model.graph.node.append(helper.make_node(name, ["logits"], ["x"], domain=domain))


REFUSED: list[tuple[str, Change, str]] = [
    ("growing", _input("token_type_ids"), r"has the input token_type_ids \['b', 's'\], which no convention"),
    ("growing", _input("use_cache_branch", TensorProto.INT64, (1,)), "takes use_cache_branch as INT64"),
    ("growing", _input("input_ids", TensorProto.FLOAT), "takes input_ids as FLOAT"),
    ("growing", _input("attention_mask", shape=("b", 1, "s", "t")), "takes attention_mask as INT64 .*: known is 2 dim"),
    ("growing", _drop("input", "input_ids"), "it has no input input_ids, it takes"),
    ("growing", _drop("input", "past"), "makes a cache and takes none"),
    ("growing", _drop("input", "past_key_values.0.value"), "no past_key_values.0.value among them"),
    ("growing", _drop("output", "logits"), "has no output logits"),
    ("growing", _drop("output", "present.1.key"), "has no output present.1.key"),
    ("growing", _input("past_key_values.1.key", TensorProto.FLOAT16, ("b", 3, "p", 16)), "caches of FLOAT of 4 .* and"),
    ("growing", _fixed_length_without_places, "cache of fixed length .* and no input that says into which slots"),
    ("shared", _drop("input", "attention_mask"), "and has no attention_mask"),
    # Names and types that no exporter writes.
    ("growing", _cache("past_key_values.99999999999.key"), "the input past_key_values.99999999999.key .*no convention"),
    ("growing", _cache(f"past_key_values.{'9' * 5000}.key"), "no convention known here has"),
    ("growing", _cache("past_key_values.9999.key"), "has no output present"),
    ("growing", _cache("past_key_values.1.key", 99), "caches of FLOAT of 4 dimensions and the unknown type 99"),
    ("growing", _cache("past_key_values.1.key", TensorProto.STRING), "FLOAT of 4 dimensions and STRING of 4"),
    ("growing", _input("input_ids", 99), "takes input_ids as the unknown type 99"),
]


@pytest.mark.parametrize(("kind", "change", "message"), REFUSED)
def test_what_is_not_recognised_is_refused_by_name(
    kind: str, change: Change, message: str, files: dict[str, Path], tmp_path: Path
) -> None:
    path = changed(files[kind], tmp_path / "odd.onnx", change)
    with pytest.raises(UsageError, match=message):
        read_foreign([path])


@pytest.mark.parametrize("kind", [TensorProto.UNDEFINED, TensorProto.STRING, 99])
def test_a_cache_is_of_the_type_that_the_graph_takes(kind: int, files: dict[str, Path], tmp_path: Path) -> None:
    """Whatever it says of the outputs, which ONNX Runtime holds against the graph when it loads it."""

    def declare(model: onnx.ModelProto) -> None:
        for value in model.graph.output:
            value.type.tensor_type.elem_type = kind

    path = changed(files["growing"], tmp_path / "odd.onnx", declare)
    assert read_foreign([path])[0].convention.dtype == torch.float32


def test_a_size_of_many_digits_is_a_name(files: dict[str, Path], tmp_path: Path) -> None:
    def declare(model: onnx.ModelProto) -> None:
        for value in [*model.graph.input, *model.graph.output]:
            if value.name.startswith(("past", "present")):
                value.type.tensor_type.shape.dim[2].dim_param = "9" * 5000

    path = changed(files["growing"], tmp_path / "odd.onnx", declare)
    assert read_foreign([path])[0].convention.slots is None


def test_one_layer_of_another_kind_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    def disconnect(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
        node.op_type = "SparseAttention"

    path = changed(files["shared"], tmp_path / "odd.onnx", disconnect)
    with pytest.raises(UsageError, match=r"in some layers and not for past_key_values\.0\.key"):
        recognise(read_onnx(path, ""), path)


def test_quantised_weights_are_not_judged(files: dict[str, Path], tmp_path: Path) -> None:
    path = changed(files["shared"], tmp_path / "odd.onnx", _operator("MatMulBnb4"))
    with pytest.raises(NotJudgedError, match=r"quantised weights \(MatMulBnb4\)"):
        recognise(read_onnx(path, ""), path)


def test_a_file_of_a_bundle_is_sent_back_to_its_bundle(tmp_path: Path) -> None:
    export(random_model(), tmp_path / "bundle")
    path = tmp_path / "bundle" / "model.onnx"
    with pytest.raises(UsageError, match=rf"blockexport compare {tmp_path}/bundle$"):
        recognise(read_onnx(path, ""), path)


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "num_key_value_heads", "vocab_size", "hidden_size", "intermediate_size"]
)
@pytest.mark.parametrize("kind", ["growing", "shared"])
def test_another_architecture_is_refused(field: str, kind: str, files: dict[str, Path], source: Path) -> None:
    config = open_checkpoint(str(source)).config
    model = read_onnx(files[kind], "")
    convention = recognise(model, files[kind])
    check_architecture(model, convention, config, files[kind])
    other = replace(config, **{field: getattr(config, field) + 1})
    with pytest.raises(UsageError, match=f"is another architecture than the checkpoint: {field} is "):
        check_architecture(model, convention, other, files[kind])


def test_files_that_are_no_onnx(files: dict[str, Path], source: Path, tmp_path: Path) -> None:
    for name, content in (("text", b"no model at all\n"), ("empty", b""), ("blob", bytes(range(256)))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"is not a readable ONNX file .* Name the ONNX file of a decoder"):
            read_foreign([path])
    with pytest.raises(UsageError, match="is not a readable ONNX file"):
        read_foreign([source / "model.safetensors"])
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(files["shared"].read_bytes())
    with pytest.raises(UsageError, match=r"model\.onnx\.data is missing\. alone\.onnx keeps its weights there"):
        read_foreign([alone])
    (tmp_path / "model.onnx.data").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"model\.onnx\.data has 5 bytes and ends before .* up to byte \d+\. Name the"):
        read_foreign([alone])


def test_more_positions_than_the_model_has_are_refused(files: dict[str, Path], source: Path) -> None:
    with pytest.raises(UsageError, match="513 cache slots are more than the 512 positions"):
        opened(files["growing"], source, slots=513)


def test_a_graph_that_does_not_run_is_refused(files: dict[str, Path], source: Path, tmp_path: Path) -> None:
    def widen(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for attribute in node.attribute:
                if node.op_type == "GroupQueryAttention" and attribute.name == "num_heads":
                    attribute.i = 12

    path = changed(files["shared"], tmp_path / "odd.onnx", widen)
    config = replace(open_checkpoint(str(source)).config, num_attention_heads=12)
    with pytest.raises(UsageError, match=r"ONNX Runtime .* does not (load|run)"):
        open_foreign(read_foreign([path]), config)
