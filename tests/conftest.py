"""Rules for the whole suite: what a test marked `gpu` does on a machine without one."""

from __future__ import annotations

import pytest

from tests.support import absent


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where torch sees no CUDA device, or fail them when BLOCKEXPORT_REQUIRE_GPU=1."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        absent("torch sees no CUDA device", "BLOCKEXPORT_REQUIRE_GPU")
