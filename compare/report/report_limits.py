"""The limits for readers: what each is called and, in a line, what it holds; the evidence is in report.json."""

from __future__ import annotations

from typing import NamedTuple

from blockexport.compare.core.tolerances import TABLE


class Limit(NamedTuple):
    """A row of the table."""

    title: str
    value: float
    line: str
    evidence: str


_WORDS = {
    "rms_factor": ("rms error", "of a check's positions together, over eager's, where many positions bear the error"),
    "rms_luck": (
        "rms error of few positions",
        "over the root of how many positions bear eager's error: added to 1",
    ),
    "max_factor": ("largest error", "at any single position, over eager's there"),
    "tie_factor": ("tie", "another likeliest token, while the reference prefers its own by less than this many floors"),
    "luck": ("least floor of a position", "of the median over the check's positions"),
    "rounding_rms": ("least floor, rms", "of a unit in the last place: what writing the outputs rounded costs"),
    "rounding_max": ("least floor, largest error", "the same, at a single position"),
    "signal": (
        "judgeable",
        "of the spread of the reference's outputs: where such an error would pass, nothing is judged",
    ),
    "unchanged": ("unmoved", "units in the last place by which a value that nothing may move can move"),
    "rope_units": ("RoPE table", "units of float32 by which an entry may differ from this machine's"),
    "site_factor": ("value inside the graph", "its error over eager's in the same layer on the same input"),
    "replayed": ("replay", "of the artifact's error: the replay counts as the artifact up to this distance from it"),
    "named_factor": ("named defect", "the artifact's error against the model with the defect, over that model's noise"),
    "explained": ("explained error", "of the artifact's error: a defect that leaves more is not named"),
}


def limits() -> list[Limit]:
    """Every factor of tolerances.py."""
    return [Limit(_WORDS[name][0], entry.value, _WORDS[name][1], entry.evidence) for name, entry in TABLE.items()]
