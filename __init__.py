"""Decoder checkpoints as ONNX files and TensorRT engines with a static KV cache, and a proof of the shipped file.

The library does the work that the command line asks for::

    import blockexport

    made = blockexport.export_bundle("SmolLM2-135M", "smollm2", max_sequence_length=512)
    print(made.report.verdict, made.folder)
    decoder = blockexport.open_decoder("smollm2")

Importing this package loads nothing heavy: each function brings what it needs when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # to import it from `typing` takes longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from blockexport.bundle_export import ExportedBundle, export_bundle
    from blockexport.compare.ablation.ablate import ablate
    from blockexport.compare.diff_bundles import diff_bundles
    from blockexport.compare.judged_chain import compare_chain
    from blockexport.compare.verify_bundle import verify_bundle
    from blockexport.export.redeclare import redeclare
    from blockexport.export.tensorrt.trt_adapter import BuildOptions
    from blockexport.library import bench_bundle, build_engine, compare_bundle
    from blockexport.models.errors import BlockexportError, NotJudgedError, RejectedBundleError, UsageError
    from blockexport.models.model_cost import inspect_model
    from blockexport.runtime.open import open_chain, open_decoder

    __version__: str

_HOMES = {
    "BlockexportError": "models.errors",
    "BuildOptions": "export.tensorrt.trt_adapter",
    "ExportedBundle": "bundle_export",
    "NotJudgedError": "models.errors",
    "RejectedBundleError": "models.errors",
    "UsageError": "models.errors",
    "ablate": "compare.ablation.ablate",
    "bench_bundle": "library",
    "build_engine": "library",
    "compare_bundle": "library",
    "compare_chain": "compare.judged_chain",
    "diff_bundles": "compare.diff_bundles",
    "export_bundle": "bundle_export",
    "inspect_model": "models.model_cost",
    "open_chain": "runtime.open",
    "open_decoder": "runtime.open",
    "redeclare": "export.redeclare",
    "verify_bundle": "compare.verify_bundle",
}
__all__ = [
    "BlockexportError",
    "BuildOptions",
    "ExportedBundle",
    "NotJudgedError",
    "RejectedBundleError",
    "UsageError",
    "__version__",
    "ablate",
    "bench_bundle",
    "build_engine",
    "compare_bundle",
    "compare_chain",
    "diff_bundles",
    "export_bundle",
    "inspect_model",
    "open_chain",
    "open_decoder",
    "redeclare",
    "verify_bundle",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("blockexport")
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"blockexport.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
