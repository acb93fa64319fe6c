"""Hugging Face ids: from the local cache without a network, and each failure in one message."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants, errors

from blockexport.models.checkpoints.hub import PATTERNS, HubId, fetch_from_hub, parse_hub_id
from blockexport.models.checkpoints.sources import open_checkpoint
from blockexport.models.errors import UsageError
from tests.small_models import small_config, small_weights, write_folder

# The Hub client's HTTP library, whose name depends on the client's version.
http: Any = import_module(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def fill(cache: Path) -> dict[str, torch.Tensor]:
    """The cache as a download leaves it: blobs, a snapshot of links to them, and a branch that names the commit."""
    config = small_config()
    weights = small_weights(config)
    root = cache / "models--org--name"
    snapshot = root / "snapshots" / COMMIT
    write_folder(snapshot, config, weights, shards=2)
    (root / "blobs").mkdir()
    for i, file in enumerate(sorted(snapshot.iterdir())):
        blob = root / "blobs" / f"{i:064x}"
        file.rename(blob)
        file.symlink_to(Path("../../blobs") / blob.name)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    return weights


def test_a_cached_model_opens_offline_and_records_its_commit(cache: Path) -> None:
    weights = fill(cache)
    checkpoint = open_checkpoint("org/name")
    assert checkpoint.source.reference == f"org/name@{COMMIT}"
    assert all(torch.equal(checkpoint.read(name), saved) for name, saved in weights.items())
    again = open_checkpoint(checkpoint.source.reference)
    assert again.source == checkpoint.source


@pytest.mark.parametrize("model", ["org/other", "org/name@v2"])
def test_offline_without_a_copy(cache: Path, model: str) -> None:
    fill(cache)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE=1") as caught:
        open_checkpoint(model)
    assert model in str(caught.value)


def test_no_network_uses_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint below refuses connections: what is cached is used, what is not is said to be out of reach."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")
    fill(cache)
    assert fetch_from_hub(HubId("org/name"))[1] == f"org/name@{COMMIT}"
    with pytest.raises(UsageError, match="cannot be reached"):
        fetch_from_hub(HubId("org/other"))


def _response(status: int) -> Any:
    return http.Response(status, request=http.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "fragments"),
    [
        (errors.GatedRepoError("x", response=_response(403)), ["gated", "accept its terms", "HF_TOKEN"]),
        (errors.RepositoryNotFoundError("x", response=_response(404)), ["shows no model org/name", "spelling"]),
        (errors.RevisionNotFoundError("x", response=_response(404)), ["no revision 'v9'", "branch"]),
        (errors.HfHubHTTPError("server fell over", response=_response(500)), ["server fell over", "local folder"]),
        (http.ProxyError("proxy said no"), ["proxy said no", "local folder"]),
        (OSError(28, "No space left on device"), ["No space left"]),
    ],
)
def test_each_failure_is_one_message(monkeypatch: pytest.MonkeyPatch, error: Exception, fragments: list[str]) -> None:
    def failing(repository: str, **options: object) -> str:
        assert repository == "org/name"
        assert options == {"revision": "v9", "allow_patterns": PATTERNS}
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", failing)
    with pytest.raises(UsageError) as caught:
        fetch_from_hub(HubId("org/name", "v9"))
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_a_bug_is_not_dressed_as_a_network_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(repository: str, **options: object) -> str:
        raise KeyError("bug")

    monkeypatch.setattr("huggingface_hub.snapshot_download", failing)
    with pytest.raises(KeyError):
        fetch_from_hub(HubId("org/name"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("HuggingFaceTB/SmolLM2-135M", HubId("HuggingFaceTB/SmolLM2-135M")),
        ("org/na.me_1@refs/pr/3", HubId("org/na.me_1", "refs/pr/3")),
        *[
            (text, None)
            for text in ("name", "a/b/c", "./a", "../a", "/a/b", "~/a", "a b/c", "a/", "/a", "org/name@", "")
        ],
    ],
)
def test_ids(text: str, expected: HubId | None) -> None:
    assert parse_hub_id(text) == expected


MISSPELT = {
    "models/foo": " (did you mean models/food?)",
    "models/Food": " (did you mean models/food?)",
    "models/fodo": " (did you mean models/food?)",
    "models/llama-3": "",
}


def test_a_misspelt_path_is_not_asked_of_the_hub(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from blockexport.cli.main import main

    def asked(*arguments: object, **options: object) -> None:
        raise AssertionError("the Hub was asked")

    (tmp_path / "models" / "food").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)
    for given, meant in MISSPELT.items():
        with pytest.raises(UsageError, match=r"the folder models is here") as caught:
            open_checkpoint(given)
        name = given.removeprefix("models/")
        assert f"holds no {name}{meant}: correct the path" in str(caught.value)
        assert f"{given}@main" in str(caught.value)
        assert main(["inspect", given]) == main(["onnx", given, "-o", "out"]) == 2
        assert capsys.readouterr().err.count("the folder models is here") == 2


def test_a_folder_called_like_an_organisation_hides_no_cached_model(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache)
    (tmp_path / "org").mkdir()
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/name").source.reference == f"org/name@{COMMIT}"
    with pytest.raises(UsageError, match="not \\(completely\\) in the local cache"):
        open_checkpoint("org/other@main")
