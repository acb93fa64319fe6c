"""Which mistake does an artifact make? Each defect of the catalogue is tried in eager, on the artifact's own calls.

A defect is named when the artifact agrees with the model that has it as well as a good artifact agrees with the good
model: its error against the defective model in float64 lies within the noise floor, which is the defective model's own
error in the artifact's precision. A defect that itself rounds coarsely (softmax in half) gets the floor it needs from
several runs: one value over the edge of its rounding, in the artifact and not in eager, is a matter of luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockexport.compare.core.cached_path import CachedPath, Case
from blockexport.compare.core.defect import Defect
from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.logit_distance import measure
from blockexport.compare.core.noise import floor_of
from blockexport.compare.core.tolerances import EXPLAINED, MAX_FACTOR, NAMED_FACTOR, RMS_FACTOR
from blockexport.compare.explain.defect_titles import title_of
from blockexport.compare.explain.defects import DROPOUT, DROPOUT_CAUSE, catalogue
from blockexport.compare.explain.screen import Specimen, plausible, screen
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.progress import Progress, silent

NEAR = 0.1  # of the artifact's error: a defect that leaves more is no hint
CANDIDATES = 6  # defects that get as far as float64
NUDGES = 4  # further runs that show the noise of a defect that rounds
SLIGHT = 4.0  # times the noise of one layer: a defect that moves it by less may be too small to see in the logits
LOGITS = 1 << 27  # numbers of logits held at a time: a few positions of a large vocabulary, all of a small one


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
            return f"likely cause: {self.cause} by {self.effect:.1e} rms"
        where = f" ({self.scope})" if self.scope else ""
        return f"likely cause, reproduced to {self.rms:.1e} (noise floor {self.floor:.1e}): {self.cause}{where}"


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
            f"; nearest, but does not reproduce them: {self.nearest.cause} (off by {self.nearest.rms:.1e} where the "
            f"model with nothing wrong is off by {self.error:.1e}; noise {self.nearest.floor:.1e})"
        )


@dataclass(frozen=True)
class Hints:
    """What Locate saw, to narrow the search.

    Attributes:
        layers: the layers that differ by themselves; None when it is not known, or all do.
        mapping: whose weights each layer uses; None when it is not known.
        site: where the first difference is; None when it is not known.
        times: the factor between what is there and what should be; None where there is none.
        call: the first position of the call that differs first; None when it is not known.
        specimen: the first layer that differs; None when it is not known.
        ends: no layer differs: what is wrong comes before the first or after the last.
    """

    layers: frozenset[int] | None = None
    mapping: tuple[int, ...] | None = None
    site: str | None = None
    times: float | None = None
    call: int | None = None
    specimen: Specimen | None = None
    ends: bool = False


def diagnose(
    checkpoint: Checkpoint, evidence: Evidence, hints: Hints | None = None, progress: Progress = silent
) -> Diagnosis:
    """Try every defect and keep those that reproduce the artifact.

    Args:
        checkpoint: the source.
        evidence: what the artifact said.
        hints: see `Hints`.
        progress: told of the layers done.
    """
    trial = _Trial(checkpoint, evidence, hints or Hints(), progress)
    return trial.run()


@dataclass
class _Tried:
    """What came of trying defects: those held against the artifact, and the names of those too small to see."""

    judged: list[TriedDefect]
    small: set[str]


@dataclass
class _Trial:
    checkpoint: Checkpoint
    evidence: Evidence
    hints: Hints
    progress: Progress
    noise: float = 0.0  # eager's rms error
    error: float = 0.0  # the artifact's

    def run(self) -> Diagnosis:
        width = self.evidence.outputs_PV.shape[-1]
        guess = 2 * len(catalogue(self.checkpoint.config)) + 2
        self.evidence = self.evidence.thinned(max(4, LOGITS // (width * guess)))
        clean, exact = self._clean()
        late = self._first_late_position(exact, clean)
        hints = self.hints
        defects = catalogue(
            self.checkpoint.config, position=late, mapping=hints.mapping, site=hints.site, times=hints.times
        )
        self.noise, self.error = _rms(clean, exact), _rms(self.evidence.outputs_PV, exact)
        tried = self._screened(defects, late, exact) if hints.specimen else self._all(defects, late, exact)
        named = [f for f in tried.judged if f.rms <= NAMED_FACTOR.value * f.floor]
        named = self._dropout() + sorted(_broadest(named), key=lambda finding: finding.rms)
        near = [finding for finding in tried.judged if not named and finding.rms <= NEAR * self.error]
        nearest = min(near, key=lambda finding: finding.rms, default=None)
        small, positions = tuple(sorted(tried.small)), tuple(self.evidence.positions)
        return Diagnosis(tuple(named), small, nearest, len(defects) + 1, self.error, positions)

    def _all(self, defects: Sequence[Defect], late: int | None, exact: torch.Tensor) -> _Tried:
        """Every defect in the whole model."""
        if self.hints.ends:
            defects = [defect for defect in defects if not defect.in_blocks and not defect.reorders]
        cases = [case for defect in defects for case in self._scopes(defect, late)]
        outputs = self._quickly(cases)
        left = [_left(case, self.evidence.outputs_PV, out, exact) for case, out in zip(cases, outputs, strict=False)]
        order = sorted(range(len(cases)), key=lambda i: left[i])
        close = [i for i in order if left[i] <= EXPLAINED.value][:CANDIDATES]
        return _Tried(self._judge([cases[i] for i in close], exact), self._small(cases, outputs, exact))

    def _screened(self, defects: Sequence[Defect], late: int | None, exact: torch.Tensor) -> _Tried:
        """In the whole model only what would make the first wrong layer what it is, up to the first that is named."""
        assert self.hints.specimen is not None
        traces = screen(self.hints.specimen, self.checkpoint, self.evidence, defects, self.progress)
        slight = [case for t in traces if t.effect <= SLIGHT for case in self._scopes(t.defect, late)]
        tried = _Tried([], self._small(slight, self._quickly(slight), exact))
        for group in plausible(traces, EXPLAINED.value, CANDIDATES):
            tried.judged += self._judge([case for defect in group for case in self._scopes(defect, late)], exact)
            if any(finding.rms <= NAMED_FACTOR.value * finding.floor for finding in tried.judged):
                break
        return tried

    def _quickly(self, cases: Sequence[Case]) -> list[torch.Tensor]:
        """Outputs in float32: half precision is slow on a CPU, and who comes close can be told without it. Those with
        nothing wrong come last."""
        return self._path(torch.float32).run([*cases, Case()], self.evidence.positions, self.progress)

    def _small(self, cases: Sequence[Case], outputs: Sequence[torch.Tensor], exact: torch.Tensor) -> set[str]:
        """Defects that move the logits, and by no more than the noise: what changes no bit does not act in these calls
        (a view in place of a transpose changes nothing of a single token)."""
        *outputs, clean = outputs
        return {
            case.defect.name
            for case, out in zip(cases, outputs, strict=True)
            if _rms(out, exact) <= self.noise and not torch.equal(out, clean)
        }

    def _path(self, dtype: torch.dtype) -> CachedPath:
        return self.evidence.path(self.checkpoint, dtype)

    def _clean(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The model with nothing wrong, in the artifact's precision and in float64."""
        own, exact = (self.evidence.sound(self.checkpoint, dtype) for dtype in (self.evidence.dtype, torch.float64))
        return own, exact

    def _first_late_position(self, exact: torch.Tensor, clean: torch.Tensor) -> int | None:
        """Where the first call starts that goes wrong, when that is not the very first call."""
        if self.hints.call is not None:
            return self.hints.call if self.hints.call > self.evidence.calls[0].start else None
        positions = self.evidence.positions
        floor = floor_of([measure(clean, exact, positions)], self.evidence.dtype)
        errors = measure(self.evidence.outputs_PV, exact, positions)
        bad_P = ~(errors.max_P <= MAX_FACTOR.value * floor.max_P)
        wrong = [p for p, bad in zip(positions, bad_P.tolist(), strict=True) if bad]
        starts = [call.start for call in self.evidence.calls if wrong and wrong[0] in call]
        return starts[0] if starts and starts[0] > self.evidence.calls[0].start else None

    def _scopes(self, defect: Defect, late: int | None) -> list[Case]:
        if not defect.in_blocks:
            # These show at every position; where the first call was right they are excluded.
            return [] if late else [Case(defect)]
        first = late or 0
        cases = [Case(defect, None, first)]
        if self.hints.layers is not None:
            cases.append(Case(defect, self.hints.layers, first))
        return cases

    def _judge(self, cases: Sequence[Case], exact: torch.Tensor) -> list[TriedDefect]:
        """Hold the artifact against each candidate in float64, and the candidate's own noise beside it."""
        if not cases:
            return []
        wides = self._path(torch.float64).run(cases, self.evidence.positions, self.progress)
        kept = [
            (case, wide)
            for case, wide in zip(cases, wides, strict=True)
            if _left(case, self.evidence.outputs_PV, wide, exact) <= EXPLAINED.value
        ]
        if not kept:
            return []
        cases, wides = [case for case, _ in kept], [wide for _, wide in kept]
        outputs = self._path(self.evidence.dtype).run(cases, self.evidence.positions, self.progress)
        return [
            TriedDefect(
                name=case.defect.name,
                cause=case.defect.cause,
                scope=case.scope,
                rms=_rms(self.evidence.outputs_PV, wide),
                floor=self._noise(case, output, wide),
                effect=_rms(wide, exact),
            )
            for case, output, wide in zip(cases, outputs, wides, strict=True)
        ]

    def _noise(self, case: Case, output: torch.Tensor, wide: torch.Tensor) -> float:
        """The rms error of a candidate's own runs in the artifact's precision, the largest where there are several."""
        positions, path = self.evidence.positions, self._path(self.evidence.dtype)
        runs = [output]
        if case.defect.coarse:
            runs += [path.run([case], positions, nudge=seed)[0] for seed in range(NUDGES)]
        return floor_of([measure(run, wide, positions) for run in runs], self.evidence.dtype).rms

    def _dropout(self) -> list[TriedDefect]:
        """Randomness between two equal runs, where there is more than rounding could make."""
        repeated = self.evidence.repeated_PV
        if repeated is None:
            return []
        first, second = self.evidence.outputs_PV, repeated
        # NaN is not randomness: a file that overflows does so every time.
        finite = first.isfinite() & second.isfinite()
        if not bool(finite.any()):
            return []
        spread = _rms(first[finite], second[finite])
        size = float(second[finite].double().square().mean().sqrt())
        floor = torch.finfo(self.evidence.dtype).eps * size
        if spread <= MAX_FACTOR.value * floor:
            return []
        return [TriedDefect(DROPOUT, DROPOUT_CAUSE, "", spread, floor, spread)]


def _broadest(findings: Sequence[TriedDefect]) -> list[TriedDefect]:
    """Each defect once: in the widest scope that does as well as its best."""
    kept = []
    for name in dict.fromkeys(finding.name for finding in findings):
        same = [finding for finding in findings if finding.name == name]
        best = min(finding.rms for finding in same)
        kept.append(min((f for f in same if f.rms <= RMS_FACTOR.value * best), key=lambda finding: len(finding.scope)))
    return kept


def _left(case: Case, artifact: torch.Tensor, output: torch.Tensor, exact: torch.Tensor) -> float:
    """The share of the artifact's error that a defect leaves; infinite where it leaves NaN.

    Where it rounds, what falls over an edge at some positions, in the artifact or in eager, must not hide that it
    explains all others: there the median over the positions may speak for it.
    """
    shares = [_share(_rms(artifact, output), _rms(artifact, exact))]
    if case.defect.coarse:
        medians = [(artifact.double() - other.double()).square().mean(-1).sqrt().median() for other in (output, exact)]
        shares.append(_share(*map(float, medians)))
    return min(shares)


def _share(part: float, whole: float) -> float:
    share = part / whole if whole > 0 else float("inf")
    return share if share == share else float("inf")


def _rms(left: torch.Tensor, right: torch.Tensor) -> float:
    """Root mean square difference; infinite where either is not finite."""
    value = float((left.double() - right.double()).square().mean().sqrt())
    return value if value == value else float("inf")
