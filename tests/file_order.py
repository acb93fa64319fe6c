"""The order in which test files are handed out: the longest first, so that no worker ends with one of them alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

LONGEST = (
    "test_docs.py",
    "runtime/test_aoti.py",
    "runtime/cpp/test_cpp_sanitizers.py",
    "test_smollm2.py",
    "export/tensorrt/test_trt_build.py",
    "runtime/cpp/test_cpp.py",
    "compare/test_false_alarms.py",
    "cli/test_onnx_stories.py",
    "compare/test_foreign_conventions.py",
    "export/tensorrt/test_trt_smollm2.py",
    "cli/test_cpp.py",
    "compare/checks/test_check_calls.py",
    "cli/test_full_disk.py",
    "cli/test_trt.py",
    "compare/explain/test_explain.py",
    "compare/explain/test_diagnose.py",
    "compare/explain/test_bug_zoo_settings.py",
    "compare/test_processors.py",
    "runtime/cpp/test_cpp_tokenizer.py",
    "export/graph/test_onnx_graph.py",
    "runtime/test_pt2_file.py",
    "compare/explain/test_gaps.py",
    "compare/report/test_report_html.py",
    "cli/test_onnx_families.py",
    "compare/explain/test_bug_zoo_stories.py",
    "compare/explain/test_bug_zoo.py",
    "runtime/text/test_bounded.py",
    "compare/test_judge_foreign.py",
    "compare/checks/test_vacuous.py",
    "test_packaging.py",
    "export/bundle/test_external_data.py",
    "cli/test_hostile.py",
    "cli/test_selftest.py",
    "cli/test_onnx_explained.py",
)
"""From `pytest --durations=0`; where a file stands among its neighbours matters little."""


def longest_first(items: Iterable[pytest.Item], root: str) -> list[pytest.Item]:
    """The tests of those files in their order, then all others; within a file as they were."""
    places = {f"{root}/{name}": place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(str(item.path), len(places)))
