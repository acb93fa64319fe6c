"""Small sound inputs of every parser, to be damaged from: the smaller, the more runs in a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import onnx
import torch
from onnx import helper, parser
from safetensors.torch import save

from blockexport.export.bundle.golden_file import GoldenVectors, write_golden
from blockexport.export.bundle.manifest import FileEntry, Manifest, SourceRecord
from blockexport.export.bundle.pre_tokenizers import PRE_TOKENIZERS
from blockexport.export.tokenizer.gguf_tokenizer import rebuild_tokenizer
from blockexport.models.formats.config_hf_write import config_to_hf
from blockexport.models.interface import Ends, Interface
from blockexport.models.precision import Precision
from tests.small_models import small_config

PIECES = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁a"]
DIGEST = "0123456789abcdef" * 4
METADATA: Mapping[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
    "tokenizer.ggml.token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1],
}
BYTE_LEVEL: Mapping[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["<|eot_id|>", "a", "b", "ab", "Ġ"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}
GRAPH = """
<ir_version: 10, opset_import: ["" : 24, "local" : 1]>
decoder (int64[batch_size, sequence_length] input_ids, int64[batch_size] start_indices,
         float[batch_size, 2, 8, 4] past_key_values__0__key, float[batch_size, 2, 8, 4] past_key_values__0__value)
    => (float[batch_size, sequence_length, 5] logits, float[batch_size, 2, 8, 4] present__0__key,
        float[batch_size, 2, 8, 4] present__0__value)
<float[5, 8] table, float[8, 5] head, int64[1] limit = {4}, uint4[2, 4] codes, float[2, 2] scales>
{
    x = Gather (table, input_ids)
    y = local.twice (x)
    parts = Constant <value = int64[4] {0, 0, 2, 4}> ()
    split = Reshape (y, parts)
    heads = Transpose <perm = [0, 2, 1, 3]> (split)
    present__0__key = TensorScatter <axis = 2> (past_key_values__0__key, heads, start_indices)
    present__0__value = TensorScatter <axis = 2> (past_key_values__0__value, heads, start_indices)
    attended = Attention <is_causal = 1, scale = 0.5> (heads, present__0__key, present__0__value)
    wide = DequantizeLinear <block_size = 2> (codes, scales)
    chosen = If (limit) <
        then_branch = a () => (float[1] left) { left = Identity (attended) },
        else_branch = b () => (float[1] right) { right = Relu (heads) }>
    logits = MatMul (chosen, head)
}
<domain: "local", opset_import: ["" : 24]>
twice (x) => (y) { y = Add (x, x) }
"""


def json_bytes(value: Any) -> bytes:
    """As files hold it."""
    return json.dumps(value, ensure_ascii=False).encode()


def gguf_file(*, byte_level: bool = False) -> bytes:
    """A llama of one small layer without its tensors' right shapes: the header is what is read first."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        sizes = {"context_length": 16, "block_count": 1, "embedding_length": 8, "feed_forward_length": 6}
        for name, count in sizes.items():
            writer.add_uint32(f"llama.{name}", count)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        for key, value in (BYTE_LEVEL if byte_level else METADATA).items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_uint32(key, value)
        vocab = 5 if byte_level else len(PIECES)
        shapes = {"token_embd": (vocab, 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
        shapes |= {"blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8), "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8)}
        shapes |= {"blk.0.ffn_gate": (6, 8), "blk.0.ffn_up": (6, 8), "blk.0.ffn_down": (8, 6)}
        for name, shape in shapes.items():
            writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def safetensors_file() -> bytes:
    """Two tensors and a note."""
    return save({"a": torch.zeros(2, 3), "b.c": torch.zeros(5, dtype=torch.float16)}, {"format": "pt"})


def configs() -> list[bytes]:
    """A config.json of several families, RoPE scalings, and layouts of packed weights."""
    families = ("llama", "qwen2", "qwen3", "phi3", "granite", "olmo2", "cohere")
    written = [config_to_hf(small_config(family)) for family in families]
    plain, *more = [config for config in written if config is not None]
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 8, "symmetric": True}
    group = {"group_0": {"targets": ["Linear", "re:.*q_proj"], "weights": weights}}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": group, "ignore": ["a"]}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": True, "desc_act": False, "dynamic": {"-:.*": {}}}
    return [
        json_bytes(value)
        for value in (
            plain,
            {**plain, "rope_scaling": {**llama3, "original_max_position_embeddings": 128}},
            {**plain, "quantization_config": packed},
            {**plain, "quantization_config": gptq},
            *more,
        )
    ]


def generation_config() -> bytes:
    """With a value of every kind."""
    said = {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "eos_token_id": [1, 2], "bos_token_id": 1}
    return json_bytes({**said, "suppress_tokens": [3], "stop_strings": "x", "min_p": 0.1, "max_length": 8})


def manifest(**engines: Any) -> bytes:
    """Of a bundle whose files are not there."""
    config = replace(small_config(), num_hidden_layers=1)
    interface = Interface(config, Precision.FP32.element, 8, Ends.of(headless=False, last_logits_only=False))
    entry = FileEntry(DIGEST, 5, DIGEST)
    return Manifest(
        config,
        SourceRecord("preset", "tiny", DIGEST, seed=0),
        Precision.FP32,
        max_sequence_length=8,
        rope_table_rows=16,
        headless=False,
        last_logits_only=False,
        inputs=interface.inputs,
        outputs=interface.outputs,
        opset=24,
        ir_version=10,
        weights_digest=DIGEST,
        files={"model.onnx": entry, "model.pt2": replace(entry, made_from={"model.onnx": DIGEST})},
        engines=engines,
    ).to_bytes()


def manifest_with_engine() -> bytes:
    """The same with what is said of an engine."""
    sizes = {"name": "all", "batch_size": [1, 1, 4], "sequence_length": [1, 1, 8]}
    said = {"backend": "tensorrt-rtx", "version": "1.7.1.116", "compute_capabilities": ["8.9"], "precision": "fp32"}
    more = {"inputs": [], "outputs": [], "weights_digest": DIGEST, "audit": {}, "rebuild": "blockexport trt"}
    return manifest(a={**said, **more, "profiles": [sizes], "options": {"version_compatible": True}})


def golden() -> bytes:
    """Six tokens, four of them in the prefill."""
    with TemporaryDirectory() as folder:
        positions = torch.tensor([3, 5])
        ids, outputs, limits = torch.arange(6), torch.zeros(2, 7), torch.full((2,), 0.1)
        write_golden(Path(folder), GoldenVectors(ids, 4, positions, outputs, limits, 0.1))
        return Path(folder, "golden.safetensors").read_bytes()


def tokenizers() -> list[bytes]:
    """SentencePiece's and byte-level BPE, and one with parts that need limits."""
    made = [rebuild_tokenizer(metadata)["tokenizer.json"] for metadata in (METADATA, BYTE_LEVEL)]
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    return [json_bytes(value) for value in (*made, {**made[0], "pre_tokenizer": split})]


def tokenizer_configs() -> list[bytes]:
    """With a chat template as text, and as a list of them."""
    config = rebuild_tokenizer(BYTE_LEVEL)["tokenizer_config.json"]
    special = {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    named = [{"name": "default", "template": "a"}, {"name": "tool", "template": "b"}]
    return [json_bytes(config), json_bytes({**config, "bos_token": special, "chat_template": named})]


def chat_turns() -> bytes:
    """A frame with a system turn."""
    frame = {"before": "<s>", "next": "n", "answer": "a", "answered": "b", "system": ["c", "d"]}
    return json_bytes({**frame, "trim": True, "drop_thinking": False})


def adapter_config() -> bytes:
    """Of peft, with patterns."""
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    patterns = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.0\..*": 3.0}}
    return json_bytes({**said, **patterns, "modules_to_save": ["lm_head"], "exclude_modules": "a|b", "use_dora": True})


def weight_index() -> bytes:
    """Of two shards."""
    files = {"a": "model-00001-of-00002.safetensors", "b.c": "model-00001-of-00002.safetensors"}
    return json_bytes({"metadata": {"total_size": 4}, "weight_map": files})


def plan() -> bytes:
    """Of one who was killed while renaming."""
    return json_bytes({"moves": [["a", "c"]], "removed": ["b"]})


def graphs() -> list[bytes]:
    """A decoder with a cache, a local function, branches, and weights in another file."""
    model = parser.parse_model(GRAPH)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("__", ".") for name in names]
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace("__", ".")
    quantised = model.SerializeToString()
    del model.graph.node[next(i for i, node in enumerate(model.graph.node) if node.op_type == "DequantizeLinear")]
    tensor = model.graph.initializer.add(name="far", data_type=onnx.TensorProto.FLOAT, dims=[2, 3])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "model.safetensors", "offset": "0", "length": "24"}.items():
        tensor.external_data.add(key=key, value=value)
    node = helper.make_node("Add", ["far", "far"], ["sum"])
    model.graph.node.insert(0, node)
    return [quantised, model.SerializeToString()]


def bodies() -> list[bytes]:
    """Of both of OpenAI's endpoints, with every kind of value."""
    common = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "stop": ["x"], "n": 1, "seed": 5}
    parts = [{"type": "text", "text": "hi"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    chat = {**common, "messages": messages, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "logit_bias": {}}
    return [json_bytes(chat), json_bytes({**common, "prompt": [[1, 2]], "max_tokens": 3, "logprobs": 1, "top_p": 0.5})]


def signature() -> bytes:
    """In minisign's form, with bytes that sign nothing."""
    signed, comment = "RUQ" + "A" * 97, "A" * 86 + "=="
    return f"untrusted comment: a\n{signed}\ntrusted comment: b\n{comment}\n".encode()


def sentencepiece() -> bytes:
    """A BPE model as `tokenizer.model`: pieces with a type, the trainer's kind, and a normaliser that drops nothing."""
    pieces = zip(PIECES, METADATA["tokenizer.ggml.token_type"], strict=True)
    encoded = [b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x18" + bytes([kind]) for text, kind in pieces]
    listed = b"".join(b"\x0a" + bytes([len(piece)]) + piece for piece in encoded)
    return listed + b"\x12\x02\x18\x02" + b"\x1a\x02\x20\x00"


def expressions() -> list[bytes]:
    """What cuts text into words, each with a text after a line break."""
    patterns = {pattern for pre in PRE_TOKENIZERS.values() for pattern in pre.patterns if len(pattern) < 400}
    return [f"{pattern}\nab 12 'll\n  x".encode() for pattern in sorted(patterns)]
