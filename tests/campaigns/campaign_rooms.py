"""Whether the file for a subject is found from the tree alone."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tests.campaigns.record import REPOSITORY, Outcome, Table

ABOUT = """
Someone who knows the field and not this repository looks for a file by the subject's usual name:
`git ls-files | grep -i WORDS`. The first file listed must be the one where the subject is decided.
"""


@dataclass(frozen=True, slots=True)
class Search:
    """One subject, the words that are searched for (a regular expression), and the file that must come first."""

    subject: str
    words: str
    file: str


SEARCHES = (
    Search("circuit breaker", "circuit", "gateway/admission/circuit_breaker.py"),
    Search("eviction policy", "eviction", "controller/planning/eviction.py"),
    Search("rate limit", "rate.*limit", "gateway/tenancy/rate_limits.py"),
    Search("Anthropic stream translation", "anthropic.*stream", "gateway/protocols/anthropic/answer_stream.py"),
    Search("a new llama-server flag", "llama.server", "controller/engines/llama_server.py"),
    Search("GPU placement", "placement", "controller/planning/placement.py"),
    Search("what an error code means", "error.*code", "contract/error_codes.toml"),
    Search("the load state machine", "state.machine", "controller/state_machine.py"),
    Search("a new metric", "metric", "controller/reports/metrics.py"),
    Search("the fair queue", "fair.*queue", "gateway/admission/fair_queue.py"),
)


def list_files() -> list[str]:
    """The repository's files, in the order of `git ls-files`. Raises CalledProcessError outside a git work tree."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def find_first(words: str, files: Sequence[str]) -> str | None:
    """The first file whose path holds the words, in any case; None: no file does."""
    pattern = re.compile(words, re.IGNORECASE)
    return next((name for name in files if pattern.search(name)), None)


def run(seed: int) -> Outcome:
    files = list_files()
    rows, failures = [], []
    for search in SEARCHES:
        found = find_first(search.words, files)
        is_right = found == search.file
        rows.append((search.subject, f"`{search.words}`", f"`{found}`", "right" if is_right else "wrong"))
        if not is_right:
            failures.append(f"{search.subject}: {found} comes first, not {search.file}")
    return Outcome((Table("Searches", ("looked for", "words", "first file", ""), rows),), tuple(failures))
