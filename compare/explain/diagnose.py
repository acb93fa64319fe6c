"""Which mistake does an artifact make? Each defect of the catalogue is tried in eager, on the artifact's own calls.

A defect is named when the artifact agrees with the model that has it as well as a good artifact agrees with the good
model: its error against the defective model in float64 lies within the noise floor, which is the defective model's own
error in the artifact's precision: of one run, or of several that round differently where one does not suffice. Those
of a defect that itself rounds coarsely (softmax in half) differ by more: one value over the edge of its rounding, in
the artifact and not in eager, is a matter of luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from blockexport.compare.core.cached_path import Case
from blockexport.compare.core.defect import Defect, own_positions
from blockexport.compare.core.evidence import Evidence
from blockexport.compare.core.logit_distance import measure_distances
from blockexport.compare.core.noise import floor_of
from blockexport.compare.core.nudge import RUNS, LargeNudge, Nudge
from blockexport.compare.core.tolerances import EXPLAINED, MAX_FACTOR, NAMED_FACTOR, RMS_FACTOR
from blockexport.compare.explain.defects import DROPOUT, DROPOUT_CAUSE, catalogue
from blockexport.compare.explain.diagnosis import Diagnosis, TriedDefect
from blockexport.compare.explain.graph_values import DOUBT
from blockexport.compare.explain.screen import Specimen, plausible, screen, share_of, usual_share

NEAR = 0.1  # of the artifact's error: a defect that leaves more is no hint
CANDIDATES = 6  # defects that get as far as float64
SLIGHT = 4.0  # times the noise of one layer: a defect that moves it by less may be too small to see in the logits
ACROSS = 24  # calls in which layers that read each other's caches are tried
LOGITS = 1 << 27  # numbers of logits held at a time: a few positions of a large vocabulary, all of a small one


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
        misread: caches that layers do not take from themselves, as a defect; None where each takes its own.
        one_token: the artifact's graph takes single tokens, so a longer call is several.
    """

    layers: frozenset[int] | None = None
    mapping: tuple[int, ...] | None = None
    site: str | None = None
    times: float | None = None
    call: int | None = None
    specimen: Specimen | None = None
    ends: bool = False
    misread: Defect | None = None
    one_token: bool = False


def diagnose(evidence: Evidence, hints: Hints | None = None) -> Diagnosis:
    """Try every defect and keep those that reproduce the artifact.

    Args:
        evidence: what the artifact said.
        hints: see `Hints`.
    """
    return _Trial(evidence, hints or Hints()).run()


@dataclass
class _Tried:
    """What came of trying defects: those held against the artifact, and the names of those too small to see."""

    judged: list[TriedDefect]
    small: set[str]


@dataclass
class _Trial:
    evidence: Evidence
    hints: Hints

    def run(self) -> Diagnosis:
        config, hints, ends = self.evidence.checkpoint.config, self.hints, self.evidence.interface.ends
        width, guess = self.evidence.outputs_PV.shape[-1], 2 * len(catalogue(config, ends=ends)) + 2
        self.evidence = self.evidence.thinned(max(4, LOGITS // (width * guess)))
        late = self._first_late_position()
        defects = catalogue(config, position=late, mapping=hints.mapping, site=hints.site, times=hints.times, ends=ends)
        error = _rms(self.evidence.outputs_PV, self.evidence.exact_PV)
        tried = self._across(hints.misread)
        if not any(map(_named, tried.judged)):
            more = self._screened(hints.specimen, defects, late) if hints.specimen else self._all(defects, late)
            tried = _Tried(tried.judged + more.judged, more.small)
        named = self._dropout() + sorted(_broadest(list(filter(_named, tried.judged))), key=lambda found: found.rms)
        near = [finding for finding in tried.judged if not named and finding.rms <= NEAR * error]
        nearest = min(near, key=lambda finding: finding.rms, default=None)
        small, positions = tuple(sorted(tried.small)), tuple(self.evidence.positions)
        count = len(defects) + (hints.misread is not None) + 1
        return Diagnosis(tuple(named), small, nearest, count, error, positions)

    def _across(self, misread: Defect | None) -> _Tried:
        """The layers reading each other's caches, in the first calls: each is run with every layer's weights anew."""
        if misread is None:
            return _Tried([], set())
        calls = self.evidence.calls
        if self.hints.one_token:
            calls = [range(position, position + 1) for position in range(calls[-1].stop)]
        stops = [call.stop for call in calls]
        first = min(self.evidence.positions)
        last = max(ACROSS, next(i for i, stop in enumerate(stops) if stop > first) + 1)
        calls = calls[:last]
        kept = [i for i, position in enumerate(self.evidence.positions) if position < calls[-1].stop]
        trial = _Trial(replace(self.evidence.at(kept), calls=calls), self.hints)
        # Where the prompt has a graph of its own, the first step still finds what that has left in good order.
        cases = [Case(misread), *(Case(misread, None, call.start) for call in calls[2:3])]
        return _Tried(trial._judge(cases), set())

    def _all(self, defects: Sequence[Defect], late: int | None) -> _Tried:
        """Every defect in the whole model."""
        if self.hints.ends:
            defects = [defect for defect in defects if not defect.in_blocks and not defect.reorders]
        cases = [case for defect in defects for case in self._scopes(defect, late)]
        outputs = self._quickly(cases)
        left = [self._left(case, out) for case, out in zip(cases, outputs, strict=False)]
        order = sorted(range(len(cases)), key=lambda i: left[i])
        close = [i for i in order if left[i] <= EXPLAINED.value][:CANDIDATES]
        return _Tried(self._judge([cases[i] for i in close]), self._small(cases, outputs))

    def _screened(self, specimen: Specimen, defects: Sequence[Defect], late: int | None) -> _Tried:
        """In the whole model only what would make the first wrong layer what it is, up to the first that is named."""
        traces = screen(specimen, self.evidence, defects)
        slight = [case for t in traces if t.effect <= SLIGHT for case in self._scopes(t.defect, late)]
        tried = _Tried([], self._small(slight, self._quickly(slight)))
        for group in plausible(traces, EXPLAINED.value, CANDIDATES):
            tried.judged += self._judge([case for defect in group for case in self._scopes(defect, late)])
            if any(map(_named, tried.judged)):
                break
        return tried

    def _quickly(self, cases: Sequence[Case]) -> list[torch.Tensor]:
        """Outputs in float32: half precision is slow on a CPU, and who comes close can be told without it. Those with
        nothing wrong come last."""
        return self._run(torch.float32, [*cases, Case()])

    def _run(self, dtype: torch.dtype, cases: Sequence[Case]) -> list[torch.Tensor]:
        path, positions, progress = self.evidence.path(dtype), self.evidence.positions, self.evidence.progress
        if any(case.defect.reads for case in cases):
            return [path.run_by_call(case, positions, progress) for case in cases]
        return path.run(cases, positions, progress)

    def _small(self, cases: Sequence[Case], outputs: Sequence[torch.Tensor]) -> set[str]:
        """Defects that move the logits, and by no more than the noise: what changes no bit does not act in these calls
        (a view in place of a transpose changes nothing of a single token)."""
        *outputs, clean = outputs
        return {
            case.defect.name
            for case, out in zip(cases, outputs, strict=True)
            if _rms(out, self.evidence.exact_PV) <= self.evidence.floor.rms and not torch.equal(out, clean)
        }

    def _first_late_position(self) -> int | None:
        """Where the first call starts that goes wrong, when that is not the very first call."""
        if self.hints.call is not None:
            return self.hints.call if self.hints.call > self.evidence.calls[0].start else None
        wrong = self.evidence.wrong
        starts = [call.start for call in self.evidence.calls if wrong and wrong[0] in call]
        return starts[0] if starts and starts[0] > self.evidence.calls[0].start else None

    def _scopes(self, defect: Defect, late: int | None) -> list[Case]:
        if not defect.in_blocks:
            # These show at every position; where the first call was right they are excluded.
            return [Case(defect)] if late is None or defect.positions is not own_positions else []
        first = late or 0
        cases = [Case(defect, None, first)]
        if self.hints.layers is not None:
            cases.append(Case(defect, self.hints.layers, first))
        return cases

    def _judge(self, cases: Sequence[Case]) -> list[TriedDefect]:
        """Hold the artifact against each candidate in float64, and the candidate's own noise beside it."""
        if not cases:
            return []
        wides = zip(cases, self._run(torch.float64, cases), strict=True)
        kept = [(case, wide) for case, wide in wides if self._left(case, wide) <= EXPLAINED.value]
        outputs = self._run(self.evidence.dtype, [case for case, _ in kept]) if kept else []
        return [self._held(case, output, wide) for (case, wide), output in zip(kept, outputs, strict=True)]

    def _held(self, case: Case, output: torch.Tensor, wide: torch.Tensor) -> TriedDefect:
        """The artifact against a candidate: against the noise of its one run, or of more where that leaves a doubt."""
        floor, effect = self._floor([output], wide), _rms(wide, self.evidence.exact_PV)
        rms = _rms(self.evidence.outputs_PV, wide)
        tried = TriedDefect(case.defect.name, case.defect.cause, case.scope, rms, floor, effect)
        if _named(tried) or not (case.defect.coarse or rms <= DOUBT * NAMED_FACTOR.value * floor):
            return tried
        kind = LargeNudge if case.defect.coarse else Nudge
        more = self._run(self.evidence.dtype, [replace(case, nudge=kind(seed)) for seed in range(RUNS)])
        return replace(tried, floor=self._floor([output, *more], wide))

    def _floor(self, runs: Sequence[torch.Tensor], wide: torch.Tensor) -> float:
        errors = [measure_distances(run, wide, self.evidence.positions) for run in runs]
        return floor_of(errors, self.evidence.dtype).rms

    def _left(self, case: Case, output: torch.Tensor) -> float:
        """The share of the artifact's error that a defect leaves; infinite where it leaves NaN.

        Where it rounds, what falls over an edge at some positions, in the artifact or in eager, must not hide that it
        explains all others: there the median over the positions may speak for it.
        """
        artifact, exact = self.evidence.outputs_PV, self.evidence.exact_PV
        shares = [share_of(_rms(artifact, output), _rms(artifact, exact))]
        if case.defect.coarse:
            shares.append(usual_share(artifact, output, exact))
        return min(shares)

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


def _named(finding: TriedDefect) -> bool:
    return finding.rms <= NAMED_FACTOR.value * finding.floor


def _broadest(findings: Sequence[TriedDefect]) -> list[TriedDefect]:
    """Each defect once: in the widest scope that does as well as its best."""
    kept = []
    for name in dict.fromkeys(finding.name for finding in findings):
        same = [finding for finding in findings if finding.name == name]
        best = min(finding.rms for finding in same)
        kept.append(min((f for f in same if f.rms <= RMS_FACTOR.value * best), key=lambda finding: len(finding.scope)))
    return kept


def _rms(left: torch.Tensor, right: torch.Tensor) -> float:
    """Root mean square difference; infinite where either is not finite."""
    value = float((left.double() - right.double()).square().mean().sqrt())
    return value if value == value else float("inf")
