"""One checkpoint in many spellings: read, with transformers' logits, or refused in a message that says what is there.

The reference is transformers' own model, which each spelling was written from.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from blockexport.export.bundle.manifest import Manifest
from blockexport.models.block.cache import empty_cache
from blockexport.models.checkpoints.checkpoint import TensorEntry
from blockexport.models.checkpoints.load_weights import load_model
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.checkpoints.tensor_spellings import WRAPPERS, in_hugging_face_names
from blockexport.models.errors import UsageError
from tests.exported import export
from tests.small_models import Weights, gguf_name, small_config
from tests.transformers_models import make_model, some_ids

LENGTH = 60
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
INDEX = "model.safetensors.index.json"
Write = Callable[[Weights, Path], object]


@cache
def model_of(tied: bool) -> Any:
    return make_model("qwen3" if tied else "llama", tied=tied)


@cache
def expected_logits(tied: bool) -> torch.Tensor:
    logits: torch.Tensor = model_of(tied)(some_ids(LENGTH)).logits
    assert logits.std() > 1, "a model whose logits are all alike proves nothing"
    return logits


def weights_of(tied: bool) -> Weights:
    named = {name: value.detach().clone() for name, value in model_of(tied).named_parameters()}
    assert (HEAD in named) is not tied
    return named


def save(weights: Mapping[str, torch.Tensor], folder: Path, file: str = "model.safetensors") -> None:
    save_file(dict(weights), folder / file, metadata={"format": "pt"})


def renamed(change: Callable[[str], str | None], file: str = "model.safetensors") -> Write:
    """Tensors under other names; None drops one."""

    def write(weights: Weights, folder: Path) -> None:
        named = {change(name): value for name, value in weights.items()}
        save({name: value for name, value in named.items() if name is not None}, folder, file)

    return write


def in_front(prefix: str) -> Write:
    return renamed(lambda name: prefix + name)


def instead_of_model(prefix: str) -> Write:
    return renamed(lambda name: re.sub("^model[.]", prefix, name))


def within_layers(word: str) -> Write:
    return renamed(lambda name: re.sub(r"(layers[.]\d+)[.]", rf"\1.{word}.", name))


def added(**more: Callable[[Weights], torch.Tensor]) -> Write:
    """Other tensors beside all of them; a double underscore stands for a dot."""

    def write(weights: Weights, folder: Path) -> None:
        save(weights | {name.replace("__", "."): make(weights) for name, make in more.items()}, folder)

    return write


def beside(change: Callable[[str], str], more: str) -> Write:
    """Tensors under other names, and one more of the name `more`."""
    return lambda weights, folder: save(
        {**{change(name): weights[name] for name in weights}, more: torch.ones(3)}, folder
    )


def ones(*shape: int) -> Callable[[Weights], torch.Tensor]:
    return lambda weights: torch.ones(shape)


def halves(weights: Weights) -> list[Weights]:
    names = list(weights)
    return [{name: weights[name] for name in names[part::2]} for part in (0, 1)]


def sharded(*files: str, index: Callable[[dict[str, str]], object] | None = None) -> Write:
    """Two shards under these names, with an index unless it is None."""

    def write(weights: Weights, folder: Path) -> None:
        weight_map: dict[str, str] = {}
        for file, part in zip(files, halves(weights), strict=False):
            save(part, folder, file)
            weight_map |= dict.fromkeys(part, file)
        if index is not None:
            index(weight_map)
            (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return write


def index_of_one(file: str = "model.safetensors", model: str = "model.", **more: object) -> Write:
    """An index whose every entry is one file, whose names have `model` in place of `model.`, and `more` beside it."""

    def write(weights: Weights, folder: Path) -> None:
        renamed(lambda name: re.sub("^model[.]", model, name), file)(weights, folder)
        weight_map = {re.sub("^model[.]", model, name): file for name in weights}
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map, **more}))

    return write


def both(weights: Weights, folder: Path) -> None:
    sharded(*SHARDS, index=as_it_is)(weights, folder)
    save(weights, folder)


def in_float64(weights: Weights, folder: Path) -> None:
    save({name: value.double() for name, value in weights.items()}, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float64"}))


def head_for_embedding(weights: Weights, folder: Path) -> None:
    save({(HEAD if name == EMBEDDING else name): value for name, value in weights.items()}, folder)


def head_for_embedding_wrapped(weights: Weights, folder: Path) -> None:
    named = {("model." + HEAD if name == EMBEDDING else name): value for name, value in weights.items()}
    save({f"module.{name}": value for name, value in named.items()}, folder)


def table_twice(weights: Weights, folder: Path) -> None:
    save(weights | {HEAD: weights[EMBEDDING].clone()}, folder)


def two_copies(weights: Weights, folder: Path) -> None:
    save(weights | {f"_orig_mod.{name}": value.clone() for name, value in weights.items()}, folder)


def model_and_adapter(weights: Weights, folder: Path) -> None:
    save(weights, folder)
    save(
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(8, 42)},
        folder,
        "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def two_prefixes(weights: Weights, folder: Path) -> None:
    renamed(lambda name: name.replace("model.layers.1.", "language_model.layers.1."))(weights, folder)


def two_sets(*fronts: str) -> Write:
    def write(weights: Weights, folder: Path) -> None:
        save({front + name: value.clone() for front in fronts for name, value in weights.items()}, folder)

    return write


def linked_to_nothing(weights: Weights, folder: Path) -> None:
    (folder / "model.safetensors").symlink_to(folder / "blobs" / "0123abcd")


def fused(weights: Weights, folder: Path) -> None:
    for layer in range(2):
        parts = [weights.pop(f"model.layers.{layer}.self_attn.{kind}_proj.weight") for kind in "qkv"]
        weights[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = torch.cat(parts)
    save(weights, folder)


def without(name: str) -> Write:
    return renamed(lambda other: None if other == name else other)


def twice_in_shards(weights: Weights, folder: Path) -> None:
    sharded(*SHARDS)(weights, folder)
    save(halves(weights)[1] | {EMBEDDING: weights[EMBEDDING]}, folder, SHARDS[1])


def as_it_is(weight_map: dict[str, str]) -> None:
    pass


META = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "layers",
}


def meta_name(name: str) -> str:
    for ours, theirs in META.items():
        name = name.replace(ours, theirs)
    return name


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
QUERY = "layers.0.self_attn.q_proj.weight"
LEFT_OVER = "is named like {} with other words in front, which is there too"
RENAMED = "have other names in the checkpoint"
ONE_TABLE = "is stored once"


@dataclass(frozen=True)
class Read:
    """A spelling that is read; `note` is what the user is told (None: nothing)."""

    write: Write
    note: str | None = None
    tied: bool = False


READ: dict[str, Read] = {
    "as transformers saves it": Read(renamed(lambda name: name)),
    "tied, as transformers saves it": Read(renamed(lambda name: name), tied=True),
    "tied, the table stored twice": Read(table_twice, tied=True),
    "tied, under the head's name alone": Read(head_for_embedding, ONE_TABLE, tied=True),
    "tied, under the head's name alone, wrapped": Read(head_for_embedding_wrapped, ONE_TABLE, tied=True),
    "tied, saved by AutoModel": Read(instead_of_model(""), RENAMED, tied=True),
    "without `model.`, and a head": Read(instead_of_model(""), RENAMED),
    "transformer.": Read(instead_of_model("transformer."), RENAMED),
    "decoder.": Read(instead_of_model("decoder."), RENAMED),
    "model.model.": Read(instead_of_model("model.model."), RENAMED),
    "model.language_model.": Read(instead_of_model("model.language_model."), RENAMED),
    "language_model.": Read(in_front("language_model."), RENAMED),
    "llm.": Read(in_front("llm."), RENAMED),
    "module.": Read(in_front("module."), RENAMED),
    "_orig_mod.": Read(in_front("_orig_mod."), RENAMED),
    "base_model.model.": Read(in_front("base_model.model."), RENAMED),
    "_orig_mod.module.": Read(in_front("_orig_mod.module."), RENAMED),
    "each layer compiled": Read(within_layers("_orig_mod"), RENAMED),
    "each layer wrapped twice": Read(within_layers("_fsdp_wrapped_module._checkpoint_wrapped_module"), RENAMED),
    "only the embedding without `model.`": Read(
        renamed(lambda name: "embed_tokens.weight" if name == EMBEDDING else name), RENAMED
    ),
    "with the rotation frequencies": Read(added(model__layers__1__self_attn__rotary_emb__inv_freq=ones(8))),
    "an index of one file": Read(index_of_one(metadata={})),
    "an index of one file, and nothing else in it": Read(index_of_one()),
    "an index of one file, of a wrong size": Read(index_of_one(metadata={"total_size": 7})),
    "an index of one file, tied": Read(index_of_one(), tied=True),
    "an index of one file, named like a shard": Read(index_of_one("model-00001-of-00001.safetensors")),
    "an index of one file, of another name": Read(index_of_one("weights.safetensors")),
    "an index of one file, saved by AutoModel": Read(index_of_one(model=""), RENAMED),
    "two shards and their index": Read(sharded(*SHARDS, index=as_it_is)),
    "two shards of which one is named like a whole model": Read(
        sharded("model.safetensors", "more.safetensors", index=as_it_is)
    ),
    "two shards without an index": Read(sharded(*SHARDS), "all 2 shards"),
    "float64": Read(in_float64),
}

REFUSED: dict[str, tuple[Write, list[str]]] = {
    "an unknown prefix": (in_front("encoder."), ["encoder.model.embed_tokens.weight", "with 'encoder.' in front"]),
    "the average of the training": (
        in_front("ema_model."),
        ["holds 21 tensors ema_model.", "with 'ema_model.' in front"],
    ),
    "two copies": (two_copies, ["lm_head.weight more than once", "as _orig_mod.lm_head.weight"]),
    "layers under two prefixes": (two_prefixes, ["language_model.layers.1.", "does not use"]),
    "a student and its teacher": (
        two_sets("student.", "teacher."),
        ["more than one set", "under 'student.model.' and 'teacher.model.'"],
    ),
    "a model and its average": (two_sets("", "ema."), ["more than one set", "under 'ema.model.' and 'model.'"]),
    "another part beside the model": (
        added(mtp__layers__0__proj__weight=ones(8, 42)),
        ["mtp.layers.0.proj.weight, which it does not use: leaving weights out"],
    ),
    "one tensor of another model's beside its own": (
        added(teacher__model__layers__0__self_attn__q_proj__weight=ones(8, 42)),
        ["holds tensor teacher.model.layers.0.self_attn.q_proj.weight", LEFT_OVER.format(f"model.{QUERY}")],
    ),
    "one tensor wrapped beside its own": (
        added(base_model__model__model__layers__0__self_attn__q_proj__weight=ones(8, 42)),
        ["holds tensor base_model.model.model.layers.0.self_attn.q_proj.weight", LEFT_OVER.format(f"model.{QUERY}")],
    ),
    "one tensor wrapped beside AutoModel's": (
        beside(lambda name: name.removeprefix("model."), f"module.{QUERY}"),
        [f"holds tensor module.{QUERY}, which it does not use", LEFT_OVER.format(f"model.{QUERY}")],
    ),
    "one tensor as AutoModel names it beside wrapped ones": (
        beside(lambda name: f"_orig_mod.{name}", QUERY),
        [f"holds tensor {QUERY}, which it does not use", LEFT_OVER.format(f"model.{QUERY}")],
    ),
    "the norm once more": (
        added(ema__model__norm__weight=ones(42)),
        ["holds tensor ema.model.norm.weight", LEFT_OVER.format("model.norm.weight")],
    ),
    "the norm of a layer once more": (
        added(ema__model__layers__0__norm__weight=ones(42)),
        ["holds tensor ema.model.layers.0.norm.weight, which it does not use: leaving weights out"],
    ),
    "no head": (without(HEAD), ["lacks tensor lm_head.weight", "saved without its head"]),
    "no head, saved by AutoModel": (
        renamed(lambda name: None if name == HEAD else name.removeprefix("model.")),
        ["lacks tensor lm_head.weight", "AutoModelForCausalLM", "(--headless) and embeddings (--task embed)"],
    ),
    "no embedding": (without(EMBEDDING), ["lacks tensor model.embed_tokens.weight", "tie_word_embeddings: true"]),
    "Meta's names": (renamed(meta_name), ["layers.0.attention.wq.weight", "Meta's", "another order"]),
    "Meta's names, in a file of that name": (
        renamed(meta_name, "consolidated.safetensors"),
        ["only consolidated.safetensors", "21 tensors"],
    ),
    "GGUF's names": (renamed(lambda name: gguf_name(name, small_config())), ["blk.0.attn_norm.weight", "GGUF"]),
    "fused projections": (fused, ["self_attn.qkv_proj.weight", "fused"]),
    "an adapter beside its model": (
        added(base_model__model__model__layers__0__self_attn__q_proj__lora_A__weight=ones(8, 42)),
        ["lora_A", "--lora"],
    ),
    "a model and an adapter": (model_and_adapter, ["a model and a LoRA adapter", "--lora", "remove them"]),
    "an adapter's file": (
        renamed(lambda name: name, "adapter_model.safetensors"),
        ["LoRA adapter", "--lora"],
    ),
    "experts": (added(model__layers__0__mlp__experts__0__up_proj__weight=ones(76, 42)), ["experts.0", "mixture"]),
    "a classifier": (added(score__weight=ones(2, 42)), ["score.weight", "classifier"]),
    "a vision tower": (added(vision_tower__patch__weight=ones(4, 4)), ["vision_tower.patch", "multimodal"]),
    "quantised weights": (
        added(model__layers__0__mlp__up_proj__qweight=ones(4, 4)),
        ["up_proj.qweight", "quantised", "unquantised checkpoint"],
    ),
    "a tensor of nobody": (added(model__layers__0__surprise=ones(3)), ["model.layers.0.surprise", "config.json"]),
    "one shard of two, no index": (
        sharded(SHARDS[0]),
        ["has 1 of 2 shards and no model.safetensors.index.json", "00002-of-00002.safetensors is missing"],
    ),
    "shards that overlap, no index": (twice_in_shards, ["model.embed_tokens.weight is in more than one"]),
    "one shard of two, with an index": (
        sharded(SHARDS[0], "gone.safetensors", index=lambda m: m.update(x="gone2.safetensors")),
        ["names 3 files", "gone2.safetensors is not beside it"],
    ),
    "both kinds at once": (both, ["holds both", SHARDS[0], "two sets of weights"]),
    "one file of another name": (
        renamed(lambda name: name, "weights.safetensors"),
        ["only weights.safetensors, which holds 21 tensors", "rename it to model.safetensors"],
    ),
    "files of other names": (sharded("a.safetensors", "b.safetensors"), ["2 other safetensors files (a.safe"]),
    "a link to nothing": (
        linked_to_nothing,
        ["it is a link to", "0123abcd", "there is nothing there"],
    ),
    "no tensors": (lambda weights, folder: save({}, folder), ["holds no tensors"]),
    "pickled": (
        lambda weights, folder: torch.save(weights, folder / "pytorch_model.bin"),
        ["only pytorch_model.bin", "can run code"],
    ),
    "nothing": (lambda weights, folder: None, ["it holds config.json", "download the weights"]),
}


def written(write: Write, tied: bool, folder: Path) -> Path:
    model_of(tied).config.save_pretrained(folder)
    write(weights_of(tied), folder)
    return folder


@pytest.mark.parametrize("spelling", READ)
def test_a_complete_checkpoint_is_read(spelling: str, tmp_path: Path) -> None:
    read = READ[spelling]
    checkpoint = open_checkpoint(str(written(read.write, read.tied, tmp_path)))
    ids_BS = some_ids(LENGTH)
    past = empty_cache(checkpoint.config, len(ids_BS), LENGTH, torch.float32)
    positions_BS = torch.arange(LENGTH).expand(ids_BS.shape)
    logits = load_model(checkpoint, torch.float32, LENGTH)(ids_BS, positions_BS, past)[0]
    torch.testing.assert_close(logits, expected_logits(read.tied))
    if read.note is None:
        assert checkpoint.notes == ()
    else:
        assert read.note in " ".join(checkpoint.notes)


@pytest.mark.parametrize("spelling", REFUSED)
def test_any_other_is_refused_with_what_is_there(spelling: str, tmp_path: Path) -> None:
    write, said = REFUSED[spelling]
    written(write, False, tmp_path)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(str(tmp_path))
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("spelling", ["_orig_mod.", "tied, under the head's name alone", "tied, saved by AutoModel"])
def test_the_bundle_has_transformers_names_again(spelling: str, tmp_path: Path) -> None:
    read = READ[spelling]
    checkpoint = open_checkpoint(str(written(read.write, read.tied, tmp_path)))
    manifest: Manifest = export(checkpoint, tmp_path / "bundle", slots=LENGTH)
    assert manifest.conversion["cloned"] is False
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "bundle", dtype=torch.float32).eval()
    torch.testing.assert_close(theirs(some_ids(LENGTH)).logits, expected_logits(read.tied))


def test_no_name_is_too_strange(tmp_path: Path) -> None:
    """Names of any words in any order are mapped to themselves or to transformers' names, and nothing is lost."""
    dice = random.Random(7)
    words = [
        *WRAPPERS,
        "layers",
        "0",
        "1",
        "embed_tokens",
        "norm",
        "lm_head",
        "weight",
        "self_attn",
        "",
        "é",
        "rotary_emb",
    ]
    for _ in range(300):
        names = {".".join(dice.choices(words, k=dice.randint(1, 6))) for _ in range(dice.randint(1, 5))}
        stored = {name: TensorEntry(name, "F32", (1,)) for name in names}
        with suppress(UsageError):  # two may get one name
            spelled = in_hugging_face_names(stored, small_config(), "x").entries
            assert {entry.stored_name or name for name, entry in spelled.items()} == names
