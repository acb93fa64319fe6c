"""From what a user names to a side of a benchmark: a bundle, a C++ program, a folder of onnxruntime-genai's, a GGUF."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from blockexport.export.bundle.chain import require_whole
from blockexport.export.bundle.manifest import MANIFEST, ONNX_FILE, Manifest, read_manifest
from blockexport.export.bundle.rope_file import ROPE_FILE
from blockexport.models.checkpoints.safetensors_header import read_header
from blockexport.models.checkpoints.sources import GGUF_SUFFIX
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.element_types import BY_NAME
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Interface
from blockexport.models.quantisation import Quantisation
from blockexport.models.regular_file import is_anything, read_json_object
from blockexport.models.roofline import Footprint
from blockexport.runtime.backends import ONNXRUNTIME, Backend, Library, backend_named, backend_names, device_for
from blockexport.runtime.bench.bench_plan import BenchCase, BenchPlan, OpenedAs, Side, slots_needed
from blockexport.runtime.compute_device import CPU_NAME
from blockexport.runtime.decoder_inputs import check_rows
from blockexport.runtime.open import open_decoder

GENAI, LLAMA, CPP, TRANSFORMERS = "genai", "llama.cpp", "cpp", "transformers"
CPP_PROGRAM = "speed"
GENAI_CONFIG, HF_CONFIG = "genai_config.json", "config.json"
_EMBEDDING, _HEAD = "model.embed_tokens.", "lm_head."
_GGUF_EMBEDDING, _GGUF_HEAD = "token_embd.weight", "output.weight"
_HALF = 2  # bytes of a value in llama.cpp's cache


def bundle_side(folder: Path, backend: str, opened: OpenedAs | None = None) -> Side:
    """A bundle on one of our backends.

    Raises:
        UsageError: there is no such bundle or backend, or no engine in the bundle.
        NotJudgedError: the backend needs a GPU, and there is none.
        ModuleNotFoundError: the backend's library is not installed.
    """
    manifest, record, opened = read_manifest(folder), backend_named(backend), opened or OpenedAs()
    require_whole(manifest, folder, "measure the model in one piece")
    match record:
        case Backend(library=Library(module=module) as needed) if not needed.versions():
            raise ModuleNotFoundError(name=module)
    device = device_for(backend, opened.device)
    if record.built_slots and not torch.cuda.is_available():
        open_decoder(folder, backend)  # says why it cannot, before others are measured in vain
    return Side(
        name=f"{backend} {folder}",
        runner="blockexport.runtime.bench.bundle_runner:BundleRunner",
        path=folder,
        vocab_size=manifest.config.vocab_size,
        capacity=opened.max_sequence_length or manifest.max_sequence_length,
        backend=backend,
        max_sequence_length=opened.max_sequence_length,
        opened=opened,
        device=record.devices[0] if record.built_slots else str(device),
        element=manifest.precision.element.name,
        footprint=_footprint(folder, manifest, record, opened),
        notes=_bundle_notes(manifest, record, opened),
    )


def other_side(named: str, ours: Side) -> Side:
    """What `--against` names, to be run beside a bundle of ours.

    Args:
        named: a bundle, a folder with a genai_config.json, or a GGUF file. `genai:FOLDER` runs a bundle in
            onnxruntime-genai, `NAME:BUNDLE` one on the backend NAME, `cpp:FOLDER` our bundle in the C++ program of a
            project that `blockexport cpp` wrote, and `transformers:FOLDER` a model in Hugging Face's form.
        ours: the bundle.

    Raises:
        UsageError: it is none of these.
        NotJudgedError: what runs it is not installed.
        ModuleNotFoundError: as `bundle_side`.
    """
    forced, _, rest = named.partition(":")
    is_forced = rest and forced in (GENAI, LLAMA, CPP, TRANSFORMERS, *backend_names())
    path = Path(rest if is_forced else named).expanduser()
    if not is_anything(path):
        raise UsageError(f"--against {named}: there is no {path}")
    kind = forced if is_forced else _kind_of(path)
    if kind == GENAI:
        return _genai_side(path, ours)
    if kind == LLAMA:
        return _llama_side(path, ours)
    if kind == CPP:
        return _cpp_side(path, ours)
    if kind == TRANSFORMERS:
        return _transformers_side(path, ours)
    also = OpenedAs(exact=ours.opened.exact, low_memory=ours.opened.low_memory, device=ours.opened.device)
    return bundle_side(path, kind or ours.backend or ONNXRUNTIME.name, also)


def check_sides(sides: Sequence[Side], plan: BenchPlan) -> None:
    """Whether every side can do what is asked.

    Raises:
        UsageError: one has too few cache slots, other tokens, or takes fewer rows.
        NotJudgedError: the cache of one would be larger than this machine's memory.
    """
    first = sides[0]
    for side in sides:
        if side.vocab_size != first.vocab_size:
            raise UsageError(
                f"{side.name} has a vocabulary of {side.vocab_size} and {first.name} of {first.vocab_size}: they "
                "cannot be given the same tokens. Compare exports of one model"
            )
        for case in plan.cases:
            _check_case(side, case, plan.steps)
            if side.footprint is not None:
                slots = side.max_sequence_length or side.capacity
                check_rows(case.batch_size, Interface(side.footprint.config, BY_NAME[side.element], slots))


def _check_case(side: Side, case: BenchCase, steps: int) -> None:
    needed, room = slots_needed(case.context, steps), side.capacity - slots_needed(0, steps)
    if needed > side.capacity:
        remedy = (
            f"take a context of at most {room}"
            if room > 0
            else f"take fewer steps, at most {side.capacity - slots_needed(1, 0)}"
        )
        trained = needed if side.footprint is None else side.footprint.config.max_position_embeddings
        more = f", or give a max_sequence_length of at least {needed}" if side.is_ours and needed <= trained else ""
        raise UsageError(
            f"a context of {case.context} and {steps} steps need {needed} cache slots, and {side.name} has "
            f"{side.capacity}: {remedy}{more}"
        )
    if side.most_rows is not None and case.batch_size > side.most_rows:
        raise UsageError(
            f"a batch of {case.batch_size} was asked for, and {side.name} is run with at most {side.most_rows} row: "
            "leave it or the larger batches out"
        )


def _kind_of(path: Path) -> str | None:
    """None is a bundle."""
    if path.is_dir():
        if (path / MANIFEST).exists():
            return None
        if (path / GENAI_CONFIG).exists():
            return GENAI
        raise UsageError(
            f"{path} has no {MANIFEST} and no {GENAI_CONFIG}: give a bundle, a folder of onnxruntime-genai's, or a "
            ".gguf file"
        )
    if path.suffix.lower() == GGUF_SUFFIX:
        return LLAMA
    raise UsageError(f"{path} is a file of no known kind: give a bundle, a folder of onnxruntime-genai's, or a .gguf")


def _genai_side(folder: Path, ours: Side) -> Side:
    _require("onnxruntime_genai", "onnxruntime-genai", folder)
    path = folder / GENAI_CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} is no folder of onnxruntime-genai's: it has no {GENAI_CONFIG}")
    model = read_json_object(path, "copy the folder again").get("model")
    numbers = [model.get(key) if isinstance(model, dict) else None for key in ("vocab_size", "context_length")]
    if not all(type(number) is int and number > 0 for number in numbers):
        raise UsageError(f"{path} is damaged: model.vocab_size and model.context_length are {numbers}")
    vocab_size, context_length = (int(number or 0) for number in numbers)
    is_bundle = (folder / MANIFEST).exists()
    beside = bundle_side(folder, ONNXRUNTIME.name) if is_bundle else None  # on which onnxruntime-genai stands
    return Side(
        name=f"onnxruntime-genai {folder}",
        runner="blockexport.runtime.bench.genai_runner:GenaiRunner",
        path=folder,
        vocab_size=vocab_size,
        capacity=context_length,
        max_sequence_length=min(context_length, ours.capacity) if beside is None else context_length,
        footprint=None if beside is None else beside.footprint,
        notes=() if beside is None else beside.notes,
    )


def _cpp_side(path: Path, ours: Side) -> Side:
    """The same bundle on the same backend, opened in the same way."""
    assert ours.backend is not None
    if backend_named(ours.backend).cmake_option is None:
        raise UsageError(f"--against {CPP}:{path}: the C++ library has no {ours.backend}. Leave it out")
    if not read_manifest(ours.path).interface.ends.to_logits:
        raise UsageError(f"--against {CPP}:{path}: its program chooses tokens, and this bundle gives no logits")
    places = (path, path / CPP_PROGRAM, path / "build" / CPP_PROGRAM)
    program = next((place for place in places if place.is_file()), None)
    if program is None:
        raise UsageError(
            f"{path} has no program {CPP_PROGRAM}: write the project with `blockexport cpp {ours.path} -o {path}`, and "
            f"build it with `cmake -S {path} -B {path / 'build'} && cmake --build {path / 'build'}`"
        )
    return replace(
        ours,
        name=f"C++ {ours.name}",
        runner="blockexport.runtime.bench.cpp_runner:CppRunner",
        program=program.absolute(),
    )


def _llama_side(path: Path, ours: Side) -> Side:
    from blockexport.models.checkpoints.gguf_header import read_gguf
    from blockexport.models.checkpoints.sources import open_config

    _require("xllamacpp", "xllamacpp", path)
    config, (_, tensors) = open_config(str(path)), read_gguf(path)
    lengths = {tensor.name: tensor.length for tensor in tensors}
    looked_up = lengths.get(_GGUF_EMBEDDING, 0) if _GGUF_HEAD in lengths else 0
    return Side(
        name=f"{LLAMA} {path}",
        runner="blockexport.runtime.bench.llama_runner:LlamaRunner",
        path=path,
        vocab_size=config.vocab_size,
        capacity=config.max_position_embeddings,
        max_sequence_length=min(config.max_position_embeddings, ours.capacity),
        most_rows=1,
        footprint=Footprint(config, sum(lengths.values()) - looked_up, _HALF),
        notes=("times as llama.cpp tells them, cache in float16, logits of the last token alone",),
    )


def _transformers_side(path: Path, ours: Side) -> Side:
    """A checkpoint in the bundle's type and on its device; a bundle that has a config.json is one."""
    _require("transformers", "transformers", path)
    config = read_json_object(path / HF_CONFIG, "give a folder in Hugging Face's form")
    vocab_size, capacity = config.get("vocab_size"), config.get("max_position_embeddings")
    if not (type(vocab_size) is type(capacity) is int):
        raise UsageError(f"{path / HF_CONFIG} says no vocab_size or max_position_embeddings: give another folder")
    compiled = "" if ours.device == CPU_NAME else ", steps compiled into CUDA graphs"
    return replace(
        ours,
        name=f"{TRANSFORMERS} {path}",
        runner="blockexport.runtime.bench.transformers_runner:TransformersRunner",
        path=path,
        vocab_size=vocab_size,
        backend=None,
        max_sequence_length=ours.capacity,
        notes=(f"static cache{compiled}, logits of the last token alone",),
    )


def _require(module: str, distribution: str, path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        raise NotJudgedError(f"{distribution}, which runs {path}, is not installed: pip install {distribution}")


def _read_bytes(folder: Path, manifest: Manifest) -> int:
    """Bytes of the weights that every step reads: of the RoPE tables, and of an embedding that is not the head as well,
    rows alone are looked up."""
    made_from = manifest.files[ONNX_FILE].made_from
    files = [name for name in made_from if name.endswith(".safetensors") and name != ROPE_FILE]
    lengths = {name: one.length for file in files for name, one in read_header(folder / file).items()}
    multiplied = manifest.interface.ends.to_logits and not any(name.startswith(_HEAD) for name in lengths)
    return sum(length for name, length in lengths.items() if multiplied or not name.startswith(_EMBEDDING))


def _dequantises(backend: Backend, opened: OpenedAs) -> bool:
    """Whether quantised weights are dequantised when they are opened, and not at each product."""
    return backend.is_eager or (backend.rounds_activations and opened.exact)


def _footprint(folder: Path, manifest: Manifest, backend: Backend, opened: OpenedAs) -> Footprint:
    config, itemsize = manifest.config, manifest.precision.element.itemsize
    to_logits = manifest.interface.ends.to_logits
    if manifest.quantisation is None or not _dequantises(backend, opened):
        return Footprint(config, _read_bytes(folder, manifest), itemsize, to_logits)
    counted = count_parameters(config)
    ends = config.vocab_size * (config.hidden_size + config.head_bias) if to_logits else 0
    return Footprint(config, (counted.blocks + counted.final_norm + ends) * itemsize, itemsize, to_logits)


def _bundle_notes(manifest: Manifest, backend: Backend, opened: OpenedAs) -> tuple[str, ...]:
    notes = ["weights mapped, not repacked"] if opened.low_memory else []
    if manifest.quantisation is not None:
        notes.append(_quantised_note(manifest.quantisation, backend, opened))
    if manifest.headless:
        notes.append("headless: given embeddings, computes no logits")
    elif manifest.embedding is not None:
        notes.append("gives embeddings: a step is one of a single token more, and chooses none")
    elif not manifest.last_logits_only:
        notes.append("computes the logits of every token of a prompt")
    return tuple(notes)


def _quantised_note(quantisation: Quantisation, backend: Backend, opened: OpenedAs) -> str:
    how = ""
    if _dequantises(backend, opened):
        how = ", dequantised when it is opened"
    elif backend.rounds_activations:
        how = ", activations rounded to 8 bits"
    return f"int{quantisation.layers.bits} weights in blocks of {quantisation.layers.block_size}{how}"
