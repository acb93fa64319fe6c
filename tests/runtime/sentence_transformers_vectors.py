"""Embeddings by sentence-transformers itself; run in an environment that has it: SOURCE FOLDER POOLING NORMALIZE.

Saves the model to FOLDER as sentence-transformers does, and to FOLDER/vectors.safetensors the right-padded ids, the
lengths, and the embeddings of the texts.
"""

from __future__ import annotations

import sys

from safetensors.torch import save_file

TEXTS = ["Once upon a time there was a little girl named Lily.", "The cat", "One day, Tom and his dog went. " * 4]
MOST = 40  # tokens, which cut the last text


def main(source: str, folder: str, pooling: str, normalize: str) -> None:
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]
    from sentence_transformers.sentence_transformer import modules as parts  # type: ignore[import-not-found]

    read = parts.Transformer(source)
    read.tokenizer.pad_token, read.tokenizer.padding_side, read.max_seq_length = "<unk>", "right", MOST
    modules = [read, parts.Pooling(64, pooling_mode=pooling), *([parts.Normalize()] if normalize == "yes" else [])]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save(folder)
    given = model.tokenizer(TEXTS, padding=True, truncation=True, max_length=MOST, return_tensors="pt")
    lengths_B, vectors_BD = given["attention_mask"].sum(1), model.encode(TEXTS, convert_to_tensor=True)
    found = {"ids": given["input_ids"], "lengths": lengths_B, "vectors": vectors_BD.contiguous()}
    save_file(found, f"{folder}/vectors.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
