"""What a campaign found, and the page in docs/campaigns/ that keeps it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = REPOSITORY / "docs" / "campaigns"
PROGRAMS = ("assistant", "cli", "common", "contract", "controller", "gateway", "retrieval", "transfers", "worker")
"""The folders of product code."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures under one heading. Each row has a cell per column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def to_markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        rows = ("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
        return "\n".join([f"## {self.title}", "", *rows])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a campaign found. `failures` is empty where all that must hold held; the first line of each
    says what failed, and what follows is shown as it is."""

    tables: Sequence[Table]
    failures: Sequence[str] = field(default=())
    duration_s: float | None = None
    """How long it took, where that is more than the run itself: it took up what earlier runs had found."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a campaign: what identifies it, and what it found."""

    name: str
    about: str
    """What the campaign tries and what must hold, in a few sentences."""
    command: str
    commit: str
    day: str
    seed: int
    duration_s: float
    machine: str
    outcome: Outcome

    def to_markdown(self) -> str:
        count = len(self.outcome.failures)
        held = "no failure" if not count else f"{count} failure{'s' * (count > 1)}"
        facts = {
            "command": f"`{self.command}`",
            "commit": f"`{self.commit}`",
            "day": self.day,
            "seed": self.seed,
            "machine": self.machine,
            "time": f"{self.duration_s / 60:.1f} min",
            "outcome": held,
        }
        parts = [
            f"# Campaign: {self.name}",
            self.about.strip(),
            "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items())]),
            *(table.to_markdown() for table in self.outcome.tables),
        ]
        if self.outcome.failures:
            parts += ["## Failures", *map(_failure_to_markdown, self.outcome.failures)]
        return "\n\n".join(parts) + "\n"

    def write_page(self, folder: Path = PAGES) -> Path:
        """Replace the campaign's page, and its row of the index, where the folder has one."""
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{self.name}.md"
        page.write_text(self.to_markdown())
        index = folder / "README.md"
        if index.exists():
            link = f"[{self.name}]({self.name}.md)"
            row = re.compile(rf"^\| ({self.name}|{re.escape(link)}) \| [^|]* \|", re.MULTILINE)
            index.write_text(row.sub(f"| {link} | `{self.commit}` |", index.read_text()))
        return page


def _failure_to_markdown(failure: str) -> str:
    title, _, details = failure.partition("\n")
    return f"`{title}`" + (f"\n\n````text\n{details}\n````" if details.strip() else "")


def current_commit() -> str:
    """The commit of the work tree, with `+changes` where a file outside docs/ differs from it. Raises
    CalledProcessError outside a git work tree: figures of an unknown commit are worth nothing."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!docs")
    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
