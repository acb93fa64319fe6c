"""The errors a user is meant to see: one message each, with the value, the limit and the remedy.

Anything else that reaches the command line is a bug of ours.
"""

from __future__ import annotations

from blockexport.models.exit_codes import ExitCode


class BlockexportError(Exception):
    """A known failure. `exit_code` is what the command line returns for it."""

    exit_code = ExitCode.WRONG_USE


class UsageError(BlockexportError):
    """Wrong use or bad input: a flag, a path, a config key, a checkpoint (exit code 2)."""


class NotJudgedError(BlockexportError):
    """The question could not be answered on this machine: no GPU, no source, no kernel (exit code 3)."""

    exit_code = ExitCode.NOT_JUDGED


class DamagedBundleError(BlockexportError):
    """A file of a bundle is not the one that its manifest lists: judged, and found bad (exit code 1)."""

    exit_code = ExitCode.BAD


class RejectedBundleError(BlockexportError):
    """A bundle that was judged and found bad, from which nothing is made (exit code 1)."""

    exit_code = ExitCode.BAD


class CacheLostError(BlockexportError):
    """What held a part of a decoder's cache is gone: every row begins again, after `Decoder.reset`."""


class ArtifactError(BlockexportError):
    """An artifact loads, and a node of its graph fails while it runs: the artifact's fault. `compare` calls it a failed
    check."""
