"""Judgements that say nothing: models, tokens and caches that no wrong artifact would be noticed on. None is a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from blockexport.compare.audits.artifact_weights import ArtifactWeights
from blockexport.compare.checks.check_cached_path import decode
from blockexport.compare.core.check import Outcome, Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.report.report import Report
from blockexport.models.config.model_config import ModelConfig
from blockexport.runtime.eager import EagerDecoder
from tests.compare.broken import Breaker, Broken, always_the_same, noise_at
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import TINY, eager_model, random_checkpoint

M = 48
ONE_LAYER = replace(TINY, num_hidden_layers=1, layer_types=("full_attention",))
DEEP = replace(TINY, num_hidden_layers=10, layer_types=("full_attention",) * 10, sliding_window=None)
ALL_WINDOWED = replace(TINY, sliding_window=1, layer_types=("sliding_attention",) * 3)

Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors], None]
NOT_JUDGED, FAIL = Verdict.NOT_JUDGED, Verdict.FAIL


def times(factor: float, *endings: str) -> Edit:
    """Every tensor with one of the endings, times a factor."""

    def edit(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith(endings):
                tensors[name] *= factor

    return edit


def rows_alike(name: str) -> Edit:
    """Every row of a table is its first."""

    def edit(tensors: Tensors) -> None:
        tensors[name][:] = tensors[name][:1].clone()

    return edit


def exponent_bit(name: str) -> Edit:
    """One bit of one exponent turned over: a weight of 1e38."""

    def edit(tensors: Tensors) -> None:
        tensors[name].view(torch.int32)[3, 5].bitwise_xor_(1 << 30)

    return edit


def nothing(tensors: Tensors) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Situation:
    """What is judged, what comes of it, and a part of what is said."""

    edit: Edit
    said: str
    verdict: Verdict = NOT_JUDGED
    dtype: torch.dtype = torch.float32
    config: ModelConfig = TINY
    checks: tuple[str, ...] = ()
    token_ids: tuple[int, ...] | None = None
    slots: int = M
    last: bool = False
    breaker: Breaker | None = None

    def judged(self) -> Report:
        checkpoint = random_checkpoint(self.config)
        self.edit(checkpoint.tensors)
        model = eager_model(checkpoint, self.dtype, last_logits_only=self.last)
        decoder = Broken(model, self.slots, self.breaker) if self.breaker else EagerDecoder(model, self.slots)
        options = JudgeOptions(backend="eager", checks=self.checks, token_ids=self.token_ids)
        return judge(decoder, checkpoint, options)


HEAD, UP, EMBEDDING = "lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"
BIT = exponent_bit("model.layers.2.mlp.down_proj.weight")
NO_TOKEN = replace(TINY, vocab_size=1)
HALF, BRAIN = torch.float16, torch.bfloat16
HIDDEN = "what visible slots hold has no influence either"

SITUATIONS: dict[str, Situation] = {
    "a vocabulary of one token": Situation(nothing, "all the same among the outputs", config=NO_TOKEN),
    "a vocabulary of one token, tokens alone": Situation(
        nothing, "all the same among the outputs", config=NO_TOKEN, checks=("greedy",)
    ),
    "a head of zeros": Situation(times(0, HEAD), "all the same"),
    "a head whose rows are alike": Situation(rows_alike(HEAD), "among the outputs of a position"),
    "a final norm of zeros": Situation(times(0, "model.norm.weight"), "all the same"),
    "embeddings of zeros": Situation(times(0, EMBEDDING, ".bias"), "all the same"),
    "embeddings that are alike": Situation(rows_alike(EMBEDDING), "from position to position"),
    "the same token throughout": Situation(nothing, "from position to position", token_ids=(7,)),
    "float32 overflows in a norm, prefill": Situation(BIT, "would pass", checks=("prefill",)),
    "float32 overflows in a norm, decode": Situation(BIT, "would pass", checks=("decode",)),
    "float32 overflows in a norm, chunks": Situation(BIT, "would pass", checks=("chunked",)),
    "float32 overflows in a norm, spread": Situation(BIT, "would pass", checks=("spread",)),
    "float32 overflows in a norm, last slots": Situation(BIT, "would pass", checks=("last-slot",)),
    "float32 overflows in a norm, padding": Situation(BIT, "would pass", checks=("padding",)),
    "float32 overflows in a norm, batch": Situation(BIT, "would pass", checks=("batch",)),
    "float32 overflows in a norm, invariance": Situation(BIT, "all the same", checks=("invariance",)),
    "float32 overflows in a norm, tokens": Situation(BIT, "would pass", checks=("greedy",)),
    "float32 overflows in a norm, precision": Situation(BIT, "the checkpoint's own numbers", checks=("precision",)),
    "embeddings whose squares overflow": Situation(times(1e30, EMBEDDING), "would pass"),
    "float64 overflows": Situation(
        times(1e38, "norm.weight", "proj.weight"), "so there is no floor", checks=("prefill",)
    ),
    "one output, twice the same": Situation(times(0, HEAD), "is the same number", checks=("determinism",)),
    "the same NaN twice": Situation(
        nothing, "NaN or infinity", FAIL, checks=("determinism",), breaker=noise_at(3, float("nan"))
    ),
    "NaN in the last slot": Situation(
        nothing, "NaN or infinity", FAIL, checks=("capacity",), breaker=noise_at(M - 1, float("nan"))
    ),
    "attention that adds nothing": Situation(times(0, "o_proj.weight"), HIDDEN, checks=("slots",)),
    "a window of one slot": Situation(nothing, HIDDEN, config=ALL_WINDOWED, checks=("slots",)),
    "changed tokens that change nothing": Situation(rows_alike(EMBEDDING), "nothing at all", checks=("causality",)),
    "one layer and the last logits": Situation(
        nothing, "one layer's earlier queries", config=ONE_LAYER, checks=("causality",), last=True
    ),
    "one slot, and later tokens changed": Situation(nothing, "no earlier position", checks=("causality",), slots=1),
    "one slot, and a step after the prompt": Situation(nothing, "does not apply", checks=("decode",), slots=1),
    "a graph, where none is run": Situation(nothing, "runs no ONNX graph", checks=("types", "constants")),
    "weights, where no file is read": Situation(nothing, "runs no file", checks=("parameters",)),
    "softmax so sharp that bfloat16 is chance": Situation(
        times(100, "q_norm.weight"), "what is compared is noise", dtype=BRAIN, config=DEEP, checks=("prefill", "greedy")
    ),
    "that, tokens alone": Situation(
        times(100, "q_norm.weight"), "what is compared is noise", dtype=BRAIN, config=DEEP, checks=("greedy",)
    ),
    "a head of 1e-9 in float16": Situation(times(1e-9, HEAD), "lm_head.weight loses 100% of its size", FAIL, HALF),
    "a head of 1e-9 in float16, tokens": Situation(
        times(1e-9, HEAD), "what is compared is noise", dtype=HALF, checks=("greedy",)
    ),
    "gains of 1e-8 in float16": Situation(times(1e-8, "model.norm.weight"), "model.norm.weight loses", FAIL, HALF),
    "gains of 1e-8 in float16, prefill": Situation(
        times(1e-8, "model.norm.weight"), "would pass", dtype=HALF, checks=("prefill",)
    ),
    "logits that vanish in float16": Situation(
        times(3e-5, HEAD, "model.norm.weight"), "Export with --bf16 or --fp32", FAIL, HALF
    ),
    "an activation beyond float16": Situation(times(8e4, UP), "layer 1, mlp.up_proj becomes NaN", FAIL, HALF),
    "a residual stream beyond float16": Situation(
        times(2e2, "up_proj.weight", "down_proj.weight"), "Export with --bf16 or --fp32", FAIL, HALF
    ),
    "attention beyond float16": Situation(times(8e4, "v_proj.weight"), "becomes NaN or infinite", FAIL, HALF),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_says_nothing_is_no_pass(name: str) -> None:
    situation = SITUATIONS[name]
    report = situation.judged()
    checks = report.to_json()["checks"]
    assert report.verdict is situation.verdict, checks
    told = [report.summary, *(check["message"] for check in checks if check["verdict"] != "pass")]
    assert any(situation.said in message for message in told), told


def test_sound_ones_beside_them_pass() -> None:
    for sound in (
        Situation(nothing, ""),
        Situation(nothing, "", dtype=HALF),
        Situation(nothing, "", config=replace(TINY, vocab_size=2)),
        Situation(nothing, "", config=replace(TINY, vocab_size=3)),
        Situation(nothing, "", token_ids=(7, 8)),
        Situation(times(1e-9, HEAD), ""),
    ):
        report = sound.judged()
        assert report.verdict is Verdict.PASS, report.to_json()["checks"]


def test_an_artifact_that_ignores_its_tokens_fails_where_they_are_told_apart() -> None:
    assert Situation(nothing, "", breaker=always_the_same, token_ids=(7, 8)).judged().verdict is FAIL


def test_a_check_that_compared_nothing_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(decode, function=lambda _: Outcome("fine", 0))
    monkeypatch.setattr("blockexport.compare.checks.catalogue.ALL_CHECKS", (entry,))
    report = Situation(nothing, "").judged()
    assert (report.verdict, report.exit_code, report.checks[0].message) == (NOT_JUDGED, 3, "nothing was compared")


def test_a_file_without_weights_is_no_pass() -> None:
    checkpoint = random_checkpoint(TINY)
    options = JudgeOptions(backend="eager", checks=("parameters",), weights=lambda: ArtifactWeights({}))
    assert judge(EagerDecoder(eager_model(checkpoint), M), checkpoint, options).verdict is FAIL
