"""Which quantised matrices of an artifact are not the checkpoint's, where they are, and which mistake made them so?

The graph is judged on the weights that it has, so that no output shows these: the matrix itself is the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockexport.compare.audits.coded_matrix import CodedCheckpoint
from blockexport.compare.audits.coding_mistakes import MISTAKES, CodingMistake, NamedMistake, mistake_in
from blockexport.compare.explain.sites import LABELS
from blockexport.models.checkpoints.tensor_names import EMBEDDING, OUTPUT_HEAD
from blockexport.models.progress import Progress, counted, silent

SEARCHED = 3  # matrices for which every mistake is tried; for the others those found in these
_ENDS = {EMBEDDING: "embedding", OUTPUT_HEAD: "head"}
_SITES = tuple(LABELS)


@dataclass(frozen=True)
class WrongMatrix:
    """A matrix that is not the checkpoint's.

    Attributes:
        tensor: its name.
        cause: the mistake that, undone, makes it right; None where none does.
    """

    tensor: str
    cause: NamedMistake | None = None

    @property
    def layer(self) -> int | None:
        """None for embedding and head."""
        return None if self.tensor in _ENDS else int(self.tensor.split(".")[2])

    @property
    def site(self) -> str:
        """A key of `LABELS`."""
        return _ENDS.get(self.tensor) or self.tensor.split(".")[-2]

    @property
    def words(self) -> str:
        """The cause, where there is one."""
        return "" if self.cause is None else self.cause.words

    @property
    def place(self) -> str:
        """In words."""
        return LABELS[self.site] if self.layer is None else f"layer {self.layer}, {LABELS[self.site]}"


@dataclass(frozen=True)
class WrongMatrices:
    """All that are wrong, in the order of the forward pass.

    Attributes:
        matrices: at least one.
        total: of how many that are quantised.
    """

    matrices: tuple[WrongMatrix, ...]
    total: int

    @property
    def first(self) -> WrongMatrix:
        """The place that is named."""
        return self.matrices[0]

    @property
    def mistakes(self) -> dict[CodingMistake, list[WrongMatrix]]:
        """Each mistake that explains some of them, and which, in the order in which they are found."""
        found: dict[CodingMistake, list[WrongMatrix]] = {}
        for matrix in self.matrices:
            if matrix.cause is not None:
                found.setdefault(matrix.cause.mistake, []).append(matrix)
        return found

    @property
    def place(self) -> str:
        """Where the first is, in words."""
        count = len(self.matrices)
        more = "" if count == 1 else f", the first of {count:,} such matrices; {self.total:,} are quantised"
        return f"first matrix whose codes are not the checkpoint's: {self.first.place} ({self.first.tensor}){more}"

    @property
    def causes(self) -> list[str]:
        """Each mistake in words, and what none explains."""
        count, said = len(self.matrices), list[str]()
        for matrices in self.mistakes.values():
            where = "" if count == 1 else f" ({_count(len(matrices), count)} matrices; in {matrices[0].place})"
            said.append(f"likely cause, which undone leaves nothing wrong: {matrices[0].words}{where}")
        unknown = [matrix for matrix in self.matrices if matrix.cause is None]
        if unknown:
            said.append(f"none of {len(MISTAKES)} known mistakes explains the codes of {unknown[0].tensor}")
        return said


def wrong_matrices(
    checkpoint: CodedCheckpoint, names: Sequence[str], progress: Progress = silent
) -> WrongMatrices | None:
    """Look at those of the tensors `names` that an artifact has in codes; None where none is."""
    wrong, found = list[WrongMatrix](), list[CodingMistake]()
    there = sorted((name for name in names if name in checkpoint.in_codes), key=_order)
    for i, name in enumerate(counted(there, "explain: wrong matrices", progress)):
        tried = MISTAKES if i < SEARCHED else found
        weight_NK = checkpoint.original.read(name)
        cause = mistake_in(checkpoint.coded(name), weight_NK, checkpoint.rule(name), tried)
        if cause is not None and cause.mistake not in found:
            found.append(cause.mistake)
        wrong.append(WrongMatrix(name, cause))
    return WrongMatrices(tuple(wrong), len(checkpoint.in_codes)) if wrong else None


def _order(name: str) -> tuple[int, int]:
    matrix = WrongMatrix(name)
    layer = matrix.layer if matrix.layer is not None else -1 if name == EMBEDDING else 1 << 30
    return layer, _SITES.index(matrix.site)


def _count(some: int, every: int) -> str:
    return f"all {every:,}" if some == every else f"{some:,} of {every:,}"
