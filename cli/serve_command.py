"""`blockexport serve`: a bundle behind OpenAI's HTTP interface."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockexport.cli import console, options
from blockexport.cli.running_code import warn_of_code
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import ONNXRUNTIME
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.threads import use_threads

if TYPE_CHECKING:
    from blockexport.runtime.serving.http_server import ServerOptions


def serve(
    bundle: options.BundleOrStages,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    rows: Annotated[
        int, typer.Option("--rows", "-B", metavar="B", min=1, help="Rows of the cache: answers at once.")
    ] = 8,
    name: Annotated[
        str | None, typer.Option("--name", help="What clients call the model. Default: the bundle's folder.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="BLOCKEXPORT_API_KEY",
            show_envvar=False,
            help="What clients have to send. Other users of this machine can read a command line: "
            "BLOCKEXPORT_API_KEY in the environment does the same.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=1, help="The most tokens of any answer.")
    ] = None,
    queue: Annotated[int, typer.Option("--queue", min=0, help="Requests that may wait for a row.")] = 64,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Connections that may be open.")] = 512,
    max_body: Annotated[
        int, typer.Option("--max-body", metavar="BYTES", min=1, help="Bytes that a request's body may have.")
    ] = 1 << 20,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="For one request, waiting included.")
    ] = 600.0,
    drain: Annotated[
        int, typer.Option("--drain", metavar="SECONDS", min=1, help="After SIGTERM, for answers that have begun.")
    ] = 60,
    backend: options.Backend = ONNXRUNTIME.name,
    device: options.Device = CPU_NAME,
    model: options.Source = None,
    trust: options.Trust = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS|local",
            help="Run each stage in an actor of Ray: of the cluster at this address (auto finds it), or of one that "
            "is started on this machine.",
        ),
    ] = None,
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="N", min=1, help="With --ray: so many of the model, behind Ray Serve.")
    ] = 1,
    threads: options.Threads = None,
    max_sequence_length: options.OtherSlots = None,
    exact: options.Exact = False,
    quiet: options.Quiet = False,
) -> ExitCode:
    """Serve a bundle to many clients at once, through OpenAI's HTTP interface.

    There are /v1/chat/completions, /v1/completions (both also as streams), /v1/models, /health and /metrics. Requests
    share the B rows of one static cache, for which there is memory for B x M slots; each answer is what it is alone.
    Several bundles are the stages of one model (`blockexport onnx --layers`), in their order; with --ray on several
    machines, on each of which all bundles lie at the same place.
    SIGTERM or Ctrl-C ends the server when the answers that have begun are whole.

    Example: blockexport serve smollm2 --rows 4 --port 8000
    """
    from blockexport.export.bundle.manifest import read_manifest
    from blockexport.export.bundle.own_verdict import known_bad
    from blockexport.runtime.open import open_model

    try:
        from blockexport.runtime.serving.http_app import HttpLimits
        from blockexport.runtime.serving.http_server import ServerOptions
        from blockexport.runtime.serving.http_server import serve as serve_bundle
    except ModuleNotFoundError as error:
        raise NotJudgedError(
            f"{error.name} is not installed, and serve needs it: pip install 'blockexport[serve]'"
        ) from error

    for one in bundle:
        if (reason := known_bad(one, read_manifest(one))) is not None:
            console.say(f"warning: {reason}")
        warn_of_code(one, backend, trust=trust)
    if replicas > 1 and ray is None:
        raise UsageError(f"--replicas {replicas} are Ray's to run: give --ray as well, or one server for each")
    if ray is not None and device != CPU_NAME:
        raise UsageError(f"--device {device} does not go with --ray, whose stages run on processors: leave one out")
    how: dict[str, Any] = {"backend": backend, "device": device, "model": model, "exact": exact}
    how["max_sequence_length"] = max_sequence_length
    asked = ServerOptions(
        host=host,
        port=port,
        name=name,
        rows=rows,
        queue_limit=queue,
        most_new_tokens=max_new_tokens,
        seconds=timeout,
        connections=connections,
        drain_seconds=drain,
        http=HttpLimits(body_bytes=max_body, api_key=api_key),
    )

    def ready(address: str) -> None:
        slots = max_sequence_length or read_manifest(bundle[0]).max_sequence_length
        many = f"{replicas} replicas of " if replicas > 1 else ""
        called = asked.name or bundle[0].resolve().name
        console.say(f"{called} on {address}/v1 ({many}{rows} rows of {slots} slots)", quiet=quiet)
        if api_key is None and not _is_loopback(host):
            console.say(f"warning: whoever reaches {host} may use it: --api-key asks for a key")

    if ray is not None:
        _serve_on_ray(ray, bundle, replicas, threads, asked, how, ready)
    else:
        use_threads(threads)
        serve_bundle(bundle[0], open_model(bundle, **how), asked, ready)
    return ExitCode.GOOD


def _serve_on_ray(
    address: str,
    bundle: list[Path],
    replicas: int,
    threads: int | None,
    asked: ServerOptions,
    how: dict[str, Any],
    ready: Callable[[str], None],
) -> None:
    from blockexport.export.bundle.chain import read_chain_or_whole
    from blockexport.runtime.serving.http_server import serve as serve_bundle

    read_chain_or_whole(bundle)  # before Ray is started
    try:
        from blockexport.runtime.ray_chain import RayChain, connected
        from blockexport.runtime.serving.ray_replicas import serve_replicas
    except ModuleNotFoundError as error:
        raise NotJudgedError(
            f"{error.name} is not installed, and --ray needs it: pip install 'blockexport[ray]'"
        ) from error
    with connected(address, len(bundle) * replicas, threads) as each:
        use_threads(1)  # what is left to do here is small
        if replicas > 1:
            serve_replicas(bundle, replicas, each, asked, how, ready)
        else:
            serve_bundle(bundle[0], RayChain(bundle, each, last_logits_only=True, **how), asked, ready)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
