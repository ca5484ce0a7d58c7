"""The README stays short and names what there is: commands, settings, pictures. Links of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from controller.cli.app import app
from controller.schema.errors import ERROR_CODES

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_LINES = 140


def test_the_readme_stays_short() -> None:
    """What is listed whole (settings, error codes) stands in docs/settings.md and docs/errors.md."""
    text = README.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert [code for code in ERROR_CODES if f"| `{code}` |" in text] == []
    assert re.findall(r"^\| `ROUNDHOUSE_\w+` \|", text, re.MULTILINE) == []
    assert {"docs/settings.md", "docs/errors.md", "docs/map.md"} <= set(re.findall(r"\]\(([^)#]+)", text))


def test_the_readme_shows_the_page_and_a_dashboard() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README.read_text())
    assert [Path(each).parent.name for each in pictures] == ["page", "dashboards"]


def test_the_commands_of_the_readme_exist() -> None:
    text = README.read_text()
    targets = set(re.findall(r"^([\w./-]+):.*", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:\$ |`)make ((?:models/)?[a-z][\w.-]+)", text)) <= targets
    named = set(re.findall(r"(?:\$ |`)roundhouse ([a-z]+)", text))
    commands = typer.main.get_group(app).commands
    assert named <= set(commands)
    assert len(named) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
