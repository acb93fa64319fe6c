"""The bug zoo in every precision and with a softmax ten times as sharp: what is still found out about each defect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from blockexport.models.config.model_config import ModelConfig
from blockexport.models.precision import Precision
from tests.exported import Gainful, export
from tests.zoo import Exhibit
from tests.zoo_judge import ALONG, PREFILL, SLOTS, Cage, compare, spoil

SHARP = 10


class Sharp(Gainful):
    """Its softmax is ten times as sharp: the gain of the queries' norm is ten times as large."""

    def read(self, name: str) -> torch.Tensor:
        values = super().read(name)
        return values * SHARP if name.endswith("q_norm.weight") else values


@dataclass(frozen=True)
class Setting:
    """How the zoo's models are exported and judged."""

    precision: Precision
    sharp: bool

    def __str__(self) -> str:
        return f"{self.precision}{'-sharp' if self.sharp else ''}"

    @property
    def backend(self) -> str:
        """The one whose arithmetic is that of the precision."""
        return "onnxruntime" if self.precision is Precision.FP32 else "replay"

    def cage(self, config: ModelConfig, folder: Path) -> Cage:
        """A sound bundle of the setting and its source."""
        checkpoint = (Sharp if self.sharp else Gainful)(config, seed=5, reference="tests", std=0.2)
        export(checkpoint, folder, self.precision, SLOTS)
        return Cage(folder, checkpoint)


SETTINGS = [
    Setting(Precision.FP16, sharp=False),
    Setting(Precision.BF16, sharp=False),
    Setting(Precision.FP32, sharp=True),
    Setting(Precision.FP16, sharp=True),
    Setting(Precision.BF16, sharp=True),
]
"""Beside float32 and a softmax as it comes, in which everything is found: `test_bug_zoo.py`."""


def found_out(exhibit: Exhibit, setting: Setting, cage: Cage, folder: Path) -> Mapping[str, str]:
    """What `compare` finds out about a defect: what it says under `detected`, `located` and `named`, where right."""
    spoilt = spoil(exhibit, cage, folder / "spoilt")
    backend = exhibit.backend if setting.precision is Precision.FP32 else setting.backend
    along = [f"--check={name}" for name in ALONG]
    for asked in (along, []):
        target = folder / f"parity-{len(asked)}"
        code, report = compare(cage, spoilt, target, "--backend", backend, *asked, codes=(0, 1, 3))
        if code == 1:
            break
    else:
        return {}
    found = {"detected": ", ".join(check["name"] for check in report["checks"] if check["verdict"] == "fail")}
    explanation = report["explanation"] or {"located": None, "causes": []}
    located, causes = explanation["located"], explanation["causes"]
    if located is not None:
        right = (located["layer"], located["position"] >= PREFILL) == (exhibit.layer, exhibit.decode)
        place = f"{located['position']}/{located['layer']}/{located['site']}"
        found["located" if right and located["site"] in exhibit.sites else "located elsewhere"] = place
    if causes:
        names = [cause["name"] for cause in causes]
        found["named" if names[0] == exhibit.defect else "named otherwise"] = ", ".join(names)
    return found
