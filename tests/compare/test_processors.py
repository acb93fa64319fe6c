"""Limits rest on no one machine's rounding: sound files pass with the kernels of other processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import TABLE
from tests.support import REPOSITORY, shared_path

OLDEST = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
Record = Callable[[str, str], None]

SETTINGS: list[tuple[dict[str, str], int]] = [
    (OLDEST, 2),
    *(({"ATEN_CPU_CAPABILITY": level}, 1) for level in ("default", "avx2", "avx512")),
    *(({"MKL_CBWR": branch}, 1) for branch in ("COMPATIBLE", "AVX2")),
    *(({"ONEDNN_MAX_CPU_ISA": level}, 1) for level in ("SSE41", "AVX2", "AVX512_CORE")),
    *(({}, threads) for threads in (1, 2, 3, 4)),
]


def marked(setting: tuple[dict[str, str], int]) -> object:
    environment, threads = setting
    name = "-".join([*environment.values(), f"{threads}-threads"])
    return pytest.param(*setting, id=name, marks=pytest.mark.slow if environment is OLDEST else pytest.mark.full)


@pytest.mark.parametrize(("environment", "threads"), [marked(setting) for setting in SETTINGS])
@pytest.mark.parametrize("trained", [None, "stories260K"])
def test_sound_files_pass_with_other_kernels(
    trained: str | None, environment: dict[str, str], threads: int, record_property: Record
) -> None:
    given = [] if trained is None else [str(shared_path(f"models/{trained}"))]
    command = [sys.executable, "-P", "-m", "tests.compare.numerical_core", *given]
    settings = {**environment, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == (5 if trained is None else 2)
    for line in lines:
        what = " ".join(f"{key}={value}" for key, value in settings.items() if key != "PYTHONPATH")
        figures = f"rms {line['rms_share']:.2f} largest {line['max_share']:.2f} of the limit, replay {line['replayed']}"
        record_property(TABLE, f"{what:55} {line['verdict']:5} {figures}  {line['model'][:40]}")
    for line in lines:
        # In half precision with a sharp softmax the noise may drown the signal on some kernels, which is no alarm.
        unsaid = ["not judged"] if "times as sharp" in line["model"] and "fp32" not in line["model"] else []
        assert line["verdict"] in ["pass", *unsaid], line
        assert line["located"] is None and (line["replayed"] is None or line["replayed"][0]), line
