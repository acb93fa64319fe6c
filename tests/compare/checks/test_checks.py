"""Each check passes a sound decoder and goes red for a broken one, and only the checks that can see a defect do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from blockexport.compare.audits.artifact_weights import ArtifactWeights
from blockexport.compare.checks import check_parameters
from blockexport.compare.checks.catalogue import ALL_CHECKS
from blockexport.compare.checks.check_causality import CausalityFigures
from blockexport.compare.checks.check_parameters import ParameterFigures
from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.compare.report.report import Report
from blockexport.models.block.cache import empty_cache
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.checkpoints.tensor_names import expected_tensors
from blockexport.models.config.arithmetic import count_parameters
from blockexport.models.element_types import BY_NAME
from blockexport.models.errors import NotJudgedError, UsageError
from blockexport.models.interface import Ends
from blockexport.runtime.eager import EagerDecoder
from tests.compare import broken
from tests.compare.broken import Breaker, Broken, ForgetfulModel, LeakyModel
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import TINY, MemoryCheckpoint, eager_model, random_checkpoint
from tests.compare.static_judge import figures_of

M = 64
ALL = {
    "prefill",
    "decode",
    "chunked",
    "spread",
    "last-slot",
    "slots",
    "capacity",
    "causality",
    "padding",
    "batch",
    "invariance",
    "greedy",
    "determinism",
    "precision",
    "parameters",
}

GRAPH = {"types", "constants"}
GROWING = {"growth"}
INTEGERS = {"integers"}
ASKED_FOR = {"serving"}
ON_GPU = {"placement"}


def options(checkpoint: Checkpoint, **changes: object) -> JudgeOptions:
    shapes = expected_tensors(checkpoint.config)
    # Positions: prefill 0 to 31, steps 32 to 43, last slots 56 to 63; greedy generates 24 to 62.
    chosen = JudgeOptions(backend="eager", decode_steps=12, prefill=32, weights=lambda: ArtifactWeights(shapes))
    return replace(chosen, **changes)  # type: ignore[arg-type]


def failed(report: Report) -> set[str]:
    return {result.name for result in report.checks if result.verdict is Verdict.FAIL}


def test_every_check_is_known_here() -> None:
    # What is read off a graph is tested with graphs, in test_type_audit.py and test_constants.py; a cache that grows in
    # test_check_growth.py; the integer path in test_check_integers.py; where nodes run
    # in test_check_placement.py.
    assert {entry.name for entry in ALL_CHECKS} == ALL | GRAPH | GROWING | INTEGERS | ASKED_FOR | ON_GPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_sound_decoder_passes_everything(
    tiny: Checkpoint, eager: Callable[..., EagerDecoder], dtype: torch.dtype
) -> None:
    decoder = eager(tiny, M, dtype)
    decoder.prefill(torch.tensor([[3, 1, 4, 1, 5]]))  # a decoder that has been used is judged like a new one
    report = judge(decoder, tiny, options(tiny))
    assert (report.verdict, report.exit_code) == (Verdict.PASS, 0), report.to_json()["checks"]
    assert {result.name for result in report.checks} == ALL
    assert (report.weight_rounding is None) is (dtype is torch.float32)


def test_what_has_to_be_made_is_made_once(tiny: MemoryCheckpoint, eager: Callable[..., EagerDecoder]) -> None:
    """The reference and eager go over the weights many times, and dequantising them takes longer than using them."""
    read = Counter[str]()

    class Counted(MemoryCheckpoint):
        def read(self, name: str) -> torch.Tensor:
            read[name] += 1
            return super().read(name)

    report = judge(eager(tiny, M), Counted(tiny.config, tiny.tensors), options(tiny))
    assert {result.name for result in report.checks} == ALL
    assert read == dict.fromkeys(tiny.tensors, 1)


DEFECTS: list[tuple[Breaker, set[str]]] = [
    (
        broken.noise_everywhere(3e-5),
        {"prefill", "decode", "chunked", "spread", "last-slot", "padding", "batch", "invariance"},
    ),
    (broken.noise_at(17, 2e-3), {"prefill", "chunked", "spread", "padding", "batch"}),
    (
        broken.noise_at(17, float("nan")),
        {"prefill", "chunked", "spread", "slots", "causality", "padding", "batch", "invariance", "determinism"},
    ),
    (broken.noise_at(40, 2e-3), {"decode", "spread"}),
    # The late rows of a batch are filled in one call, which gives outputs at all positions.
    (broken.noise_at(40, float("nan")), {"decode", "spread", "batch"}),
    (broken.noise_at(40, float("-inf")), {"decode", "spread", "batch"}),
    (broken.noise_at(50, float("nan")), {"spread", "last-slot", "batch"}),  # on the way to the last slots
    (broken.noise_at(63, 2e-3), {"spread", "last-slot", "batch"}),
    (broken.late_slot(36), {"decode", "spread", "last-slot", "capacity", "batch"}),
    (broken.late_slot(63), {"spread", "last-slot", "capacity", "batch"}),
    (broken.one_index_for_all_rows, {"batch", "invariance"}),
    (broken.rows_exchange_caches, {"batch", "invariance"}),
    (
        broken.stale_step,
        {"decode", "chunked", "spread", "last-slot", "slots", "capacity", "padding", "batch", "invariance"},
    ),
    (broken.second_choice, {"greedy", "spread"}),
    (broken.one_step_in_a_gap, {"spread"}),
    (broken.many_rows, {"batch"}),
    (broken.rows_late_in_the_cache, {"batch"}),
    (broken.looks_ahead, {"prefill", "chunked", "causality", "padding", "batch", "invariance"}),
    (
        broken.always_the_same,
        {"prefill", "decode", "chunked", "spread", "last-slot", "slots", "padding", "batch", "causality"},
    ),
]


@pytest.mark.parametrize(("breaker", "expected"), DEFECTS)
def test_a_broken_decoder_fails_where_it_is_broken(tiny: Checkpoint, breaker: Breaker, expected: set[str]) -> None:
    report = judge(Broken(eager_model(tiny), M, breaker), tiny, options(tiny))
    # Greedy tokens may or may not follow a defect: they are held to be red only where nothing else can be.
    assert failed(report) - {"greedy"} == expected - {"greedy"}, report.to_json()["checks"]
    assert failed(report) >= expected
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, 1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(LeakyModel, {"prefill", "decode", "batch", "causality"}), (ForgetfulModel, {"prefill", "decode", "batch"})],
)
def test_a_wrong_mask_fails(tiny: Checkpoint, kind: type[DecoderModel], expected: set[str]) -> None:
    report = judge(EagerDecoder(eager_model(tiny, kind=kind), M), tiny, options(tiny))
    assert failed(report) >= expected
    assert ("causality" in failed(report)) is (kind is LeakyModel)


@pytest.mark.parametrize("headless", [False, True])
def test_other_ends_of_the_stack(tiny: Checkpoint, headless: bool) -> None:
    shapes = expected_tensors(tiny.config, Ends.of(headless=headless))
    chosen = options(tiny, weights=lambda: ArtifactWeights(shapes))
    sound = judge(EagerDecoder(eager_model(tiny, headless=headless, last_logits_only=not headless), M), tiny, chosen)
    assert sound.verdict is Verdict.PASS, sound.to_json()["checks"]
    greedy = ["greedy"] if headless else []
    assert [name for name, _ in sound.skipped] == ["growth", "integers", *greedy, "types", "constants", "placement"]
    leaky = judge(
        EagerDecoder(eager_model(tiny, kind=LeakyModel, headless=headless, last_logits_only=not headless), M),
        tiny,
        chosen,
    )
    assert failed(leaky) >= {"decode", "causality", "batch"}
    late = judge(
        Broken(eager_model(tiny, headless=headless, last_logits_only=not headless), M, broken.late_slot(63)),
        tiny,
        chosen,
    )
    assert failed(late) == {"spread", "last-slot", "capacity", "batch"}


def test_parameters(tiny: Checkpoint, eager: Callable[..., EagerDecoder]) -> None:
    right = expected_tensors(tiny.config)
    k, o = "model.layers.1.self_attn.k_proj.weight", "model.layers.2.self_attn.o_proj.weight"
    wrong: list[tuple[dict[str, tuple[int, ...]], str]] = [
        ({name: shape for name, shape in right.items() if name != k}, f"{k} is missing"),
        ({**right, "model.layers.3.mlp.up_proj.weight": (44, 24)}, "model.layers.3.mlp.up_proj.weight is no weight"),
        ({**right, o: (60, 24)}, f"{o} is [60, 24] and not [24, 60]"),
    ]
    for shapes, complaint in wrong:
        chosen = options(tiny, checks=("parameters",), weights=lambda shapes=shapes: ArtifactWeights(shapes))
        report = judge(eager(tiny, M), tiny, chosen)
        assert failed(report) == {"parameters"}
        assert complaint in report.checks[0].message
    # The arithmetic is a second opinion on the list of names: both would have to be wrong.
    report = judge(eager(tiny, M), tiny, options(tiny, checks=("parameters",)))
    assert figures_of(report.checks[0], ParameterFigures).found == sum(
        tensor.numel() for tensor in eager_model(tiny).parameters()
    )


def test_parameters_are_also_held_against_the_arithmetic(
    tiny: Checkpoint, eager: Callable[..., EagerDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    less = count_parameters(replace(tiny.config, qk_norm=False))
    monkeypatch.setattr(check_parameters, "count_parameters", lambda config: less)
    report = judge(eager(tiny, M), tiny, options(tiny, checks=("parameters",)))
    assert failed(report) == {"parameters"} and "by the arithmetic" in report.checks[0].message


@pytest.mark.parametrize("tied", [False, True])
def test_a_headless_model_lacks_the_bias_of_its_head_and_keeps_its_positions(tied: bool) -> None:
    config = replace(TINY, head_bias=True, learned_positions=True, tie_word_embeddings=tied)
    checkpoint = random_checkpoint(config)
    decoder = EagerDecoder(eager_model(checkpoint, headless=True), M)
    shapes = expected_tensors(config, Ends.of(headless=True))
    chosen = options(checkpoint, checks=("parameters",), weights=lambda: ArtifactWeights(shapes))
    assert judge(decoder, checkpoint, chosen).verdict is Verdict.PASS


def test_weights_of_another_model_fail(tiny: Checkpoint, eager: Callable[..., EagerDecoder]) -> None:
    other = random_checkpoint(TINY, seed=1)
    assert failed(judge(eager(other, M), tiny, options(tiny))) >= {"prefill", "decode", "last-slot", "batch", "greedy"}


def test_a_precision_that_eager_overflows_in_is_bad(eager: Callable[..., EagerDecoder]) -> None:
    huge = random_checkpoint(TINY)
    huge.tensors["model.layers.0.mlp.down_proj.weight"] *= 30000
    sound_in_32 = judge(eager(huge, M), huge, options(huge))
    assert sound_in_32.verdict is Verdict.PASS

    class Wide(EagerDecoder):
        """Computes in float32 and says that it is float16."""

        def _allocate(self, batch_size: int) -> None:
            self._past = empty_cache(self.config, batch_size, self.max_sequence_length, torch.float32)

    decoder = Wide(eager_model(huge), M)
    decoder.interface = replace(decoder.interface, element=BY_NAME["float16"])
    report = judge(decoder, huge, options(huge, checks=("prefill", "decode")))
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, 1)
    assert "eager PyTorch itself gives NaN or infinity" in report.checks[0].message
    # An artifact that overflows as well is still a failure: NaN is never good.
    assert failed(judge(eager(huge, M, torch.float16), huge, options(huge, checks=("prefill",)))) == {"prefill"}


def test_what_cannot_be_judged_is_said_before_any_work(tiny: Checkpoint, eager: Callable[..., EagerDecoder]) -> None:
    with pytest.raises(NotJudgedError, match="--backend replay"):
        judge(eager(tiny, M, torch.bfloat16), tiny, options(tiny, backend="onnxruntime"))
    with pytest.raises(UsageError, match=r"no check 'prefil' \(did you mean prefill\?\): there are prefill, decode"):
        judge(eager(tiny, M), tiny, options(tiny, checks=("prefil",)))


@pytest.mark.parametrize("slots", [2, 3, 5, 11, 12, 13])
def test_small_caches(tiny: Checkpoint, eager: Callable[..., EagerDecoder], slots: int) -> None:
    chosen = JudgeOptions(backend="eager")
    report = judge(eager(tiny, slots), tiny, chosen)
    assert report.verdict is Verdict.PASS, report.to_json()["checks"]
    assert failed(judge(Broken(eager_model(tiny), slots, broken.late_slot(slots - 1)), tiny, chosen)) >= {"last-slot"}


def test_one_check_runs_only_what_it_needs(tiny: Checkpoint, eager: Callable[..., EagerDecoder]) -> None:
    report = judge(eager(tiny, M), tiny, options(tiny, checks=("decode",)))
    assert [result.name for result in report.checks] == ["decode"]
    assert report.tokens.count == 32 + 12 and report.tokens.last == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tokens_that_are_all_but_the_same_are_no_failure(
    eager: Callable[..., EagerDecoder], dtype: torch.dtype
) -> None:
    twins, clones = random_checkpoint(TINY), random_checkpoint(TINY)
    table_VD = twins.tensors["model.embed_tokens.weight"]
    table_VD[1::2] = table_VD[:-1:2] * (1 + 1e-8)  # id and id + 1, the last one aside
    clones.tensors["model.embed_tokens.weight"][:] = table_VD[3]
    for checkpoint, moves in ((twins, True), (clones, False)):
        report = judge(eager(checkpoint, M, dtype), checkpoint, options(checkpoint, checks=("causality",)))
        # Where no token moves anything, there is nothing that could have moved too early.
        assert report.verdict is (Verdict.PASS if moves else Verdict.NOT_JUDGED), report.checks[0]
        figures = figures_of(report.checks[0], CausalityFigures)
        assert all((change.effect > 8 * figures.limit) is moves for change in figures.changes)
        deaf = judge(
            Broken(eager_model(checkpoint, dtype), M, broken.always_the_same),
            checkpoint,
            options(checkpoint, checks=("causality",)),
        )
        assert (failed(deaf) == {"causality"}) is moves


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_wrong_slots_of_a_tiny_cache_fail(tiny: Checkpoint, slots: int) -> None:
    def judged(breaker: Breaker, dtype: torch.dtype) -> Report:
        decoder = Broken(eager_model(tiny, dtype), slots, breaker)
        return judge(decoder, tiny, JudgeOptions(backend="eager", checks=("slots",)))

    for dtype in (torch.float32, torch.float16):
        assert judged(broken.gain(1.0), dtype).verdict is Verdict.PASS
        assert failed(judged(broken.gain(1.05), dtype)) == {"slots"}
        assert slots == 1 or failed(judged(broken.slots_exchanged, dtype)) == {"slots"}


def test_few_different_tokens_are_a_note(tiny: Checkpoint, eager: Callable[..., EagerDecoder]) -> None:
    report = judge(eager(tiny, M), tiny, options(tiny, token_ids=[5, 6], checks=("prefill",)))
    assert [note[:32] for note in report.notes] == ["only 2 different tokens among th"]
    assert not judge(eager(tiny, M), tiny, options(tiny, checks=("prefill",))).notes
