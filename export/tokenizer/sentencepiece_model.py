"""Read a SentencePiece `tokenizer.model` far enough to rebuild a `tokenizer.json` from it.

GGUF's `llama` tokenizer is a transcript of the same fields, so the result is given in its keys and takes the same way
from there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular

# The few fields that are needed of sentencepiece_model.proto in google/sentencepiece, with its numbers and defaults.
_SCHEMA = """
name: "sentencepiece_model.proto"
message_type {
  name: "Piece"
  field { name: "piece" number: 1 type: TYPE_BYTES }
  field { name: "score" number: 2 type: TYPE_FLOAT }
  field { name: "type" number: 3 type: TYPE_INT32 default_value: "1" }
}
message_type {
  name: "Trainer"
  field { name: "model_type" number: 3 type: TYPE_INT32 default_value: "1" }
  field { name: "unknown_id" number: 40 type: TYPE_INT32 default_value: "0" }
  field { name: "bos_id" number: 41 type: TYPE_INT32 default_value: "1" }
  field { name: "eos_id" number: 42 type: TYPE_INT32 default_value: "2" }
  field { name: "padding_id" number: 43 type: TYPE_INT32 default_value: "-1" }
}
message_type {
  name: "Normalizer"
  field { name: "precompiled_charsmap" number: 2 type: TYPE_BYTES }
  field { name: "add_dummy_prefix" number: 3 type: TYPE_BOOL default_value: "true" }
  field { name: "remove_extra_whitespaces" number: 4 type: TYPE_BOOL default_value: "true" }
}
message_type {
  name: "Model"
  field { name: "pieces" number: 1 type: TYPE_MESSAGE type_name: "Piece" label: LABEL_REPEATED }
  field { name: "trainer" number: 2 type: TYPE_MESSAGE type_name: "Trainer" }
  field { name: "normalizer" number: 3 type: TYPE_MESSAGE type_name: "Normalizer" }
}
"""
_BPE = 2


@cache
def _model() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Model"))


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """The model's pieces, scores, types and special ids as GGUF metadata of a `llama` tokenizer.

    Raises:
        UsageError: not a SentencePiece BPE model, or one that rewrites characters or drops spaces.
    """
    try:
        with open_regular(path) as file:
            model = _model().FromString(file.read())
        tokens = [piece.piece.decode("utf-8") for piece in model.pieces]
    except (DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is no SentencePiece model or is damaged: fetch the file again") from error
    if model.trainer.model_type != _BPE:
        raise UsageError("its model is not BPE (unigram models are not converted)")
    if model.normalizer.precompiled_charsmap:
        raise UsageError("its normaliser rewrites characters, which is not converted")
    # The default is true; Llama's own model switches it off.
    if model.normalizer.remove_extra_whitespaces:
        raise UsageError("its normaliser removes repeated spaces, which is not converted")
    ids = {name: getattr(model.trainer, f"{name}_id") for name in ("unknown", "bos", "eos", "padding")}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [piece.score for piece in model.pieces],
        "tokenizer.ggml.token_type": [piece.type for piece in model.pieces],
        "tokenizer.ggml.add_space_prefix": model.normalizer.add_dummy_prefix,
        **{f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in ids.items() if token_id >= 0},
    }
