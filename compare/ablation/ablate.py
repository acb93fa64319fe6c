"""One changed choice of the block at a time, trained and measured against what it was changed from."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from blockexport.compare.ablation.bearing import Bearing, bearing
from blockexport.compare.ablation.run_folder import Run, read_run, write_run
from blockexport.compare.ablation.swaps import DEFAULT_SIZE, USUAL, Pairing, Variant, baseline, pairings
from blockexport.compare.ablation.training import CONTEXT, LEAST_BYTES, RECIPE, SplitText, split_text, train
from blockexport.export.output.atomic_write import remove_abandoned, replace_file, write_together
from blockexport.export.output.disk import disk_errors, folders_made
from blockexport.export.output.place import output_place
from blockexport.export.output.reservation import reserved
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.errors import UsageError
from blockexport.models.progress import Progress, silent
from blockexport.models.regular_file import is_there, read_bytes, read_json_object
from blockexport.models.typed_call import typed_call
from blockexport.models.whole_number import whole
from blockexport.runtime.threads import use_threads

RECORD, PAGE = "ablation.json", "ablation.html"
SCHEMA_VERSION = 1
DEFAULT_SEEDS, LEAST_SEEDS = 3, 2
DEFAULT_STEPS = 120


@dataclass(frozen=True)
class SwapResult:
    """What came of a swap: the runs of both models, seed by seed, and what they bear out."""

    pairing: Pairing
    base: tuple[Run, ...]
    changed: tuple[Run, ...]

    @property
    def bearing(self) -> Bearing:
        """The changed model against its base."""
        return bearing([run.stretches for run in self.base], [run.stretches for run in self.changed])

    def to_json(self) -> dict[str, Any]:
        """As plain values; losses in bits per byte."""
        swap, found = self.pairing.swap, self.bearing
        sides = {"base": (self.pairing.base, self.base), "changed": (self.pairing.changed, self.changed)}
        return {
            "name": self.pairing.name,
            "choice": swap.choice,
            "change": swap.words,
            "both_have": swap.around_words,
            **{
                side: {
                    "model": variant.name,
                    "model_type": variant.config.model_type,
                    "parameters": parameters(variant),
                    "bits_per_byte": [run.bits for run in runs],
                    "spread": statistics.stdev(run.bits for run in runs),
                    "best_steps": [run.best for run in runs],
                }
                for side, (variant, runs) in sides.items()
            },
            **asdict(found),
            "verdict": found.verdict,
        }


@dataclass(frozen=True)
class Ablation:
    """Every swap that was asked for, and what was trained how.

    Attributes:
        folder: with the checkpoints, and the record and the page of all.
        made_with: the text, the models' size and the recipe.
        seeds: how many of each model.
        results: in the order asked for.
    """

    folder: Path
    made_with: Mapping[str, Any]
    seeds: int
    results: tuple[SwapResult, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values, curves included."""
        models = {
            variant.name: [[asdict(look) for look in run.looks] for run in runs]
            for result in self.results
            for variant, runs in ((result.pairing.base, result.base), (result.pairing.changed, result.changed))
        }
        swaps = [result.to_json() for result in self.results]
        return {"schema_version": SCHEMA_VERSION, "made_with": self.made_with, "seeds": self.seeds, "swaps": swaps,
                "curves": models}  # fmt: skip


def parameters(variant: Variant) -> int:
    """How many a model has."""
    return sum(map(prod, expected_tensors(variant.config).values()))


@typed_call
def ablate(
    text: str | Path,
    output: str | Path,
    *,
    swaps: Sequence[str] = USUAL,
    seeds: int = DEFAULT_SEEDS,
    steps: int = DEFAULT_STEPS,
    size: int = DEFAULT_SIZE,
    threads: int | None = None,
    progress: Progress = silent,
) -> Ablation:
    """Train small byte-level decoders that differ in one choice of the block, and say what their losses bear out.

    Every model is trained once for each seed, with the same data in the same order, and written as a Hugging Face
    folder. A call that is interrupted is taken up by the next one with the same text and options.

    Args:
        text: a file, or a folder of .txt files; the last fifth of each is held out.
        output: a folder to make, or that of an earlier call with the same text, size and steps.
        swaps: names of choices to change; by default the usual ones.
        seeds: trainings of each model, at least 2.
        steps: of each training.
        size: width of the models, a multiple of 8.
        threads: of the processor; OMP_NUM_THREADS, or the cores this process may use, by default.
        progress: told the steps done.

    Raises:
        UsageError: a text that is too short, an unknown swap, an output that holds something else.
        NotJudgedError: a model that is too wide for the rate it is trained with.
    """
    seeds, steps = whole("seeds", seeds, least=LEAST_SEEDS), whole("steps", steps, least=1)
    start = baseline(whole("size", size, least=1), CONTEXT)
    asked = pairings(dict.fromkeys(swaps), start)
    if not asked:
        raise UsageError("no swap was named: name at least one")
    texts = read_texts(Path(text))
    place = output_place(Path(output), [Path(text)])
    made_with = {
        "text_sha256": hashlib.sha256(b"".join(texts)).hexdigest(),
        "text_bytes": sum(map(len, texts)),
        "size": size,
        "steps": steps,
        "recipe": RECIPE,
    }
    use_threads(threads)
    with _held(place):
        _check_same(place, made_with)
        runs = _trained(place, asked, split_text(texts), seeds, steps, made_with, progress)
        results = (SwapResult(one, runs[one.base.name], runs[one.changed.name]) for one in asked)
        ablation = Ablation(place, made_with, seeds, tuple(results))
        _write(ablation)
    return ablation


def read_texts(path: Path) -> list[bytes]:
    """The bytes of a file, or of the .txt files of a folder in the order of their names.

    Raises:
        UsageError: there is no such file, or they are too short together.
    """
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    texts = [read_bytes(file) for file in files]
    count = sum(map(len, texts))
    if count < LEAST_BYTES:
        raise UsageError(f"{path} has {count} bytes of text, and training takes at least {LEAST_BYTES}: give more")
    return texts


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """The output folder, made, held against other processes, and taken back where nothing came into it."""
    with folders_made(place.parent), reserved(place), folders_made(place), disk_errors(place):
        remove_abandoned(place)
        try:
            yield
        finally:
            if [path.name for path in place.iterdir()] == [RECORD]:
                (place / RECORD).unlink()


def _check_same(place: Path, made_with: Mapping[str, Any]) -> None:
    if not is_there(place / RECORD):
        if any(place.iterdir()):
            raise UsageError(f"the output {place} holds files that are not an ablation's: name another folder")
        return
    earlier = read_json_object(place / RECORD, "name another output folder").get("made_with")
    if not isinstance(earlier, dict):
        raise UsageError(f"{place / RECORD} is not a record of blockexport's: name another output folder")
    for key, value in made_with.items():
        if earlier.get(key) != value:
            raise UsageError(
                f"the output {place} holds runs with another {key.replace('_', ' ')} ({earlier.get(key)}, and not "
                f"{value}): name another folder"
            )


def _trained(
    place: Path,
    asked: Sequence[Pairing],
    text: SplitText,
    seeds: int,
    steps: int,
    made_with: Mapping[str, Any],
    progress: Progress,
) -> dict[str, tuple[Run, ...]]:
    """The runs of every model by its name, those of an earlier call included."""
    variants = {variant.name: variant for one in asked for variant in (one.base, one.changed)}
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    done, total = 0, seeds * len(variants) * steps

    def stepped() -> None:
        nonlocal done
        done += 1
        progress("training: step", done, total)

    for seed in range(seeds):
        for name, variant in variants.items():
            folder = place / f"{name}-seed{seed}"
            run = read_run(folder, variant)
            if run is not None:
                done += steps
                progress("training: step", done, total)
            else:
                trained = train(variant.config, text, seed, steps, stepped)
                if not is_there(place / RECORD):
                    _record(place, {"schema_version": SCHEMA_VERSION, "made_with": made_with})
                run = write_run(folder, variant, seed, trained)
            runs[name].append(run)
    return {name: tuple(found) for name, found in runs.items()}


def _record(place: Path, value: Mapping[str, Any]) -> None:
    replace_file(place / RECORD, _as_json(value))


def _as_json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _write(ablation: Ablation) -> None:
    from blockexport.compare.ablation.ablation_page import to_page

    files = {PAGE: to_page(ablation).encode(), RECORD: _as_json(ablation.to_json())}
    write_together(ablation.folder, files)
