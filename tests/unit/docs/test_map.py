"""docs/map.md stays one page: its programs, its drawing, its figures."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from controller.planning.backoff import FIRST_BACKOFF_S, MAX_BACKOFF_S
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings
from tests.support.doc_tables import DOCS

PAGE = DOCS / "map.md"
PROGRAMS = ("controller", "gateway", "engines", "retrieval", "transfers")
MOST_WORDS = 1400


def test_the_page_stays_one_page() -> None:
    assert len(PAGE.read_text().split()) <= MOST_WORDS


def test_each_program_has_five_sentences() -> None:
    section = re.search(r"^## The programs\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    paragraphs = [each for each in section[1].split("\n\n") if each.strip().startswith("**")]
    names = [name.lower() for each in paragraphs for name in re.findall(r"\A\s*\*\*(?:The )?(\w+)\*\*", each)]
    assert tuple(names) == PROGRAMS
    assert [len(re.findall(r"\.(?=\s|$)", each)) for each in paragraphs] == [5] * len(PROGRAMS)


def test_the_drawing_names_the_programs_in_light_and_dark() -> None:
    text = (DOCS / "map.svg").read_text()
    root = ET.fromstring(text)
    words = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(PROGRAMS) <= set(words)
    assert "prefers-color-scheme: dark" in text
    assert "(map.svg)" in PAGE.read_text()


def test_the_figures_are_the_defaults() -> None:
    text = PAGE.read_text()
    gateway = GatewaySettings.model_fields
    assert f"have {gateway['shutdown_grace_s'].default:g} s to end" in text
    assert f"waits, {gateway['autoload_timeout_s'].default:g} s at most" in text
    assert f"`drain_timeout_s`, {ControllerSettings.model_fields['drain_timeout_s'].default:g} s" in text
    assert f"after {FIRST_BACKOFF_S:g} s and then twice as long each time, up to {MAX_BACKOFF_S / 60:g} minutes" in text
