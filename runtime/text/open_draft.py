"""A draft by its name, as the command takes it."""

from __future__ import annotations

from pathlib import Path

from blockexport.export.bundle.chain import require_whole
from blockexport.export.bundle.manifest import read_manifest
from blockexport.models.errors import UsageError
from blockexport.runtime.backends import backend_named
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer
from blockexport.runtime.text.speculation import NGRAM, Draft, ModelDraft, NgramDraft


def open_draft(
    name: str,
    decoder: Decoder,
    tokenizer: BundleTokenizer,
    backend: str,
    *,
    exact: bool = False,
    device: str = CPU_NAME,
) -> Draft:
    """What proposes tokens to `decoder`.

    Args:
        name: `ngram`, or the folder of a bundle.
        decoder: the large model.
        tokenizer: its tokenizer.
        backend: what runs the bundle.
        exact: as for `open_decoder`.
        device: likewise.

    Raises:
        UsageError: the folder is not a bundle, cannot be run on the backend, or has another vocabulary.
    """
    if name == NGRAM:
        return NgramDraft()
    folder = Path(name)
    manifest = read_manifest(folder)
    require_whole(manifest, folder, "a draft is a whole model")
    difference = tokenizer.first_difference(BundleTokenizer(folder))
    if difference is not None:
        raise UsageError(
            f"the draft {folder} has another vocabulary than the model: the token {difference}. Use a smaller model of "
            "the same family and tokenizer, or --draft ngram"
        )
    slots = None if backend_named(backend).built_slots else min(decoder.max_sequence_length, manifest.rope_table_rows)
    drafting = open_decoder(folder, backend, max_sequence_length=slots, exact=exact, device=device)
    return ModelDraft(drafting, decoder.config.vocab_size)
