"""Hugging Face repositories, through `huggingface_hub`, which lists files; `transfers.fetch` gets their bytes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import httpx2
from huggingface_hub import HfApi, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import BlobLfsInfo, ModelInfo, RepoSibling

from common.network.transport import InterruptedConnectionError
from contract.errors import RoundhouseError
from contract.model_reference import HubReference, validate_file_path
from transfers.network import (
    FAILURES,
    NetworkOptions,
    RetryPolicy,
    WholeAnswers,
    describe_failure,
    parse_retry_after,
    refuse_downgrade,
)
from transfers.sources.base import Resolution, SourceFile, is_file_size
from transfers.sources.model_files import NoSuchFileError, choose_files

_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_NAME: Final = 4096
TIMEOUT_S: Final = 20.0
Wait = Callable[[float], None]


class HubSource:
    """Lists the files of Hugging Face repositories. Make one per process, because `huggingface_hub` has one HTTP client
    for all calls, which this sets."""

    def __init__(
        self, endpoint: str, options: NetworkOptions, read_token: Callable[[], str | None], policy: RetryPolicy
    ) -> None:
        """`endpoint`: address of the hub. `read_token`: called for each resolution, returns the token; None: there is
        none. `policy`: for requests that the hub refuses for a time."""
        self._endpoint = endpoint.rstrip("/")
        self._read_token = read_token
        self._policy = policy
        timeout = httpx2.Timeout(options.read_timeout_s, connect=options.connect_timeout_s)
        set_client_factory(
            lambda: httpx2.Client(
                transport=WholeAnswers(options),
                timeout=timeout,
                trust_env=False,
                follow_redirects=True,
                max_redirects=4,
                event_hooks={"response": [refuse_downgrade]},
            )
        )

    def resolve(self, reference: HubReference, *, include_pickle: bool, wait: Wait = time.sleep) -> Resolution:
        """Ask the hub what the reference is now. Blocks. `include_pickle`: whether weights in pickle files are taken,
        too. `wait` sleeps between two tries; what it raises is raised.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable`, or
                `source_mismatch` for a list that cannot be used.
            InterruptedConnectionError: all connections of the program were ended.
        """
        info = self._ask(reference, wait)
        siblings = _read_siblings(info, reference.repo)
        try:
            chosen = choose_files(
                siblings, quantisation=reference.quantisation, path=reference.path, include_pickle=include_pickle
            )
        except NoSuchFileError as error:
            raise RoundhouseError("source_not_found", f"The repository {reference.repo}: {error}.") from None
        commit = info.sha
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise RoundhouseError("source_mismatch", f"The hub names no commit of {reference.repo}.")
        files = tuple(self._describe_file(reference.repo, commit, siblings[path]) for path in chosen.paths)
        pinned = HubReference(reference.repo, reference.quantisation, reference.path, commit)
        return Resolution(
            reference=str(reference),
            pinned=str(pinned),
            revision=commit,
            files=files,
            folder=reference.repo,
            is_folder=chosen.is_folder,
            projector=chosen.projector,
        )

    def _describe_file(self, repo: str, commit: str, sibling: RepoSibling) -> SourceFile:
        path = sibling.rfilename
        if (problem := validate_file_path(path)) is not None:
            raise RoundhouseError("source_mismatch", f"The hub lists a file {path!r:.200} in {repo}: {problem}.")
        lfs = sibling.lfs
        size = lfs.size if lfs is not None else sibling.size
        if not is_file_size(size) or not _is_hash(lfs, sibling.blob_id):
            raise RoundhouseError("source_mismatch", f"The hub names no size or hash of {path!r:.200} in {repo}.")
        return SourceFile(
            path=path,
            size=size,
            sha256=None if lfs is None else lfs.sha256,
            git_sha1=sibling.blob_id if lfs is None else None,
            url=hf_hub_url(repo, path, revision=commit, endpoint=self._endpoint),
            commit=commit,
        )

    def _ask(self, reference: HubReference, wait: Wait) -> ModelInfo:
        api = HfApi(endpoint=self._endpoint, token=self._read_token() or False)
        failures = 0
        while True:
            try:
                with _translate_errors(reference):
                    return api.model_info(
                        reference.repo, revision=reference.revision, files_metadata=True, timeout=TIMEOUT_S
                    )
            except HfHubHTTPError as error:
                failures += 1
                status = error.response.status_code
                if status in (401, 403):
                    message = f"The hub does not show the repository {reference.repo} to this user (status {status})."
                    raise RoundhouseError("source_forbidden", message) from None
                asked = parse_retry_after(error.response.headers.get("retry-after"), time.time())
                delay = self._policy.choose_delay(failures, asked) if status in _AGAIN else None
                if delay is None:
                    raise RoundhouseError(
                        "source_unavailable",
                        f"The hub answers status {status} about {reference.repo}.",
                        retry_after_s=asked,
                    ) from None
                wait(delay)


def _read_siblings(info: ModelInfo, repo: str) -> dict[str, RepoSibling]:
    """Return the files that the hub lists, by their paths, which are checked only where a file is chosen."""
    siblings = info.siblings or []
    if not all(isinstance(each.rfilename, str) and len(each.rfilename) <= _LONGEST_NAME for each in siblings):
        raise RoundhouseError("source_mismatch", f"The hub lists a file of {repo} whose name cannot be one.")
    return {each.rfilename: each for each in siblings}


def _is_hash(lfs: BlobLfsInfo | None, blob_id: object) -> bool:
    named, form = (blob_id, _COMMIT) if lfs is None else (lfs.sha256, _SHA256)
    return isinstance(named, str) and form.fullmatch(named) is not None


@contextmanager
def _translate_errors(reference: HubReference) -> Iterator[None]:
    """Raise RoundhouseError for errors that no other try changes."""
    try:
        yield
    except GatedRepoError:
        message = f"The repository {reference.repo} is gated, and the token is missing or not accepted."
        raise RoundhouseError("source_forbidden", message) from None
    except RevisionNotFoundError:
        message = f"The repository {reference.repo} has no revision {reference.revision!r:.100}."
        raise RoundhouseError("source_not_found", message) from None
    except RepositoryNotFoundError:
        message = f"The hub has no repository {reference.repo}, or the token may not see it."
        raise RoundhouseError("source_not_found", message) from None
    except DisabledRepoError:
        raise RoundhouseError("source_forbidden", f"The hub has disabled {reference.repo}.") from None
    except (HfHubHTTPError, InterruptedConnectionError):
        raise
    except FAILURES as error:
        raise describe_failure(error, "the hub") from None
    except OSError as error:
        # Of the library's own making: HF_HUB_OFFLINE, a token file of its own that cannot be read.
        raise RoundhouseError("source_unavailable", f"The hub is not asked: {error}.") from None
    except Exception as error:  # noqa: BLE001 - whatever an answer makes of the library
        raise describe_failure(error, "the hub") from None
