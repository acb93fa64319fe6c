"""How the threads of PyTorch's OpenMP wait for their next piece of work."""

from __future__ import annotations

from collections.abc import MutableMapping

POLICY = "OMP_WAIT_POLICY"
SPINS = "GOMP_SPINCOUNT"
BRIEFLY = "2000"
"""Rounds that a thread spins before it sleeps. Threads that spin for long take each other's cores where a machine is
not idle: SmolLM2's layers, with two threads on two busy cores, took ten to twenty times as long. Threads that sleep at
once are woken some hundred times a token: judging SmolLM2 took 44.0 s on two idle cores, and 41.0 to 42.5 s so."""


def let_wait(environment: MutableMapping[str, str]) -> None:
    """Threads spin briefly, unless the environment says otherwise. OpenMP reads it when PyTorch is loaded."""
    if POLICY not in environment:
        environment[POLICY] = "PASSIVE"
        environment.setdefault(SPINS, BRIEFLY)


def let_be(environment: MutableMapping[str, str]) -> None:
    """Threads wait as they do in other programs."""
    environment.pop(POLICY, None)
    environment.pop(SPINS, None)
