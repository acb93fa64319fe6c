"""Replicas of a model behind Ray Serve: in each a scheduler, and actors for its stages. Ray Serve has the socket, gives
each request to a replica, starts one again that has died, and waits at the end for what has begun."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from starlette.applications import Starlette

from blockexport.models.errors import UsageError
from blockexport.runtime.ray_chain import RayChain
from blockexport.runtime.serving.http_server import KEEP_ALIVE, ServerOptions, application, free_address

NAME = "blockexport"
BESIDE = 8  # requests that ask for no answer, such as /health, for which there is room when the queue is full


class Replica:
    """What Ray Serve starts in a process of its own, and takes requests from."""

    def __init__(self, folders: Sequence[Path], threads: int, options: ServerOptions, how: dict[str, Any]) -> None:
        self._folder, self._options = folders[0], options
        self._decoder = RayChain(folders, threads, last_logits_only=True, **how)

    def __serve_build_asgi_app__(self) -> Starlette:
        """See Ray Serve's `ingress`."""
        return application(self._folder, self._decoder, self._options)


def serve_replicas(
    folders: Sequence[Path],
    replicas: int,
    threads: int,
    options: ServerOptions,
    how: dict[str, Any],
    ready: Callable[[str], None],
) -> None:
    """Serve a model until SIGTERM or SIGINT, and then until the answers that have begun are whole.

    Args:
        folders: its stages in their order, or its one bundle.
        replicas: how many; the queue and the rows are those of each.
        threads: of each actor.
        options: see there; connections are Ray Serve's to limit.
        how: see `open_decoder`.
        ready: see `http_server.serve`.

    Raises:
        UsageError: an address that cannot be listened on; a Ray Serve that runs already.
        RuntimeError: Ray Serve does not start them.
    """
    with contextlib.suppress(ValueError):  # there is none
        ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        raise UsageError(
            "this cluster has a Ray Serve already, with an address of its own: end it first (serve shutdown)"
        )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    host, port = free_address(options.host, options.port)
    kind = serve.deployment(
        serve.ingress()(Replica),
        num_replicas=replicas,
        max_ongoing_requests=options.rows + options.queue_limit + BESIDE,
        max_queued_requests=max(1, options.queue_limit),
        graceful_shutdown_timeout_s=options.drain_seconds,
        graceful_shutdown_wait_loop_s=0.2,
        ray_actor_options={"num_cpus": 0},
    )
    folders = [folder.resolve() for folder in folders]
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": host, "port": port, "keep_alive_timeout_s": KEEP_ALIVE},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    try:
        serve.run(kind.bind(folders, threads, options, how), name=NAME, route_prefix="/")
        with _told_to_end() as ended:
            ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            ended.wait()
        serve.delete(NAME)
    finally:
        serve.shutdown()


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
