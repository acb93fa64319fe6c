"""`--logits last`: in a right-padded batch the logits are those of each row's last token, not of the padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockexport.compare.core.check import Verdict
from blockexport.compare.judge import JudgeOptions
from blockexport.models.block.decoder_model import DecoderModel
from blockexport.models.errors import UsageError
from blockexport.models.precision import Precision
from blockexport.runtime.eager import EagerDecoder
from blockexport.runtime.open import open_decoder
from tests.compare.judged import judge
from tests.compare.memory_checkpoint import TINY, eager_model, random_checkpoint
from tests.exported import export, random_model

SLOTS = 29
ROWS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 0, 0, 0], [8, 50, 50, 50, 50, 50]])
LENGTHS = torch.tensor([6, 3, 1])


@pytest.mark.parametrize(
    ("backend", "precision"),
    [("onnxruntime", Precision.FP32), ("onnxruntime", Precision.FP16), ("replay", Precision.BF16)],
)
def test_each_row_has_the_logits_of_its_last_token(tmp_path: Path, backend: str, precision: Precision) -> None:
    """Two chunks of unequal rows and a step, against each row by itself in chunks without padding."""
    export(random_model(), tmp_path / "bundle", precision, SLOTS, last_logits_only=True)
    decoder = open_decoder(tmp_path / "bundle", backend, threads=1)
    decoder.reset(3)
    given = [decoder.prefill(ROWS, LENGTHS), decoder.prefill(ROWS.flip(0), LENGTHS.flip(0)), decoder.step(ROWS[:, :1])]
    assert decoder.lengths_B.tolist() == [8, 7, 8]
    for row in range(3):
        decoder.reset(1)
        alone = [
            decoder.prefill(ROWS[row : row + 1, : int(LENGTHS[row])]),
            decoder.prefill(ROWS.flip(0)[row : row + 1, : int(LENGTHS[2 - row])]),
            decoder.step(ROWS[row : row + 1, :1]),
        ]
        for together, by_itself in zip(given, alone, strict=True):
            assert together.shape == (3, 1, 101)
            torch.testing.assert_close(together[row], by_itself[0], rtol=0.02, atol=0.02)


def test_positions_of_padding_that_are_zero_say_the_same() -> None:
    """As onnxruntime-genai gives them."""
    decoder = EagerDecoder(eager_model(random_model(), last_logits_only=True), SLOTS)
    decoder.reset(3)
    expected = decoder.prefill(ROWS, LENGTHS)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    decoder.reset(3)
    torch.testing.assert_close(decoder.forward(ROWS, positions), expected)


@pytest.mark.parametrize("positions", [[0, 2, 1], [1, 1, 2], [0, 1, -1], [0, 1, 3]])
def test_positions_that_do_not_count_up_to_the_last_token_are_refused(positions: list[int]) -> None:
    decoder = EagerDecoder(eager_model(random_model(), last_logits_only=True), SLOTS)
    with pytest.raises(UsageError, match="must count up by one"):
        decoder.forward(torch.tensor([[1, 2, 3]]), torch.tensor([positions]))


class LastColumn(DecoderModel):
    """Gives the logits of the last column, whether it is padding or not."""

    def leave(self, x_TD: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        return super().leave(x_TD, torch.arange(position_ids_BS.shape[1]).expand_as(position_ids_BS))


def test_a_file_that_gives_the_last_column_fails_where_rows_are_unequal() -> None:
    checkpoint = random_checkpoint(TINY)
    options = JudgeOptions(backend="eager", decode_steps=12, prefill=32, checks=("prefill", "batch", "padding"))
    model = eager_model(checkpoint, kind=LastColumn, last_logits_only=True)
    report = judge(EagerDecoder(model, 64), checkpoint, options)
    verdicts = {result.name: result.verdict for result in report.checks}
    assert verdicts == {"prefill": Verdict.PASS, "batch": Verdict.FAIL, "padding": Verdict.FAIL}
