"""What an export begins and ends with: as it was asked for, and where embeddings are, as the model's own files say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blockexport.models.checkpoints.checkpoint import Checkpoint
from blockexport.models.errors import UsageError
from blockexport.models.formats.sentence_transformers import MODULES, read_embedding
from blockexport.models.interface import Ends, Pooling

EMBED = "embed"


@dataclass(frozen=True)
class AskedEnds:
    """As the arguments of `export_bundle`, by whose names they are called."""

    headless: bool
    last_logits_only: bool
    task: str | None
    pooling: str | None
    normalize: bool | None

    @property
    def without_head(self) -> bool:
        """Whether nothing reads an output head."""
        return self.headless or self.task is not None

    def check(self, layers: str | None, head: str | None) -> None:
        """Whether what was asked for goes together, `--layers` and `--head` among it.

        Raises:
            UsageError: it does not.
        """
        if self.headless and self.last_logits_only:
            raise UsageError("--headless has no logits: leave out --logits last")
        if self.task is None:
            if self.pooling is not None or self.normalize is not None:
                asked = (
                    "--pooling" if self.pooling is not None else "--normalize" if self.normalize else "--no-normalize"
                )
                raise UsageError(f"{asked} says how embeddings are made: add --task {EMBED}, or leave it out")
            return
        if self.task != EMBED:
            raise UsageError(f"--task {self.task!r} is none: there is {EMBED}; without --task the model gives logits")
        if self.pooling is not None and self.pooling not in list(Pooling):
            raise UsageError(f"--pooling {self.pooling!r} is neither {' nor '.join(Pooling)}")
        given = {
            "--headless": self.headless,
            "--logits last": self.last_logits_only,
            "--layers": layers,
            "--head": head,
        }
        for option, value in given.items():
            if value:
                raise UsageError(f"--task {EMBED} makes embeddings of the states of all layers: leave out {option}")

    def of(self, checkpoint: Checkpoint, note: Callable[[str], None]) -> tuple[Ends, int | None]:
        """The ends, and the tokens to which the model's files cut texts, where they say so.

        Raises:
            UsageError: nothing says how embeddings are made, or it cannot be exported.
        """
        if self.task is None:
            return Ends.of(headless=self.headless, last_logits_only=self.last_logits_only), None
        if self.pooling is not None:  # the files are not asked
            return Ends.of_embedding(Pooling(self.pooling), normalize=self.normalize is not False), None
        folder = checkpoint.base.folder
        said = None if folder is None else read_embedding(folder, checkpoint.config.hidden_size)
        if said is None:
            raise UsageError(
                f"{checkpoint.source.reference} has no {MODULES} of sentence-transformers', which would say how its "
                "embeddings are made: add --pooling last or --pooling mean, as its publisher has it"
            )
        for line in said.notes:
            note(line)
        normalize = said.normalize if self.normalize is None else self.normalize
        return Ends.of_embedding(said.pooling, normalize=normalize), said.longest
