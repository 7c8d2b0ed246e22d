"""Every way in which a download from the Hub fails, as one sentence that says what to do. Off switch: none."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.models.hub_names import HubName, hub_cache, repo_folder
from octavo.models.spec import ModelError


def megabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{max(count, 0) / 1e6:.1f} MB"


def no_space(name: HubName, numbers: str) -> ModelError:
    return ModelError(
        f"no space left for {name.repo} on the disk that holds {hub_cache()}: {numbers}; free some "
        "(octavo models shows what is cached), or set HF_HUB_CACHE to a directory on another disk"
    )


@contextmanager
def told_in_one_sentence(name: HubName) -> Iterator[None]:
    """Every way in which a download fails, as a ModelError."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    network_error: Any = HfHubHTTPError.__bases__[0]
    try:
        yield
    except ModelError:
        raise
    except (network_error, OSError, ValueError) as raised:
        error: Any = raised
        if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, OfflineModeIsEnabled):
            refusal = ModelError(
                f"HF_HUB_OFFLINE is set, and {name} is not in the cache {hub_cache()}, or not wholly: unset it once, "
                f"or fetch it on a machine with a network (octavo pull {name}) and copy {repo_folder(name.repo)}"
            )
        elif isinstance(error, HfHubHTTPError):
            refusal = _http_error(name, error, constants.ENDPOINT)
        elif isinstance(error, network_error):
            refusal = ModelError(
                f"{name} could not be downloaded from {constants.ENDPOINT} ({str(error) or type(error).__name__}): "
                "check the network, the proxy (HTTPS_PROXY) and HF_ENDPOINT; what has come is kept, and the same "
                "command goes on"
            )
        elif isinstance(error, OSError):
            refusal = _storage_error(name, error)
        else:
            refusal = ModelError(
                f"{constants.ENDPOINT} gave an answer that is none of a Hub ({error}): check HF_ENDPOINT"
            )
        raise refusal from raised


def _http_error(name: HubName, error: Any, endpoint: str) -> ModelError:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = error.response.status_code
    page = f"{endpoint}/{name.repo}"
    has_token = error.response.request.headers.get("authorization") is not None
    if isinstance(error, GatedRepoError):
        token = "that the token (HF_TOKEN) belongs to an account that has it" if has_token else "set HF_TOKEN"
        return ModelError(f"{name.repo} is gated: accept its terms at {page}, and {'see ' if has_token else ''}{token}")
    if isinstance(error, RevisionNotFoundError):
        return ModelError(f"{name.repo} has no revision {name.revision!r}; see {page}, or name it without @REVISION")
    if status == 401 and has_token and error.response.headers.get("X-Error-Message", "").startswith("Invalid cred"):
        return ModelError(f"{endpoint} does not accept the token in HF_TOKEN: set a valid one, or unset it")
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return ModelError(
            f"there is no model {name.repo} at {endpoint}, or it is private (and no such file here): check the "
            f"spelling, or set HF_TOKEN to a token that may read it"
        )
    if status in (401, 403):
        return ModelError(
            f"{endpoint} does not let this account read {name.repo} ({status}): check HF_TOKEN and {page}"
        )
    return ModelError(
        f"{endpoint} answered {status} for {name.repo}: try again in a moment; what has come is kept, and the same "
        "command goes on"
    )


def _storage_error(name: HubName, error: OSError) -> ModelError:
    if error.errno == errno.ENOSPC:
        return no_space(name, "it became full during the download, and what has come is kept")
    if error.errno is None:
        return ModelError(f"{name} could not be downloaded: {str(error).splitlines()[0] if str(error) else error!r}")
    return ModelError(
        f"the cache {hub_cache()} cannot be written ({error.strerror}: {error.filename}): set HF_HUB_CACHE to a "
        "directory of your own"
    )
