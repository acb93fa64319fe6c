"""`blockexport bench`: one run for real, and with made-up figures its table, its JSON, its page and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blockexport.cli import bench_view as view
from blockexport.cli.bench_page import MARK
from blockexport.cli.main import main
from blockexport.runtime.bench import bench as bench_module
from tests.browser import visit
from tests.exported import export, random_model
from tests.runtime.bench.made_up_sides import MadeUp


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    export(random_model(), folder)
    return folder


@pytest.fixture
def made_up(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    answers = MadeUp({f"onnxruntime {bundle}": 1e-3, f"eager {bundle}": 5e-3, f"onnxruntime-genai {bundle}": 2e-3})
    monkeypatch.setattr(bench_module, "in_a_process", answers)
    return answers


def bench(bundle: Path, *options: str) -> int:
    return main(["bench", str(bundle), "--threads", "1", "--steps", "4", *options])


def test_for_real_in_two_processes(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bench(bundle, "--against", f"genai:{bundle}", "-T", "9", "-B", "2", "--rounds", "1", "--json") == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert err == ""
    assert [side["name"].split()[0] for side in found["sides"]] == ["onnxruntime", "onnxruntime-genai"]
    for side in found["sides"]:
        assert side["load_seconds"]["median"] > 0
        (case,) = side["cases"]
        assert (case["batch_size"], case["context"]) == (2, 9)
        for phase in (case["prefill"], case["decode"]):
            assert phase["tokens_per_second"] > 0 and 0 < phase["share_of_roofline"] < 2
        before, after = side["memory_bytes_before_load"], side["memory_bytes"]
        assert 0 < before["resident"] <= after["resident"] <= after["peak"]
        assert 0 < before["own"] <= after["own"] < after["resident"]
    (machine,) = found["machine"]
    assert machine["memory_bandwidth"] > 1e8 and machine["matrix_peak"] > 1e8


def test_the_table(bundle: Path, made_up: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(bundle, "--backend", "onnxruntime", "--backend", "eager", "-T", "9", "-T", "20") == 0
    out = capsys.readouterr().out
    assert "CPU: 2.0 GB/s read from memory, 5 GFLOP/s in float32 matrices\n" in out
    assert "medians of 5 rounds, the sides in turns" in out
    # Side 2, context 20: five rounds of 5, 10, 15, 20, 25 ms for a prompt; a step is 10 times that over 4.
    rows = re.findall(r"^ +1 +20 +\[2\] (.*)$", out, re.MULTILINE)
    assert [" ".join(row.split()) for row in rows] == [
        "15.0 ms 5.00 - 25.0 1,333 1% 5.00 0.00075 J",
        "37.5 ms 12.5 - 62.5 26.7 0.1% 5.00 0.0225 J",
    ]


def test_json_and_a_page_at_once(bundle: Path, made_up: MadeUp, tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "bench.html"
    assert bench(bundle, "--json", "--html", str(page), "--rounds", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert [case["context"] for case in found["sides"][0]["cases"]] == [24]  # what 29 slots hold before 4 steps
    assert page.read_text().endswith(MARK)
    assert [path.name for path in tmp_path.iterdir()] == ["bench.html"]


def test_the_page_is_quiet_alone_and_whole(bundle: Path, made_up: MadeUp, tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    against = ("--against", f"genai:{bundle}")
    assert bench(bundle, *against, "-T", "9", "-B", "1", "-B", "3", "--rounds", "2", "--html", str(page), "-q") == 0
    seen = visit(page, tmp_path)
    assert (seen.console, seen.requests) == ([], [])
    assert seen.document.count("<rect") == 8  # two phases, two cases, two sides
    assert seen.document.count('class="allowed"') == 8
    assert "9 tokens, 3 rows" in seen.document and "for trying out" in seen.document
    # The slower side's bar is half as long, and the roofline's mark ends the longest chart.
    ends = [float(end) for end in re.findall(r'<rect width="([\d.]+)"', seen.document)]
    assert ends[1] == pytest.approx(ends[0] / 2, abs=0.1)
    assert 'd="M1000.0 0V100"' in seen.document
    assert bench(bundle, *against, "-T", "9", "--rounds", "1", "--html", str(page), "-q") == 0, "its own is replaced"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--backend", "onnxruntim"], 2, "no backend 'onnxruntim' (did you mean onnxruntime?)"),
        (["--against", "nowhere"], 2, "--against nowhere: there is no nowhere"),
        (["-T", "25"], 2, "need 30 cache slots, and onnxruntime BUNDLE has 29: take a context of at most 24, or give"),
        (["-M", "65", "--rounds", "1"], 2, "65"),
        (["--steps", "0"], 2, "--steps is 0, and has to be a whole number of at least 1"),
        (["--threads", "0"], 2, "--threads 0 is outside 1.."),
        (["--html", "BUNDLE/page.html"], 2, "lies in the input BUNDLE"),
        (["--html", "BUNDLE"], 2, "BUNDLE"),
        (["--html", "HERE/none/page.html"], 2, "there is no folder HERE/none. Make it first"),
        (["--html", "HERE/theirs.html"], 2, "would replace a file that is not a page of blockexport's"),
        (["-B", "1000000000"], 3, "a cache of 1000000000 rows of 29 slots takes"),
        (["--backend", "tensorrt"], 3, "tensorrt is not installed: pip install tensorrt"),
    ],
)
def test_bad_input_is_one_message(
    options: list[str], code: int, said: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs.html"
    theirs.write_text("<p>mine</p>")

    def filled(text: str) -> str:
        return text.replace("BUNDLE", str(bundle)).replace("HERE", str(tmp_path))

    files = sorted(bundle.iterdir())
    assert bench(bundle, *map(filled, options)) == code
    out, err = capsys.readouterr()
    usage = 2 * ("--steps" in options)  # Typer's own complaints have two more lines
    assert out == "" and filled(said) in err and err.count("\n") == 1 + usage
    assert theirs.read_text() == "<p>mine</p>" and sorted(bundle.iterdir()) == files
    assert list(tmp_path.iterdir()) == [theirs]


def test_figures_as_people_read_them() -> None:
    assert [view.milliseconds(s) for s in (0.000_123_4, 0.001_234, 0.012_34, 0.123_4, 1.234)] == [
        "0.123 ms", "1.23 ms", "12.3 ms", "123 ms", "1,234 ms",
    ]  # fmt: skip
    assert [view.rate(r) for r in (3.14, 99.94, 1234.5)] == ["3.1", "99.9", "1,234"]
    assert [view.percent(p) for p in (None, 0.001, 0.456, 1.2)] == ["", "0.1%", "46%", "120%"]
    assert [view.memory_size(m) for m in (None, 1.5e9)] == ["not told", "1.4 GiB"]
