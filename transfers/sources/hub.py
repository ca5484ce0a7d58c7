"""Hugging Face repositories, through `huggingface_hub`, which lists files; `transfers.fetch` gets their bytes.

A search asks the hub for names, and then for the files of each repository: the hub's list of models has no sizes
(huggingface_hub's `expand` of a list gives names of files alone).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

import httpx2
from huggingface_hub import HfApi, get_session, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import BlobLfsInfo, ModelInfo, RepoSibling

from common.network.answers import parse_json
from common.network.transport import InterruptedConnectionError
from contract.downloads import ModelChoice, RepositoryFacts
from contract.errors import RoundhouseError
from contract.model_reference import HubReference, InvalidReferenceError, parse_reference, validate_file_path
from transfers.network import (
    FAILURES,
    USER_AGENT,
    NetworkOptions,
    RetryPolicy,
    WholeAnswers,
    describe_failure,
    parse_retry_after,
    refuse_downgrade,
)
from transfers.sources.base import Resolution, SourceFile, is_file_size
from transfers.sources.model_files import NoSuchFileError, OfferedFiles, choose_files, list_choices

_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_NAME: Final = 4096
TIMEOUT_S: Final = 20.0
MOST_CHOICES: Final = 40
"""Models of one repository in the results of a search."""
_LICENCE: Final = re.compile(r"license:([\w.+-]{1,60})", re.ASCII)
Wait = Callable[[float], None]
Answer = TypeVar("Answer")


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
        info = self._read_info(reference, wait)
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

    def search(self, words: str, tag: str, limit: int, *, wait: Wait) -> list[RepositoryFacts]:
        """Return up to `limit` repositories with these words in their names and the hub's tag `tag` (`gguf`,
        `safetensors`), the most downloaded first. What cannot be named by a reference is left out. Blocks, and raises,
        as `resolve` does."""

        def ask() -> object:
            # Not `HfApi.list_models`: it sleeps as long as the hub asks to, and one bad row costs it the whole list.
            token = self._read_token()
            response = get_session().get(
                f"{self._endpoint}/api/models",
                params={
                    "search": words,
                    "filter": tag,
                    "sort": "downloads",
                    "limit": str(limit),
                    "expand": ["downloads", "gated", "tags"],
                },
                headers={"user-agent": USER_AGENT, **({"authorization": f"Bearer {token}"} if token else {})},
                timeout=TIMEOUT_S,
            )
            if response.status_code != 200:
                raise HfHubHTTPError(f"status {response.status_code}", response=response)
            return parse_json(response.content)  # `WholeAnswers` has read it, within its bound

        rows = self._ask(HubReference("search"), f"models with {words!r} in their names", ask, wait)
        if not isinstance(rows, list):
            raise RoundhouseError("source_mismatch", "The answer of the hub to a search is no list.")
        return [facts for row in rows[:limit] if (facts := _read_facts(row)) is not None]

    def list_choices(self, repo: str, *, wait: Wait) -> tuple[list[ModelChoice], int]:
        """Return the models of a repository, the smallest first, and how many more there are. Blocks, and raises, as
        `resolve` does."""
        siblings = _read_siblings(self._read_info(HubReference(repo), wait), repo)
        offered, left_out = list_choices(siblings, MOST_CHOICES)
        named = [(_name_choice(repo, each), each) for each in offered]
        choices = [_describe_choice(reference, each, siblings) for reference, each in named if reference is not None]
        return sorted(choices, key=lambda each: each.size), left_out

    def _describe_file(self, repo: str, commit: str, sibling: RepoSibling) -> SourceFile:
        path, size, lfs = sibling.rfilename, _read_size(repo, sibling), sibling.lfs
        if not _is_hash(lfs, sibling.blob_id):
            raise RoundhouseError("source_mismatch", f"The hub names no hash of {path!r:.200} in {repo}.")
        return SourceFile(
            path=path,
            size=size,
            sha256=None if lfs is None else lfs.sha256,
            git_sha1=sibling.blob_id if lfs is None else None,
            url=hf_hub_url(repo, path, revision=commit, endpoint=self._endpoint),
            commit=commit,
        )

    def _read_info(self, reference: HubReference, wait: Wait) -> ModelInfo:
        api = HfApi(endpoint=self._endpoint, token=self._read_token() or False)
        return self._ask(
            reference,
            f"the repository {reference.repo}",
            lambda: api.model_info(reference.repo, revision=reference.revision, files_metadata=True, timeout=TIMEOUT_S),
            wait,
        )

    def _ask(self, reference: HubReference, about: str, ask: Callable[[], Answer], wait: Wait) -> Answer:
        failures = 0
        while True:
            try:
                with _translate_errors(reference):
                    return ask()
            except HfHubHTTPError as error:
                failures += 1
                status = error.response.status_code
                if status in (401, 403):
                    message = f"The hub does not show {about} to this user (status {status})."
                    raise RoundhouseError("source_forbidden", message) from None
                asked = parse_retry_after(error.response.headers.get("retry-after"), time.time())
                delay = self._policy.choose_delay(failures, asked) if status in _AGAIN else None
                if delay is None:
                    raise RoundhouseError(
                        "source_unavailable", f"The hub answers status {status} about {about}.", retry_after_s=asked
                    ) from None
                wait(delay)


def _read_facts(row: object) -> RepositoryFacts | None:
    """Return what a row of the hub's list says; None: it names no repository that a reference can name."""
    if not isinstance(row, dict) or row.get("disabled"):
        return None
    try:
        repo = row.get("id")
        if not isinstance(repo, str) or parse_reference(f"hf:{repo}") != HubReference(repo):
            return None
    except InvalidReferenceError:
        return None
    downloads, tags = row.get("downloads"), row.get("tags")
    licences = [_LICENCE.fullmatch(tag) for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return RepositoryFacts(
        repository=repo,
        downloads=downloads if type(downloads) is int and downloads >= 0 else None,
        is_gated=bool(row.get("gated")),
        licence=next((found[1] for found in licences if found), None),
    )


def _name_choice(repo: str, offered: OfferedFiles) -> HubReference | None:
    """Return the reference of a model; None: no reference leads to a file of that name."""
    named = HubReference(repo, None if offered.path is not None else offered.quantisation, offered.path)
    try:
        return named if parse_reference(str(named)) == named else None
    except InvalidReferenceError:
        return None


def _describe_choice(
    reference: HubReference, offered: OfferedFiles, siblings: Mapping[str, RepoSibling]
) -> ModelChoice:
    files, repo = offered.files, reference.repo
    return ModelChoice(
        reference=str(reference),
        format="safetensors" if files.is_folder else "gguf",
        quantisation=offered.quantisation,
        main=repo if files.is_folder else f"{repo}/{files.paths[0]}",
        projector=None if files.projector is None else f"{repo}/{files.projector}",
        file_count=len(files.paths),
        size=sum(_read_size(repo, siblings[path]) for path in files.paths),
    )


def _read_size(repo: str, sibling: RepoSibling) -> int:
    """Return the bytes of a file. Raises RoundhouseError `source_mismatch` where the hub names none, or a path that
    cannot be one."""
    path = sibling.rfilename
    if (problem := validate_file_path(path)) is not None:
        raise RoundhouseError("source_mismatch", f"The hub lists a file {path!r:.200} in {repo}: {problem}.")
    size = sibling.lfs.size if sibling.lfs is not None else sibling.size
    if not is_file_size(size):
        raise RoundhouseError("source_mismatch", f"The hub names no size of {path!r:.200} in {repo}.")
    return size


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
