"""`blockexport diff`: what differs between two bundles?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockexport.cli import console, options
from blockexport.models.exit_codes import ExitCode
from blockexport.models.wording import listed, number, one_line, plural

if TYPE_CHECKING:
    from blockexport.compare.diff_bundles import BundleDifference

SHOWN = 20  # of nodes and of tensors, in text


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A bundle.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another bundle.")],
    max_memory: options.MaxMemory = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Tell what differs between two bundles: versions, config, files, graph, weights, engines, and what they compute.

    Nodes and tensors are compared by their names, weights value by value. Where graph or weights differ, both bundles
    are run on the same tokens, and the difference of their logits is shown beside the noise of the precision that their
    reports measured. Files are taken for what the manifests say: `blockexport verify` checks that. Exit code 0: the
    same, 1: something differs.

    Example: blockexport diff smollm2 smollm2-int4
    """
    from dataclasses import asdict

    from blockexport.compare.diff_bundles import diff_bundles

    memory = options.memory_bytes(max_memory)
    with console.progress_bar(quiet=quiet or as_json) as progress:
        found = diff_bundles(first, second, max_memory=memory, progress=progress)
    if as_json:
        console.print_json({"first": str(first), "second": str(second), **_finite(asdict(found))})
        return found.exit_code
    out = console.stdout_console()
    for line in _lines(found):
        out.print(one_line(line), soft_wrap=True)
    if found.exit_code is ExitCode.GOOD:
        out.print(f"{first} and {second} are the same", soft_wrap=True)
    return found.exit_code


def _lines(found: BundleDifference) -> Iterator[str]:
    for one in found.values:
        if one.first is None or one.second is None:
            yield f"{one.about} {one.name}: only in the {'second' if one.first is None else 'first'}"
        elif one.about == "file":
            yield f"file {one.name}: differs"
        else:
            yield f"{one.about} {one.name}: {_short(one.first)} and {_short(one.second)}"
    if found.graph is not None:
        for names, words in ((found.graph.removed, "only in the first"), (found.graph.added, "only in the second")):
            if names:
                yield f"graph: {plural(len(names), 'node')} {words}: {listed(names)}"
        yield from _some([f"graph {name}: {clause}" for name, clause in found.graph.changed.items()], "changed nodes")
    for names, words in ((found.only_first, "only in the first"), (found.only_second, "only in the second")):
        if names:
            yield f"weights: {plural(len(names), 'tensor')} {words}: {listed(names)}"
    tensors = sorted(found.tensors, key=lambda one: -one.relative)
    yield from _some([f"weights {one.name}: {_by_how_much(one)}" for one in tensors], "tensors that differ less")
    if (run := found.numerics) is not None:
        floor = "" if run.floor is None else f", {number(run.rms / run.floor)} times the noise of the precision"
        yield (
            f"logits at {plural(run.positions, 'position')}: root mean square of the difference {number(run.rms)}"
            f"{floor}; largest {number(run.largest)}; mean KL {number(run.kl_mean)} nats; the same likeliest token at "
            f"{run.same_token:.1%}"
        )
    if found.not_compared is not None:
        yield f"logits were not compared: {found.not_compared}"


def _by_how_much(one: Any) -> str:
    form = "" if one.form is None else f"{one.form}; "
    if not one.count:
        return one.form or ""
    return (
        f"{form}{one.unequal:,} of {one.count:,} values, by {number(one.largest)} at most, {number(one.relative)} of "
        "their root mean square"
    )


def _some(lines: list[str], what: str) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN:,} more {what}: --json lists all"


def _short(value: Any) -> str:
    from blockexport.models.strict_json import shown

    return shown(value)


def _finite(value: Any) -> Any:
    """Plain JSON: NaN and infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
