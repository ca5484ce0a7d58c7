"""The README's tables say what the code says, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.schema.errors import ERROR_CODES
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings
from retrieval.settings import RetrievalSettings
from tests.support.doc_tables import default_words, row
from transfers.settings import TransfersSettings

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


PROGRAMS = (
    ("controller", ControllerSettings),
    ("gateway", GatewaySettings),
    ("retrieval", RetrievalSettings),
    ("transfers", TransfersSettings),
)


def setting_lines() -> list[str]:
    """One row per setting of the programs: variable, whose, default."""
    owners: dict[str, tuple[str, str]] = {}
    for owner, settings in PROGRAMS:
        for name, info in settings.model_fields.items():
            variable = f"`ROUNDHOUSE_{name.upper()}`"
            known = owners.get(variable)
            owners[variable] = (f"{known[0]}, {owner}" if known else owner, default_words(info))
    return [row(variable, owner, default) for variable, (owner, default) in owners.items()]


def code_lines() -> list[str]:
    """One row per error code: code, status, what to do first."""
    return [row(f"`{entry.code}`", str(entry.status), entry.next_steps[0]) for entry in ERROR_CODES.values()]


def test_every_setting_and_every_error_code_is_in_the_readme() -> None:
    rows = [line for line in PAGES[0].read_text().splitlines() if line.startswith("| `")]
    assert rows == [*setting_lines(), *code_lines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
