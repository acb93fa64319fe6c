"""Every check, in the order in which they run and are reported."""

from __future__ import annotations

from blockexport.compare.checks.check_batch import batch
from blockexport.compare.checks.check_cached_path import chunked, decode, last_slot, prefill, spread
from blockexport.compare.checks.check_capacity import capacity
from blockexport.compare.checks.check_causality import causality
from blockexport.compare.checks.check_determinism import determinism
from blockexport.compare.checks.check_greedy import greedy
from blockexport.compare.checks.check_growth import growth
from blockexport.compare.checks.check_integers import integers
from blockexport.compare.checks.check_invariance import invariance
from blockexport.compare.checks.check_padding import padding
from blockexport.compare.checks.check_parameters import parameters
from blockexport.compare.checks.check_placement import placement
from blockexport.compare.checks.check_precision import precision
from blockexport.compare.checks.check_serving import serving
from blockexport.compare.checks.check_slots import slots
from blockexport.compare.checks.check_types_and_constants import constants, types
from blockexport.compare.core.check import Check
from blockexport.models.errors import UsageError
from blockexport.models.wording import did_you_mean

ALL_CHECKS: tuple[Check, ...] = (
    prefill,
    decode,
    chunked,
    spread,
    last_slot,
    slots,
    capacity,
    causality,
    padding,
    batch,
    growth,
    serving,
    integers,
    invariance,
    greedy,
    determinism,
    precision,
    parameters,
    types,
    constants,
    placement,
)


def choose_checks(names: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """The checks called `names`; when there are none, all but those that run only when they are asked for.

    Raises:
        UsageError: no check has that name.
    """
    known = [entry.name for entry in ALL_CHECKS]
    for name in names:
        if name not in known:
            raise UsageError(f"no check {name!r}{did_you_mean(name, known)}: there are {', '.join(known)}")
    return tuple(entry for entry in ALL_CHECKS if (entry.name in names if names else not entry.by_name))
