"""A draft by its name, as the command takes it."""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.errors import UsageError
from blockexport.runtime.backends import backend_named
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.speculation import NGRAM, Draft, ModelDraft, NgramDraft


def open_draft(name: str, decoder: Decoder, tokenizer: BundleTokenizer, backend: str, *, exact: bool = False) -> Draft:
    """What proposes tokens to `decoder`.

    Args:
        name: `ngram`, or the folder of a bundle.
        decoder: the large model.
        tokenizer: its tokenizer.
        backend: what runs the bundle.
        exact: as for `open_decoder`.

    Raises:
        UsageError: the folder is not a bundle, cannot be run on the backend, or has another vocabulary.
    """
    if name == NGRAM:
        return NgramDraft()
    folder = Path(name)
    manifest = read_manifest(folder)
    difference = tokenizer.first_difference(BundleTokenizer(folder))
    if difference is not None:
        raise UsageError(
            f"the draft {folder} has another vocabulary than the model: the token {difference}. Use a smaller model of "
            "the same family and tokenizer, or --draft ngram"
        )
    built_in = "cuda" in backend_named(backend).devices  # an engine has the slots it was built with
    slots = None if built_in else min(decoder.max_sequence_length, manifest.rope_table_rows)
    return ModelDraft(open_decoder(folder, backend, max_sequence_length=slots, exact=exact), decoder.config.vocab_size)
