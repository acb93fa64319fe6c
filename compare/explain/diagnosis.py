"""What came of trying the catalogue of defects on an artifact, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass

from blockexport.compare.core.tolerances import RMS_FACTOR
from blockexport.compare.explain.defects import DROPOUT, title_of
from blockexport.models.wording import number


@dataclass(frozen=True)
class TriedDefect:
    """A defect that was tried.

    Attributes:
        name: of the defect, as in the catalogue.
        cause: what it is, a sentence without full stop.
        scope: in which layers and from which position on; empty when everywhere.
        rms: the artifact's error against the model with this defect.
        floor: that model's own error in the artifact's precision.
        effect: how far the defect moves the logits.
    """

    name: str
    cause: str
    scope: str
    rms: float
    floor: float
    effect: float

    @property
    def title(self) -> str:
        """A few words for it."""
        return title_of(self.name)

    @property
    def sentence(self) -> str:
        """In words."""
        if self.name == DROPOUT:
            return f"likely cause: {self.cause} by {number(self.effect)} rms"
        where = f" ({self.scope})" if self.scope else ""
        return f"likely cause, reproduced to {number(self.rms)} (noise floor {number(self.floor)}): {self.cause}{where}"


@dataclass(frozen=True)
class Diagnosis:
    """What came of trying the catalogue.

    Attributes:
        findings: defects that reproduce the artifact, best first. Those within a small factor of the best cannot be
            told apart from it on these tokens: `alike`.
        too_small: names of defects that move these logits by less than the noise, and so can be neither found nor
            excluded; without those that do not act in these calls at all.
        nearest: the defect that comes closest when none reproduces the artifact; None where that is not close.
        tried: number of defects, each possibly in several scopes.
        error: the artifact's rms error against the model with nothing wrong.
        positions: those whose logits were compared.
    """

    findings: tuple[TriedDefect, ...]
    too_small: tuple[str, ...]
    nearest: TriedDefect | None
    tried: int
    error: float
    positions: tuple[int, ...]

    @property
    def alike(self) -> tuple[TriedDefect, ...]:
        """The best findings, more than one when these tokens do not tell them apart."""
        return tuple(f for f in self.findings if f.rms <= RMS_FACTOR.value * self.findings[0].rms)

    @property
    def sentences(self) -> list[str]:
        """In words."""
        if not self.findings:
            said = [f"none of {self.tried} known defects reproduces these logits{self._near}"]
        else:
            said = [finding.sentence for finding in self.alike]
            if len(said) > 1:
                said.append("these cannot be told apart on the given tokens")
        if self.too_small:
            said.append(f"defects too small to see on these tokens: {', '.join(self.too_small_titles)}")
        return said

    @property
    def too_small_titles(self) -> list[str]:
        """Words for `too_small`."""
        return [title_of(name) for name in self.too_small]

    @property
    def _near(self) -> str:
        if self.nearest is None:
            return ""
        return (
            f"; nearest, but does not reproduce them: {self.nearest.cause} (off by {number(self.nearest.rms)} where "
            f"the model with nothing wrong is off by {number(self.error)}; noise {number(self.nearest.floor)})"
        )
