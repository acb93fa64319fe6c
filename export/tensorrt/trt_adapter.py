"""What differs between TensorRT 10, TensorRT 11 and TensorRT for RTX, in one place.

The three share one Python interface. TensorRT 11 has no weakly typed networks left, and 10 has them as the default;
RTX chooses compute capabilities without a GPU and lacks what only a GPU in the machine can give.
Interfaces: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/ and the docstrings of the packages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from blockexport.export.bundle.trt_library import TENSORRT, TENSORRT_RTX, TrtLibrary, ascending, load_library, number_of
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.native_output import captured_stderr
from blockexport.models.precision import Precision

_FIRST_WITH_BFLOAT16 = (8, 0)


@dataclass(frozen=True)
class BuildOptions:
    """What the user asked of the builder. None and False leave it as TensorRT has it."""

    workspace_mib: int | None = None
    timing_cache: bytes | None = None  # b"" starts an empty one
    builder_optimization_level: int | None = None
    strip_weights: bool = False
    hardware_compatibility: str | None = None  # "ampere-plus" or "same-compute-capability"
    version_compatible: bool = False
    key_value_lengths: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the manifest: every option that is set, without the timing cache's bytes."""
        # By identity: an optimisation level of 0 is set, though it equals False.
        values: dict[str, Any] = {
            n: value for n, value in vars(self).items() if value is not None and value is not False
        }
        if self.timing_cache is not None:
            values["timing_cache"] = True
        return values


# Why TensorRT for RTX has none of these, by the name of the option. The last two were measured with 1.7.1.
_NOT_IN_RTX = {
    "timing_cache": "it times no tactics while it builds, and its timing cache is a no-op",
    "hardware_compatibility": "it ignores the setting: give every compute capability that the engine is for with "
    "--compute-capability",
    "version_compatible": "it ships no lean runtime: rebuild for each version",
    "builder_optimization_level": "its engines are the same at every level, because kernels are compiled when the "
    "engine is loaded",
    "key_value_lengths": "it takes the lengths and emits the same attention kernels, so nothing would be gained",
}


class Adapter:
    """One installed backend as a builder of engines."""

    def __init__(self, library: TrtLibrary) -> None:
        self.name, self.trt, self.version, self.log = library.name, library.trt, library.version, library.log
        self.is_rtx = self.name == TENSORRT_RTX
        self._timing_cache: Any = None

    @property
    def rebuild_note(self) -> str:
        """What a second build from the same files with the same versions gives."""
        if self.is_rtx:
            return "the same weights, layers, kernels and length; the order of some tables may differ"
        return "tactics are timed on the GPU and may differ from build to build: --timing-cache FILE pins them"

    def check_options(self, options: BuildOptions) -> None:
        """Refuse by name what the backend would ignore.

        Raises:
            UsageError: naming the option and the reason.
            NotJudgedError: the option needs a GPU that this machine lacks.
        """
        if options.strip_weights:
            self._require_gpu("--strip-weights: it builds engines without weights only where a GPU and its driver are")
        if not self.is_rtx:
            return
        asked = options.to_json()
        for name, reason in _NOT_IN_RTX.items():
            if name in asked:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is not for tensorrt-rtx {self.version}: {reason}. Leave it out")

    def check_precision(self, precision: Precision, targets: Sequence[str]) -> None:
        """Refuse a precision that a compute capability has no arithmetic for.

        Raises:
            UsageError: bfloat16 on a generation before Ampere (8.0).
        """
        lacking = [target for target in targets if number_of(target) < _FIRST_WITH_BFLOAT16]
        if precision is Precision.BF16 and lacking:
            raise UsageError(
                f"GPUs of compute capability {', '.join(lacking)} have no bfloat16 arithmetic: "
                "leave them out, or use --fp16"
            )

    def targets(self, capabilities: Sequence[str]) -> tuple[str, ...]:
        """The compute capabilities to build for, such as ("8.9", "12.0").

        RTX takes any it knows and needs no GPU; standard TensorRT builds for the GPU in the machine.

        Raises:
            UsageError: one is not a capability, not served, or not the machine's.
            NotJudgedError: standard TensorRT without a GPU, or RTX with neither a GPU nor a capability.
        """
        wanted = ascending({_normalised(text) for text in capabilities})
        if self.is_rtx:
            served = self.served_capabilities()
            if not wanted:
                remedy = f"say which GPU the engine is for: --compute-capability, with one of {', '.join(served)}"
                wanted = (self._own_capability(remedy),)
            for capability in wanted:
                if capability not in served:
                    raise UsageError(
                        f"tensorrt-rtx {self.version} does not serve compute capability {capability}, only "
                        f"{', '.join(served)}: choose one of them, or build with --backend tensorrt on such a GPU"
                    )
            return wanted
        own = self._own_capability("run this on the machine with the GPU, or build with --backend tensorrt-rtx")
        if wanted not in ((), (own,)):
            raise UsageError(
                f"--compute-capability {', '.join(wanted)}: standard TensorRT builds for the GPU in the machine, "
                f"which is {own}. Leave the option out, or use --backend tensorrt-rtx"
            )
        return (own,)

    def served_capabilities(self) -> list[str]:
        """The capabilities that RTX knows, in order: 7.5, 8.0, ..."""
        names = [name for name in self.trt.ComputeCapability.__members__ if name.startswith("SM")]
        return list(ascending(f"{name[2:-1]}.{name[-1]}" for name in names))

    def builder(self) -> Any:
        """A new builder.

        Raises:
            NotJudgedError: the libraries found no GPU they can work with.
        """
        with captured_stderr() as said:
            try:
                return self.trt.Builder(self.log)
            except (TypeError, RuntimeError) as error:  # pybind11's word for a null pointer
                problem = self.log.drain() or said() or str(error)
        raise NotJudgedError(
            f"{self.name} {self.version} does not start here ({problem}): it needs an NVIDIA GPU and its driver. "
            "Run this where they are, or build with --backend tensorrt-rtx, which needs none"
        )

    def network(self, builder: Any) -> Any:
        """An empty, strongly typed network: precision is what the graph says and never a builder's choice."""
        flag = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        # TensorRT 11 knows no other kind, and may not know the flag.
        return builder.create_network(0 if flag is None else 1 << int(flag))

    def config(self, builder: Any, targets: Sequence[str], options: BuildOptions) -> Any:
        """A builder config with targets and options set; profiles and progress are the caller's."""
        trt, config = self.trt, builder.create_builder_config()
        if self.is_rtx:
            config.num_compute_capabilities = len(targets)
            for index, capability in enumerate(targets):
                member = getattr(trt.ComputeCapability, f"SM{capability.replace('.', '')}")
                config.set_compute_capability(member, index)
        # TF32 would round fp32 products to ten bits of mantissa: --fp32 means float32.
        config.clear_flag(trt.BuilderFlag.TF32)
        if options.workspace_mib is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib << 20)
        if options.builder_optimization_level is not None:
            config.builder_optimization_level = options.builder_optimization_level
        if options.strip_weights:
            config.set_flag(trt.BuilderFlag.STRIP_PLAN)
            config.set_flag(trt.BuilderFlag.REFIT_IDENTICAL)
        if options.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        if options.hardware_compatibility is not None:
            member = options.hardware_compatibility.upper().replace("-", "_")
            config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, member)
        if options.timing_cache is not None:
            # The config keeps a pointer only: the cache has to outlive the build.
            self._timing_cache = config.create_timing_cache(options.timing_cache)
            if not config.set_timing_cache(self._timing_cache, False):
                raise UsageError(
                    f"the timing cache was made by another GPU or another TensorRT than this {self.version}: "
                    "name a new file with --timing-cache"
                )
        return config

    def _require_gpu(self, why: str) -> None:
        import torch

        if not torch.cuda.is_available():
            raise NotJudgedError(
                f"{self.name} {self.version}, {why}, and there is none here. "
                "Leave the option out, or run this where the GPU is"
            )

    def _own_capability(self, remedy: str) -> str:
        import torch

        if not torch.cuda.is_available():
            raise NotJudgedError(f"{self.name} {self.version}: there is no GPU here that PyTorch can use, so {remedy}")
        major, minor = torch.cuda.get_device_capability()
        return f"{major}.{minor}"


@cache
def load_backend(name: str) -> Adapter:
    """The installed backend `name`: see `load_library`."""
    return Adapter(load_library(name))


def choose_backend(name: str | None) -> Adapter:
    """The installed backend `name`; where none is named, tensorrt, or tensorrt-rtx where only that is installed.

    Raises:
        UsageError: there is no such backend, or the installed one is too old.
        NotJudgedError: it is not installed, or its libraries do not load.
    """
    if name is not None:
        return load_backend(name)
    try:
        return load_backend(TENSORRT)
    except NotJudgedError:
        return load_backend(TENSORRT_RTX)


def _normalised(text: str) -> str:
    """`8.9` from `8.9`, `89` or `sm89`."""
    match = re.fullmatch(r"(?:sm_?)?([1-9][0-9]?)\.?([0-9])", text.strip().lower(), re.ASCII)
    if match is None:
        raise UsageError(f"--compute-capability {text!r} is not of the form 8.9: see `blockexport doctor` for yours")
    return f"{match[1]}.{match[2]}"
