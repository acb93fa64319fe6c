"""What is said of a failure, or of a look inside: place and cause."""

from __future__ import annotations

from dataclasses import dataclass

from blockexport.compare.explain.diagnosis import Diagnosis
from blockexport.compare.explain.location import Search
from blockexport.compare.explain.wrong_matrices import WrongMatrices
from blockexport.compare.explain.wrong_slot import WrongSlot


@dataclass(frozen=True)
class Explanation:
    """What Locate and Diagnose say.

    Attributes:
        search: None where there is no graph to look into, or nothing to look for; `note` then says why.
        diagnosis: None where the outputs stay within the floor, so that there is nothing to diagnose.
        note: see `search`.
        where: whose calls were looked at, where they are not those of the judged sequence.
        wrong_slot: the first wrong slot of the cache, where a call before the first wrong output left it.
        file: what the checks of the file's content that failed say, also where nobody asked for those checks, and in
            another tool's file which weights behind the first difference are wrong: causes in themselves.
        remarks: of each other failure why it is not explained.
        weights: the quantised matrices that are not the checkpoint's; None where there are none.
    """

    search: Search | None
    diagnosis: Diagnosis | None
    note: str = ""
    where: str = ""
    wrong_slot: WrongSlot | None = None
    file: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    weights: WrongMatrices | None = None

    @property
    def sentences(self) -> list[str]:
        """In words: the place, then the causes, best first."""
        place = self.search.sentence if self.search is not None else self.note
        said = [f"{self.where}: {place}" if self.where else place] if place else []
        said += [self.wrong_slot.sentence] if self.wrong_slot is not None else []
        said += [self.weights.place] if self.weights is not None else []
        return [*said, *self.cause_sentences, *self.remarks]

    @property
    def cause_sentences(self) -> list[str]:
        """What made matrices wrong; a known defect that reproduces the artifact, or else what the file gives away."""
        named = self.diagnosis is not None and bool(self.diagnosis.findings)
        said = [] if self.weights is None else self.weights.causes
        if self.file and not named:
            return [*said, *(f"likely cause: {message}" for message in self.file)]
        return [*said, *([] if self.diagnosis is None else self.diagnosis.sentences)]
