"""Which version of the API is spoken, and why a daemon cannot be reached."""

from __future__ import annotations

import errno

import pytest
import requests
from docker.errors import DockerException

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.docker.client import (
    NEWEST_API,
    OLDEST_API,
    DaemonRefusedError,
    negotiate_version,
    plain_reason,
)


@pytest.mark.parametrize(
    ("newest", "oldest", "version"),
    [
        ("1.41", "1.12", "1.41"),
        ("1.43", "1.12", "1.43"),
        (NEWEST_API, "1.24", NEWEST_API),
        ("1.54", "1.24", NEWEST_API),
        ("1.99", "1.60", "1.60"),
        ("1.41", None, "1.41"),
    ],
)
def test_the_newest_version_that_both_know_is_spoken(newest: str, oldest: str | None, version: str) -> None:
    assert negotiate_version({"ApiVersion": newest, "MinAPIVersion": oldest}) == version


@pytest.mark.parametrize(("server", "words"), [({}, "not a Docker daemon"), ({"ApiVersion": "1.40"}, "is too old")])
def test_what_is_too_old_or_no_daemon_is_refused(server: dict[str, str], words: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match=words):
        negotiate_version(server)
    assert OLDEST_API == "1.41", "Docker Engine 20.10"


def test_the_system_s_reason_is_found_wherever_the_library_hides_it() -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
    hidden = requests.ConnectionError(("Connection aborted.", missing))
    hidden.__cause__ = OSError("aborted")
    hidden.__cause__.__context__ = missing
    outer = DockerException("Error while fetching server API version")
    outer.__cause__ = hidden
    assert plain_reason(outer).startswith("there is no such socket")
    assert plain_reason(PermissionError(errno.EACCES, "x")).startswith("this user may not use it")
    assert plain_reason(requests.ReadTimeout("x")) == "it hangs"
    assert plain_reason(DockerException("something new")) == "something new"


def test_an_unexpected_refusal_counts_as_unavailable() -> None:
    error = DaemonRefusedError(500, "out of order")
    assert isinstance(error, RuntimeUnavailableError)
    assert (error.status, error.message) == (500, "out of order")
