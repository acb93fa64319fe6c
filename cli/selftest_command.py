"""`blockexport selftest`: does this machine compute what the exporting one did?"""

from __future__ import annotations

from blockexport.cli import console, options
from blockexport.cli.running_code import warn_of_code
from blockexport.models.exit_codes import ExitCode
from blockexport.runtime.backends import ONNXRUNTIME
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.threads import use_threads


def selftest(
    bundle: options.Bundle,
    backend: options.Backend = ONNXRUNTIME.name,
    device: options.Device = CPU_NAME,
    trust: options.Trust = False,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> ExitCode:
    """Check a bundle's files by their hashes, and replay its golden vectors.

    The vectors are logits of the float64 reference at a few positions of one text, with the limits that the parity
    report derived; they need no checkpoint, only the bundle. Exit code 0: equal within the limits, 1: a difference,
    a file that is not the one that the manifest lists, or a bundle that was judged and found bad when it was exported.

    Example: blockexport selftest smollm2
    """
    from dataclasses import asdict

    from blockexport.export.bundle.golden_file import read_golden
    from blockexport.export.bundle.manifest import read_manifest
    from blockexport.export.bundle.own_verdict import require_not_bad
    from blockexport.runtime.open import open_decoder
    from blockexport.runtime.selftest import check_files, replay_golden

    warn_of_code(bundle, backend, trust=trust)
    use_threads(threads)
    with console.progress_bar(quiet=quiet or as_json) as progress:
        manifest = read_manifest(bundle)
        check_files(bundle, manifest, progress)
        require_not_bad(bundle, manifest)
        golden = read_golden(bundle)
        decoder = open_decoder(bundle, backend, verify="nothing", exact=True, device=device)
        result = replay_golden(decoder, golden, progress)
    if as_json:
        figures = {name: str(value) if value != value else value for name, value in asdict(result).items()}
        console.print_json({"backend": backend, "files": len(manifest.files), **figures})
    else:
        console.stdout_console().print(
            f"{len(manifest.files)} files are as they were exported\n"
            f"{result.positions} golden positions on {backend}: {'passed' if result.passed else 'FAILED'}: root mean "
            f"square difference {result.rms:.3g} (limit {result.rms_tolerance:.3g}); largest at position "
            f"{result.worst_position}: {result.worst_difference:.3g} (limit {result.worst_tolerance:.3g})",
            soft_wrap=True,
        )
    return ExitCode.GOOD if result.passed else ExitCode.BAD
