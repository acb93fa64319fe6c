"""The artifact's weights, counted."""

from __future__ import annotations

from math import prod

from blockexport.compare.check import CheckResult, Verdict, check
from blockexport.compare.context import CheckContext
from blockexport.models.arithmetic import count_parameters
from blockexport.models.tensor_names import expected_tensors


def _no_file(context: CheckContext) -> str | None:
    if context.decoder.foreign is not None:
        return "another tool's file names and lays out its weights in its own way"
    return "this backend runs no file of the bundle" if context.weights is None else None


@check("parameters", "the file's weights against the architecture's arithmetic", order=60, inapplicable=_no_file)
def parameters(context: CheckContext) -> CheckResult:
    """Every weight the architecture has is in the file once, in its shape, and nothing else is."""
    assert context.weights is not None
    found = dict(context.weights())
    wanted = expected_tensors(context.config, headless=context.decoder.headless)
    expected = _expected_count(context)
    count = sum(prod(shape) for shape in found.values())
    complaints = []
    if count != expected:
        complaints.append(f"{count:,} parameters in the file, {expected:,} by the arithmetic")
    complaints += [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    complaints += [f"{name} is no weight of this model" for name in sorted(found.keys() - wanted.keys())]
    complaints += [
        f"{name} is {list(found[name])} and not {list(wanted[name])}"
        for name in sorted(wanted.keys() & found.keys())
        if tuple(found[name]) != tuple(wanted[name])
    ]
    message = "; ".join(complaints) or f"{count:,} parameters, as the arithmetic says"
    figures = {"found": count, "expected": expected}
    return CheckResult("parameters", Verdict.FAIL if complaints else Verdict.PASS, message, figures)


def _expected_count(context: CheckContext) -> int:
    config = context.config
    ends = 1 if config.tie_word_embeddings else 2
    without = ends * config.vocab_size * config.hidden_size if context.decoder.headless else 0
    return count_parameters(config).total - without
