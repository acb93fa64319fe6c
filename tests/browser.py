"""Headless Chromium for tests: what a page prints to its console, what it asks the network for, and how it looks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import absent

_QUIET = (
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--virtual-time-budget=4000",
)
_BROWSER = "not an origin"  # the initiator of what Chromium asks for on its own account


def chromium() -> str:
    """The browser; skips where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        absent("chromium is not installed (apt-get install chromium)", "BLOCKEXPORT_REQUIRE_CHROMIUM")
        raise AssertionError
    return found


@dataclass(frozen=True)
class Visit:
    """What came of opening a page: its document at the end, its console's lines, and the addresses it asked for."""

    document: str
    console: list[str]
    requests: list[str]


def visit(page: Path, scratch: Path, *flags: str, dark: bool = False) -> Visit:
    """Open a file.

    Args:
        page: the file.
        scratch: an empty folder for the browser's own files.
        flags: more of Chromium's switches.
        dark: let the system prefer dark colours.
    """
    net_log = scratch / "net-log.json"
    command = [
        chromium(),
        *_QUIET,
        f"--user-data-dir={scratch / 'profile'}",
        f"--log-net-log={net_log}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *flags,
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = re.findall(r":CONSOLE[:(]\d+\)?\] (.*)", done.stderr)
    return Visit(done.stdout, console, _requests(json.loads(net_log.read_text())))


def _requests(log: dict[str, Any]) -> list[str]:
    started = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [event["params"] for event in log["events"] if event["type"] == started and "url" in event["params"]]
    return [params["url"] for params in asked if params["initiator"] != _BROWSER]
