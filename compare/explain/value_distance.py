"""How far a value inside a graph is from eager's, at which token first, and whether it is a multiple of it."""

from __future__ import annotations

import torch


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Length of the difference over the length of `want`; for masks the share of entries that differ; infinite where
    shapes have nothing to do with each other."""
    if got.numel() != want.numel():
        return float("inf")
    got = aligned(got, want)
    if not want.is_floating_point():
        return float((got != want).double().mean())
    size = float(want.double().norm())
    return float((got.double() - want.double()).norm()) / (size or 1.0)


def aligned(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """A value in the shape of eager's, which has as many numbers."""
    if got.shape == want.shape:
        return got
    if got.ndim == 4 and got.transpose(1, 2).shape == want.shape:
        return got.transpose(1, 2)
    return got.reshape(want.shape)


def first_position(got: torch.Tensor, want: torch.Tensor, limit: float, call: range) -> int:
    """The first token's position whose share of a difference is over the limit; of a cache, the first such slot."""
    axis = 0 if want.ndim == 2 else 2  # [T, D], [B, N, S, H], [B, K, M, H] or [B, 1, S, M]
    wide, eager = (x.double().movedim(axis, 0).flatten(1) for x in (got, want))
    error_T, size = (wide - eager).norm(dim=1), float(eager.norm()) / len(eager) ** 0.5
    outside_T = ~(error_T <= limit * (size or 1.0))
    first = int(outside_T.int().argmax()) if bool(outside_T.any()) else int(error_T.argmax())
    if want.ndim == 4 and len(eager) != len(call):  # slots, of which a call may have written a neighbour's
        return min(max(first, call.start), call.stop - 1)
    return call.stop - len(eager) + first  # with the last logits only, the head's come from the end of the call


def times_of(got: torch.Tensor, want: torch.Tensor, limit: float) -> float | None:
    """The factor between a value and eager's, where there is one but for noise."""
    if not want.is_floating_point() or not bool(got.isfinite().all() and want.isfinite().all()):
        return None
    given, eager = got.double().flatten(), want.double().flatten()
    size = float(eager @ eager)
    factor = float(given @ eager) / size if size else 0.0
    left = float((given - factor * eager).norm())
    return factor if left <= limit * float(given.norm()) and factor else None
