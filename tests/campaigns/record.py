"""What a campaign found, and the page in docs/campaigns/ that keeps it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = REPOSITORY / "docs" / "campaigns"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of figures under one heading. Each row has a cell per column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def to_markdown(self) -> str:
        """A heading and a table."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join([f"## {self.title}", "", *("| " + " | ".join(map(str, line)) + " |" for line in lines)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a campaign found. `failures` is empty where all that must hold held; each is one line."""

    tables: Sequence[Table]
    failures: Sequence[str] = field(default=())


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
        """The page that is committed."""
        held = "no failure" if not self.outcome.failures else f"{len(self.outcome.failures)} failures"
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
            parts.append("\n".join(["## Failures", "", *(f"- {failure}" for failure in self.outcome.failures)]))
        return "\n\n".join(parts) + "\n"

    def write_page(self, folder: Path = PAGES) -> Path:
        """Replace the campaign's page."""
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{self.name}.md"
        page.write_text(self.to_markdown())
        return page


def current_commit() -> str:
    """The commit of the work tree, with `+changes` where files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
