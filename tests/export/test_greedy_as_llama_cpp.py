"""A quantised bundle of a GGUF's codes gives llama.cpp's greedy text of the same weights.

llama.cpp rounds activations to 8 bits before it multiplies by such codes, so that its own text of the file is another
model's. It is given the file's values in float32 instead, and a cache in float32: what is left is the order of sums.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import gguf
import pytest
from gguf import GGMLQuantizationType as Kind

from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.quantisation import quantisation_of
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.generate import Generation
from blockexport.runtime.text.sampling import SamplingOptions
from tests.export.taken_over import made_bundle
from tests.models.checkpoints.test_gguf_against_llama_cpp import PROMPT, nothing, write
from tests.support import smollm2_gguf

SLOTS = 48  # of `made_bundle`
SMOLLM2_PROMPT = [504, 3575, 282, 4649, 314]  # The capital of France is


def rewritten(source: Path, target: Path, kind: Kind | None, of: Kind = Kind.F32) -> Path:
    """A GGUF whose matrices of the kind `of` are stored in `kind`; None: every tensor by its values in float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            is_list = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(
                field.name, field.contents(), field.types[0], sub_type=field.types[-1] if is_list else None
            )
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if kind is None:
            writer.add_tensor(tensor.name, values)
        elif tensor.tensor_type == of and values.ndim == 2:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def llama_cpp(path: Path, prompt: list[int], steps: int) -> list[int]:
    """llama.cpp's likeliest tokens after a prompt."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp (xllamacpp) is not installed: nothing to compare")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = params.n_batch = 256
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = -1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    body = {"prompt": prompt, "n_predict": steps, "cache_prompt": False, "samplers": ["top_k"], "top_k": 1}
    body |= {"return_tokens": True, "ignore_eos": True}
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        found: list[int] = json.load(reply)["tokens"]
    return found


def ours(folder: Path, source: Path, prompt: list[int], steps: int, quantize: str) -> list[int]:
    """The same of a bundle that has the codes of `source`."""
    made = made_bundle(folder, open_checkpoint(str(source)), quantisation_of(quantize))
    shapes = {tensor.name: tensor.shape for tensor in gguf.GGUFReader(source).tensors}
    matrices = sum(len(shape) == 2 for shape in shapes.values()) + ("output.weight" not in shapes)  # a tied head
    assert any(f"{matrices} matrices are the checkpoint's" in note for note in made.notes), made.notes
    generation = Generation(open_decoder(folder, exact=True), prompt, SamplingOptions())
    return [next(generation) for _ in range(steps)]


@pytest.mark.parametrize(("kind", "quantize"), [(Kind.Q4_0, "int4"), (Kind.Q8_0, "int8")])
def test_the_greedy_tokens_of_a_models_codes_are_llama_cpps(kind: Kind, quantize: str, tmp_path: Path) -> None:
    prompt, steps = PROMPT[:9], SLOTS - 9
    plain = write(tmp_path / "plain.gguf", "llama", nothing)
    coded = rewritten(plain, tmp_path / "coded.gguf", kind)
    wanted = llama_cpp(rewritten(coded, tmp_path / "values.gguf", None), prompt, steps)
    assert len(set(wanted)) > steps / 3, "a text that repeats one token proves little"
    assert ours(tmp_path / "bundle", coded, prompt, steps, quantize) == wanted
    assert llama_cpp(plain, prompt, steps) != wanted, "the rounding of the weights makes no difference here"


@pytest.mark.full
def test_the_greedy_tokens_of_smollm2_in_q4_0_are_llama_cpps(tmp_path: Path) -> None:
    coded = rewritten(smollm2_gguf(), tmp_path / "coded.gguf", Kind.Q4_0, Kind.Q4_1)
    prompt, steps = SMOLLM2_PROMPT, SLOTS - len(SMOLLM2_PROMPT)
    wanted = llama_cpp(rewritten(coded, tmp_path / "values.gguf", None), prompt, steps)
    assert ours(tmp_path / "bundle", coded, prompt, steps, "int4") == wanted
