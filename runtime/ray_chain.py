"""Stages of one model on Ray: each in an actor, on this machine or on others.

Ray places the actors, starts one again that has died, and carries what goes from a stage to the next. The rows of a
call go through the stages in groups, as many as there are stages, so that each has one to work on.

A cache dies with its actor. So that no call runs on what is left, each carries the number of the `reset` that made
the caches: an actor that was not there then refuses it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blockexport.export.bundle.chain import read_chain_or_whole
from blockexport.export.bundle.manifest import MANIFEST, sha256_of
from blockexport.models.checkpoints.stage_checkpoint import joined_config
from blockexport.models.errors import BlockexportError, CacheLostError, NotJudgedError, UsageError
from blockexport.models.interface import Ends, Interface
from blockexport.runtime.decoder import Decoder
from blockexport.runtime.open import open_decoder
from blockexport.runtime.threads import chosen_threads, use_threads

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
os.environ.setdefault("RAY_worker_niceness", "0")  # of a Ray of our own; 15 by default, so that all else goes first
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of calls that were on their way when an actor died

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

LOCAL = "local"
STORE_BYTES = 256 << 20  # of a Ray of our own: some chunks of hidden states at once
PATIENCE = 300.0  # seconds for Ray to place all actors, and for them to read their weights


class HostedStage:
    """What an actor does. It reads its bundle with the first `reset`: again, where Ray has started it again."""

    def __init__(self, folder: Path, digest: str, threads: int, how: Mapping[str, Any]) -> None:
        self._folder, self._digest, self._threads, self._how = folder, digest, threads, dict(how)
        self._decoder: Decoder | None = None
        self._life = 0

    @ray.method(max_task_retries=-1)  # type: ignore[untyped-decorator]
    def reset(self, life: int, rows: int) -> tuple[Interface, int | None, int]:
        """Empty caches of so many rows; the stage's interface, `most_slots` and `held_slots`.

        Raises:
            UsageError: the bundle on this machine is another one than the caller's, or as `open_decoder`.
        """
        if self._decoder is None:
            found = sha256_of(self._folder / MANIFEST) if (self._folder / MANIFEST).is_file() else "none"
            if found != self._digest:
                raise UsageError(
                    f"{self._folder} on {ray.util.get_node_ip_address()} is not the bundle that the server was given: "
                    f"its {MANIFEST} has the SHA-256 {found} and should have {self._digest}. Have the same bundles in "
                    "the same folder on every machine"
                )
            use_threads(self._threads)
            self._decoder = open_decoder(self._folder, **self._how)
        if life > self._life:  # Ray may repeat an earlier one after it
            self._decoder.reset(rows)
            self._life = life
        return self._decoder.interface, self._decoder.most_slots, self._decoder.held_slots

    def run(
        self, life: int, rows: range, passed: NDArray[np.uint8], position_ids_BS: NDArray[np.int64], last: bool
    ) -> NDArray[np.uint8]:
        """What the stage gives for some rows, of each row's last token alone with `last`."""
        decoder = self._living(life)
        positions_BS = torch.from_numpy(position_ids_BS.copy())  # what Ray hands over may not be written
        whole = len(rows) == decoder.batch_size
        reached = int(positions_BS[:, 0].max()) + positions_BS.shape[1]
        decoder.make_room(min(reached, decoder.max_sequence_length))
        kind = torch.int64 if decoder.interface.ends.from_ids else decoder.dtype
        with contextlib.nullcontext() if whole else decoder._alone(rows):
            outputs = decoder._call(torch.from_numpy(passed.copy()).view(kind), positions_BS)
        if last:  # padding has the position of the last token, and comes after it
            outputs = outputs[torch.arange(len(rows)), positions_BS.argmax(1)][:, None]
        return _packed(outputs)

    def clear_row(self, life: int, row: int) -> None:
        """See `Decoder.clear_row`."""
        self._living(life).clear_row(row)

    def _living(self, life: int) -> Decoder:
        if self._decoder is None or life != self._life:
            raise CacheLostError(f"the stage {self._folder.name} was started again")
        return self._decoder


class RayChain(Decoder):
    """The decoder of a model whose stages, or whose only bundle, are in actors.

    Args:
        folders: the stages in their order, or one whole bundle: the same on each machine that Ray may choose.
        threads: of each actor, for which Ray reserves as many processors.
        last_logits_only: bring back the logits of each row's last token alone, instead of [B, S, V].
        how: see `open_decoder`.

    Raises:
        UsageError: see `open_chain`; another bundle on the machine of an actor.
        NotJudgedError: Ray has no place for all actors.
    """

    def __init__(self, folders: Sequence[Path], threads: int, *, last_logits_only: bool = False, **how: Any) -> None:
        manifests = read_chain_or_whole(folders)
        folders = [folder.resolve() for folder in folders]
        actor = ray.remote(HostedStage).options(
            num_cpus=threads, max_restarts=-1, scheduling_strategy="SPREAD", max_concurrency=1
        )
        self.stages = [actor.remote(one, sha256_of(one / MANIFEST), threads, how) for one in folders]
        self._first_row, self._life = 0, 0
        try:
            opened = self._begin(1)
        except GetTimeoutError as error:
            self.close()
            raise NotJudgedError(f"Ray has not started {len(folders)} stages in {PATIENCE:g} s: {_places()}") from error
        except BlockexportError:
            self.close()
            raise
        ends = Ends.LAST_LOGITS if last_logits_only else Ends.LOGITS
        self.interface = replace(opened[0][0], config=joined_config([one.config for one in manifests]), ends=ends)
        self.most_slots = min(most or one.max_sequence_length for one, most, _ in opened)
        self._held = self._held_first = opened[0][2]
        self.lengths_B = torch.zeros(1, dtype=torch.int64)

    @property
    def held_slots(self) -> int:
        """See `Decoder.held_slots`."""
        return self._held

    def cache(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Not to be had: it is in the actors. Raises UsageError."""
        raise UsageError("the cache of a chain on Ray is in its actors: open_chain has it in this process")

    def clear_row(self, row: int) -> None:
        """See `Decoder.clear_row`. What is run after it finds it done, or the cache lost."""
        for stage in self.stages:
            stage.clear_row.remote(self._life, row)

    def close(self) -> None:
        """End the actors."""
        for stage in self.stages:
            ray.kill(stage)

    def _begin(self, batch_size: int) -> list[tuple[Interface, int | None, int]]:
        self._life += 1
        opened: list[tuple[Interface, int | None, int]]
        opened = _got([stage.reset.remote(self._life, batch_size) for stage in self.stages])
        return opened

    def _allocate(self, batch_size: int) -> None:
        # What is not done in time is done before anything else is, or the next call tells the loss.
        with contextlib.suppress(GetTimeoutError, CacheLostError):
            self._begin(batch_size)
        self._held = self._held_first

    @contextlib.contextmanager
    def _alone(self, rows: range) -> Iterator[None]:
        lengths_B = self.lengths_B
        self._first_row, self.lengths_B = rows.start, lengths_B[rows.start : rows.stop]
        try:
            yield
            lengths_B = lengths_B.index_copy(0, torch.arange(rows.start, rows.stop), self.lengths_B)
        finally:
            self._first_row, self.lengths_B = 0, lengths_B

    def _run(self, inputs: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        self._held = max(self._held, int(position_ids_BS[:, 0].max()) + position_ids_BS.shape[1])
        count = inputs.shape[0]
        groups = min(count, len(self.stages))
        coming = []
        for start, stop in pairwise(count * i // groups for i in range(groups + 1)):
            rows = range(self._first_row + start, self._first_row + stop)
            passed: Any = _packed(inputs[start:stop])
            for stage in self.stages:
                last = self.one_a_row and stage is self.stages[-1]
                passed = stage.run.remote(self._life, rows, passed, position_ids_BS[start:stop].numpy(), last)
            coming.append(passed)
        return torch.cat([torch.from_numpy(one.copy()).view(self.dtype) for one in _got(coming)])


@contextlib.contextmanager
def connected(address: str, actors: int, threads: int | None = None) -> Iterator[int]:
    """Be connected to Ray; gives how many threads each actor may have.

    Args:
        address: `local` starts a Ray of its own for as long as this lasts, on this machine; anything else is the
            address of one that runs, as `ray start --head` says it, or `auto`.
        actors: so many are to be started.
        threads: of each; None divides the processors among them.

    Raises:
        UsageError: no Ray answers at this address.
        NotJudgedError: it has fewer processors than the actors ask for.
    """
    handler = signal.getsignal(signal.SIGTERM)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:
            each = threads or max(1, chosen_threads(None) // actors)
            ray.init(LOCAL, num_cpus=each * actors, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
        else:
            ray.init(address, **quiet)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"--ray {address}: {error}. Give the address of a Ray that runs, or `{LOCAL}`") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray takes it, and the end is not Ray's to choose
    try:
        if address != LOCAL:
            processors = int(ray.cluster_resources().get("CPU", 0))
            each = threads or max(1, processors // actors)
            if each * actors > processors:
                raise NotJudgedError(f"{actors} actors of {each} threads do not fit: {_places()}")
        yield each
    finally:
        ray.shutdown()


def _places() -> str:
    has, free = ray.cluster_resources(), ray.available_resources()
    return f"this Ray has {has.get('CPU', 0):g} processors, {free.get('CPU', 0):g} of them free"


def _packed(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Its bytes: Ray copies none of an array, and NumPy lacks bfloat16. The last axis counts bytes."""
    packed: NDArray[np.uint8] = tensor.contiguous().view(torch.uint8).numpy()
    return packed


def _got(references: list[Any]) -> Any:
    """What actors have returned.

    Raises:
        GetTimeoutError: not in time.
        CacheLostError: an actor, or what was on its way, is gone.
        Exception: what an actor has raised.
    """
    try:
        return ray.get(references, timeout=PATIENCE)
    except GetTimeoutError:
        raise
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, RayError) or not isinstance(cause, Exception):
            raise CacheLostError("the process of a stage has ended") from error
        raise cause from None
