"""What a bundle's folder gives its judgement: the tokenizer, the weights in the file, the graph to look into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockexport.compare.audits.artifact_weights import artifact_weights
from blockexport.compare.core.check import CheckResult
from blockexport.compare.core.context import CheckContext
from blockexport.compare.core.tokens import Encode
from blockexport.compare.judge import JudgeOptions
from blockexport.export.bundle.manifest import ONNX_FILE
from blockexport.runtime.backends import ONNXRUNTIME, backend_named
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

if TYPE_CHECKING:
    import onnx_ir as ir

    from blockexport.compare.explain.explain import Explanation


def bundle_options(
    folder: Path,
    backend: str = ONNXRUNTIME.name,
    *,
    checks: tuple[str, ...] = (),
    decode_steps: int | None = None,
    text: str | None = None,
    token_ids: Sequence[int] | None = None,
    locate: bool = False,
    package_folder: Path | None = None,
) -> JudgeOptions:
    """The options to judge the bundle in `folder` on `backend` with; see `JudgeOptions` for the others.

    `package_folder` is where an AOTInductor package lies that is still to be judged, and not yet in the bundle.
    """
    return JudgeOptions(
        backend=backend,
        checks=checks,
        decode_steps=decode_steps,
        encode=_encoder(folder),
        text=text,
        token_ids=token_ids,
        weights=artifact_weights(package_folder or folder, backend_named(backend).file),
        graph=(lambda: _graph(folder)) if backend_named(backend).runs_onnx else None,
        explain=lambda context, results: _explain(folder, backend, context, results, locate),
        locate=locate,
    )


def _explain(
    folder: Path, backend: str, context: CheckContext, results: Sequence[CheckResult], always: bool
) -> Explanation | None:
    # Here, because an artifact that passes needs none of it.
    from blockexport.compare.explain.explain import explain
    from blockexport.runtime.replay.replay_graph import ReplayGraph

    graph = backend_named(backend).graph
    if graph is None:
        return explain(context, results, None, f"not located: {backend} runs no ONNX graph to look into", always=always)
    return explain(context, results, lambda: ReplayGraph.load(folder / graph), always=always)


def _graph(folder: Path) -> ir.Graph:
    import onnx_ir

    return onnx_ir.load(folder / ONNX_FILE).graph


def _encoder(folder: Path) -> Encode | None:
    if not (folder / "tokenizer.json").is_file():
        return None
    return BundleTokenizer(folder).encode
