"""What differs between two bundles: versions, config, files, graph, weights, engines, and what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from blockexport.compare.audits.graph_difference import GraphDifference, graph_difference
from blockexport.compare.audits.stored_difference import TensorDifference, stored_tensors, tensor_difference
from blockexport.compare.core.logit_distance import Errors, measure
from blockexport.compare.core.position_plan import make_plan
from blockexport.compare.core.tokens import choose_tokens
from blockexport.export.bundle.manifest import ONNX_FILE, Manifest, read_manifest
from blockexport.export.bundle.own_verdict import REPORT
from blockexport.export.output.ownership import SBOM
from blockexport.export.preflight import require_memory
from blockexport.export.tokenizer.tokenizer_files import TOKENIZER
from blockexport.models.errors import BlockexportError, UsageError
from blockexport.models.exit_codes import ExitCode
from blockexport.models.progress import Progress, counted, silent
from blockexport.models.regular_file import read_json_object
from blockexport.models.typed_call import typed_call
from blockexport.models.wording import size
from blockexport.runtime.backends import usual_backend
from blockexport.runtime.open import open_decoder
from blockexport.runtime.text.bundle_tokenizer import BundleTokenizer

_OWN_PLACES = ("files", "engines", "tools", "config", "conversion", "weights_digest")
"""Keys of a manifest that are told of by what they are about."""


@dataclass(frozen=True)
class Difference:
    """One value that two bundles have otherwise; None where one has none."""

    about: str
    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Numerics:
    """Both bundles on the same tokens, in ONNX Runtime or what else judges their precision.

    Attributes:
        positions: whose outputs were compared.
        rms: root mean square of the difference of all logits, `largest` the largest.
        floor: root mean square of eager PyTorch's own rounding noise, by the bundles' reports, the larger of the two;
            None where neither has one.
        kl_mean: Kullback-Leibler divergence of the second from the first, in nats.
        same_token: the share of positions with the same likeliest token.
    """

    positions: int
    rms: float
    largest: float
    floor: float | None
    kl_mean: float
    same_token: float


@dataclass(frozen=True)
class BundleDifference:
    """All that was found.

    Attributes:
        values: of the manifests, and files other than graph and weights.
        graph: None where the graphs are the same to the byte.
        only_first: tensors that only the first bundle has.
        only_second: those of the second.
        tensors: that both have, and that differ.
        numerics: None where graph and weights are the same, or they were not run.
        not_compared: why they were not run; None where they were, or need not be.
    """

    values: tuple[Difference, ...]
    graph: GraphDifference | None
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    tensors: tuple[TensorDifference, ...]
    numerics: Numerics | None
    not_compared: str | None

    @property
    def exit_code(self) -> ExitCode:
        """As diff(1) has it: 0 where nothing differs, else 1."""
        same = not self.values and self.graph is None and not (self.only_first or self.only_second or self.tensors)
        return ExitCode.GOOD if same else ExitCode.BAD


@typed_call
def diff_bundles(
    first: str | Path, second: str | Path, *, max_memory: int | None = None, progress: Progress = silent
) -> BundleDifference:
    """How the second bundle differs from the first. Their files are taken for what the manifests say.

    Args:
        first: a bundle.
        second: another.
        max_memory: bytes, beyond which the two are not run; what is available by default.
        progress: hears of the tensors that were compared.

    Raises:
        UsageError: one is not a bundle, or is damaged.
    """
    first, second = Path(first), Path(second)
    ours, theirs = read_manifest(first), read_manifest(second)
    values = [*_values(ours, theirs), *_files(ours, theirs)]
    graph = None
    if ours.files[ONNX_FILE].sha256 != theirs.files[ONNX_FILE].sha256:
        graph = graph_difference(first / ONNX_FILE, second / ONNX_FILE)
    sources = [{m.files[name].sha256 for name in m.files[ONNX_FILE].made_from} for m in (ours, theirs)]
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    tensors: list[TensorDifference] = []
    if sources[0] != sources[1]:
        a, b = stored_tensors(first, ours), stored_tensors(second, theirs)
        only_first, only_second = (tuple(sorted(one.keys() - other.keys())) for one, other in ((a, b), (b, a)))
        found = (
            tensor_difference(name, a[name], b[name]) for name in counted(sorted(a.keys() & b), "tensors", progress)
        )
        tensors = [one for one in found if one is not None]
    numerics, reason = None, None
    if graph is not None or only_first or only_second or tensors:
        match _numerics(first, ours, second, theirs, max_memory):
            case Numerics() as measured:
                numerics = measured
            case str() as said:
                reason = said
    return BundleDifference(tuple(values), graph, only_first, only_second, tuple(tensors), numerics, reason)


def _values(ours: Manifest, theirs: Manifest) -> Iterator[Difference]:
    one, other = ours.to_json(), theirs.to_json()
    yield from _different("version", one["tools"], other["tools"])
    yield from _different("config", one["config"], other["config"])
    rest = [{name: value for name, value in m.items() if name not in _OWN_PLACES} for m in (one, other)]
    yield from _different("manifest", *rest)
    for name in sorted(one["engines"].keys() | other["engines"]):
        a, b = one["engines"].get(name), other["engines"].get(name)
        if a is None or b is None:
            yield Difference("engine", name, *("there" if entry is not None else None for entry in (a, b)))
        elif isinstance(a, dict) and isinstance(b, dict):
            yield from _different(f"engine {name}", a, b)


def _different(about: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield Difference(about, name, one.get(name), other.get(name))


def _files(ours: Manifest, theirs: Manifest) -> Iterator[Difference]:
    """Files other than graph and weights, which are looked into, and the bill of materials, which repeats the
    manifest."""
    looked_into = {SBOM, ONNX_FILE, *ours.files[ONNX_FILE].made_from, *theirs.files[ONNX_FILE].made_from}
    hashes = [{n: entry.sha256 for n, entry in m.files.items() if n not in looked_into} for m in (ours, theirs)]
    return _different("file", *hashes)


def _numerics(first: Path, ours: Manifest, second: Path, theirs: Manifest, max_memory: int | None) -> Numerics | str:
    """What the two compute on the same tokens, or why that cannot be compared."""
    if not all(one.interface.ends.from_ids and one.interface.ends.to_logits for one in (ours, theirs)):
        return "without embedding, output head or logits there are no tokens and logits to compare"
    if ours.config.vocab_size != theirs.config.vocab_size:
        return f"their vocabularies have {ours.config.vocab_size} and {theirs.config.vocab_size} tokens"
    plan = make_plan(min(ours.max_sequence_length, theirs.max_sequence_length))
    calls = plan.calls(to_last_slot=False)
    needed = max(sum(m.files[name].bytes for name in m.files[ONNX_FILE].made_from) for m in (ours, theirs))
    try:
        said = f"weights of {size(needed)} take as much memory to run"
        require_memory(needed, said, max_memory, "compare them where there is more")
        encode = BundleTokenizer(first).encode if TOKENIZER in ours.files else None
        ids_S = choose_tokens(ours.config, calls[-1].stop, encode=encode).ids_S
        a, b = (_outputs(folder, m, calls, ids_S) for folder, m in ((first, ours), (second, theirs)))
    except BlockexportError as error:
        return str(error)
    common = sorted(a.keys() & b)
    errors = measure(torch.stack([b[p] for p in common]), torch.stack([a[p] for p in common]), common)
    return _told(errors, max(filter(None, (_floor(first, ours), _floor(second, theirs))), default=None))


def _outputs(folder: Path, manifest: Manifest, calls: list[range], ids_S: torch.Tensor) -> dict[int, torch.Tensor]:
    """Logits [V] by position; of a call that gives the last alone, its last."""
    decoder = open_decoder(folder, usual_backend(manifest.precision), exact=True)
    found: dict[int, torch.Tensor] = {}
    for call in calls:
        step = decoder.prefill if call.start == 0 else decoder.step
        outputs_SV = step(ids_S[None, call.start : call.stop])[0]
        found |= dict(zip(reversed(call), outputs_SV.flip(0).float(), strict=False))
    return found


def _floor(folder: Path, manifest: Manifest) -> float | None:
    """The rms of the noise that a bundle's report measured; None where there is none to read."""
    if REPORT not in manifest.files:
        return None
    try:
        noise = torch.tensor(read_json_object(folder / REPORT, "export it again")["positions"]["rms_floor"])
        return float(noise.double().square().mean().sqrt())
    except (UsageError, KeyError, TypeError, ValueError):
        return None


def _told(errors: Errors, floor: float | None) -> Numerics:
    return Numerics(
        positions=len(errors.positions_P),
        rms=errors.rms,
        largest=float(errors.max_P.max()),
        floor=floor,
        kl_mean=float(errors.kl_P.mean()),
        same_token=float((errors.top1_P == errors.reference_top1_P).double().mean()),
    )
