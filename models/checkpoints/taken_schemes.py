"""How a bundle is to be quantised so that it can take over the codes that a checkpoint has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.quantisation import Quantisation
from blockexport.models.quantised_matrix import QuantisationScheme


def suited(quantisation: Quantisation, checkpoint: Checkpoint, *, block_size_asked: bool) -> Quantisation:
    """What was asked for, with the checkpoint's blocks where none were, and zero points where its codes have them.

    Args:
        quantisation: what was asked for.
        checkpoint: whose codes are to be taken over, if it has any.
        block_size_asked: whether the size of blocks was asked for, and stays.
    """
    entries = checkpoint.entries
    head = entries.get(OUTPUT_HEAD, entries.get(EMBEDDING))
    layers = [entry.codes for name, entry in entries.items() if name not in (EMBEDDING, OUTPUT_HEAD) and entry.codes]

    def of(scheme: QuantisationScheme | None, name: str) -> QuantisationScheme | None:
        entry = head if name == OUTPUT_HEAD else entries.get(name)
        codes = [] if entry is None or entry.codes is None else [entry.codes]
        return scheme and _suited(scheme, codes, block_size_asked)

    return Quantisation(
        _suited(quantisation.layers, layers, block_size_asked),
        of(quantisation.head, OUTPUT_HEAD),
        of(quantisation.embedding, EMBEDDING),
    )


def _suited(
    scheme: QuantisationScheme, stored: Iterable[QuantisationScheme], block_size_asked: bool
) -> QuantisationScheme:
    fitting = [codes for codes in stored if codes.bits <= scheme.bits]
    if fitting and not block_size_asked:
        scheme = replace(scheme, block_size=min(codes.block_size for codes in fitting))
    with_zeros = replace(scheme, zero_points=True)
    return with_zeros if any(codes.zero_points and with_zeros.holds(codes) for codes in fitting) else scheme
