"""A model id of the Hugging Face Hub as a local folder, downloaded once and found again without a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockexport.models.errors import UsageError

PATTERNS = [
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.json",
    "merges.txt",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "[0-9]_*/config.json",
]
"""The files that are downloaded: config, tokenizer and safetensors; no pickled or duplicate weights."""

_HTTP_LIBRARIES = ("httpx", "httpx2", "requests")  # which one reports a broken connection depends on the Hub client

_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class HubId:
    """`organisation/name`, and the branch, tag or commit that was asked for."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def parse_hub_id(model: str) -> HubId | None:
    """The id in `model`, or None where it cannot be one."""
    match = _ID.fullmatch(model)
    return None if match is None else HubId(match["id"], match["revision"])


def is_cached(hub_id: HubId) -> bool:
    """Whether the local cache has something of the repository."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{hub_id.repository.replace('/', '--')}").is_dir()


def fetch_from_hub(hub_id: HubId, patterns: Sequence[str] = PATTERNS) -> tuple[Path, str]:
    """The folder with the files of `hub_id` that match, and the id with the exact commit, which opens them again.

    What is in the local cache is used where the Hub cannot be reached, or where HF_HUB_OFFLINE=1 forbids to try.

    Raises:
        UsageError: no such repository or revision, no permission, or neither network nor a cached copy.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = Path(snapshot_download(hub_id.repository, revision=hub_id.revision, allow_patterns=list(patterns)))
    except GatedRepoError as error:  # a RepositoryNotFoundError too: it must come first
        raise UsageError(
            f"{hub_id} is gated: accept its terms on its page at the Hugging Face Hub, then log in with "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise UsageError(
            f"{hub_id.repository} has no revision {hub_id.revision!r}: give a branch, tag or commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"the Hugging Face Hub shows no model {hub_id}, and no folder here has that path: check the spelling, "
            "or log in with `hf auth login` if it is private"
        ) from error
    except LocalEntryNotFoundError as error:  # what snapshot_download raises once its own cache has nothing either
        raise UsageError(
            f"no folder here is called {hub_id}; as a Hugging Face id, it is not (completely) in the local cache, and "
            f"the Hub {_why_not_reached()}. Check the spelling, or download it once with a network"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise UsageError(f"downloading {hub_id} failed: {error}. Try again, or give a local folder") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _HTTP_LIBRARIES:
            raise
        raise UsageError(f"downloading {hub_id} failed: {error}. Try again, or give a local folder") from error
    return folder, f"{hub_id.repository}@{folder.name}"


def _why_not_reached() -> str:
    from huggingface_hub.constants import is_offline_mode

    return "is switched off by HF_HUB_OFFLINE=1" if is_offline_mode() else "cannot be reached"
