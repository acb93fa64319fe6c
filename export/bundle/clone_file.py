"""Copy large files as fast as the file system can, and hash them meanwhile."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from blockexport.export.bundle.manifest import sha256_of
from blockexport.export.output.disk import check_free_space
from blockexport.models.errors import UsageError
from blockexport.models.regular_file import open_regular

_FICLONE = 0x40049409  # linux/fs.h; Python's fcntl has it from 3.13 on


@contextmanager
def clone_files(targets: Mapping[Path, Path]) -> Iterator[Callable[[], Mapping[Path, str]]]:
    """Copy every source to its target on threads of their own, while the body of the `with` does something else.

    A copy shares the source's blocks where the file system can (btrfs, xfs), and is never a link.

    Args:
        targets: source to target; the targets must not exist.

    Yields:
        A function that waits for the copies; the hex sha256 of each, and so of its source, by source.

    Raises:
        UsageError: too little space, or a source that changed meanwhile.
        OSError: reading or writing failed.
    """
    before = {source: _state(source) for source in targets}
    copies = {source: target for source, target in targets.items() if not share_blocks(source, target)}
    if copies:
        check_free_space(next(iter(copies.values())).parent, sum(before[source][0] for source in copies))
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        # Source and copy are the same bytes as long as nobody writes to the source, which is checked at the end; so
        # the hash need not wait for the copy.
        digests = {source: pool.submit(sha256_of, source) for source in targets}
        copying = [pool.submit(shutil.copyfile, source, target) for source, target in copies.items()]

        def finish() -> Mapping[Path, str]:
            for copy in copying:
                copy.result()
            done = {source: digest.result() for source, digest in digests.items()}
            for source in targets:
                if _state(source) != before[source]:
                    raise UsageError(f"{source} was changed while it was copied: try again when nothing writes to it")
            return done

        yield finish
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def share_blocks(source: Path, target: Path) -> bool:
    """Make `target` a copy-on-write clone of `source`; False (and no target) where the file system cannot."""
    if sys.platform != "linux":
        return False
    import fcntl

    with open_regular(source) as readable, target.open("xb") as writable:
        try:
            fcntl.ioctl(writable.fileno(), _FICLONE, readable.fileno())
            return True
        except OSError:
            target.unlink()
            return False
