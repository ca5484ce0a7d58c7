"""docs/architecture.md and docs/map.md say what the tree has, in few words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest

from controller.planning.backoff import FIRST_BACKOFF_S, MAX_BACKOFF_S
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings
from tests.support.architecture import (
    PAGE,
    PROGRAMS,
    ROOT,
    Shape,
    find_implementations,
    find_protocols,
    generated_parts,
    list_packages,
    parse_sources,
    replace_parts,
)
from tests.support.doc_tables import DOCS

WRITE = "python -m tests.support.architecture --write"
MOST_WORDS = 2510
"""Of the whole page, with what is generated."""
MODULE = re.compile(rf"`((?:{'|'.join(PROGRAMS)})/[\w/]+(?:\.py|/))`")


def test_the_generated_parts_are_those_of_the_sources() -> None:
    text = PAGE.read_text()
    assert replace_parts(text, generated_parts()) == text, f"docs/architecture.md is old: {WRITE}"


def test_a_module_says_nothing_twice_of_itself() -> None:
    """As one would that was put together of two."""
    for path, tree in parse_sources().items():
        sentences = re.split(r"(?<=[.:])\s+", ast.get_docstring(tree) or "")
        said = Counter(" ".join(each.split()) for each in sentences if len(each.split()) > 2)
        assert [each for each, count in said.items() if count > 1] == [], path


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text().split()) <= MOST_WORDS, "shorten a docstring's first sentence, or what is said by hand"


def test_every_module_that_the_page_names_exists() -> None:
    names = MODULE.findall(PAGE.read_text())
    assert len(names) > 100
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("step", ["a request", "an edit", "a load", "an NVML reading"])
def test_every_step_of_a_way_names_its_module(step: str) -> None:
    section = re.search(rf"^## The way of {step}\n(.*?)(?=^## )", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    steps = re.findall(r"^\d+\. .*?(?=^\d+\. |\Z|^$)", section[1], re.MULTILINE | re.DOTALL)
    assert len(steps) >= 5
    assert [each for each in steps if not MODULE.search(each)] == []


@pytest.mark.parametrize("package", list_packages())
def test_a_package_says_its_purpose_and_names_modules_that_it_has(package: str) -> None:
    """In a package's docstring, a name in lower case alone in backquotes is one of its modules or packages."""
    purpose = parse_sources()[f"{package}/__init__.py"].body[0].value.value  # type: ignore[attr-defined]
    names = re.findall(r"`([a-z_]+)`", purpose)
    here = ROOT / package
    assert [name for name in names if not ((here / f"{name}.py").exists() or (here / name).is_dir())] == []


def test_a_protocol_says_its_purpose_and_has_an_implementation() -> None:
    protocols = find_protocols()
    assert len(protocols) > 10
    assert [shape.name for shape, purpose in protocols if not purpose] == []
    assert [shape.name for shape, purpose in protocols if not find_implementations(shape, purpose)] == []


def test_what_lacks_a_member_or_has_other_parameters_is_no_implementation() -> None:
    protocol = Shape("P", "gateway/p.py", {"size": None, "send_part": ("part", "*last")})
    assert Shape("A", "gateway/a.py", {"size": None, "send_part": ("part", "*last"), "more": ()}).implements(protocol)
    assert not Shape("B", "gateway/a.py", {"send_part": ("part", "*last")}).implements(protocol)
    assert not Shape("C", "gateway/a.py", {"size": None, "send_part": ("part", "last")}).implements(protocol)
    assert not Shape("D", "worker/a.py", {"size": None, "send_part": ("part", "*last")}).implements(protocol)
    assert Shape("E", "gateway/a.py", {"send_part": ("part", "*last")}, has_library_base=True).implements(protocol)


def test_a_line_of_the_page_is_the_first_sentence_and_whether_the_package_is_pure() -> None:
    lines = generated_parts()["gateway"]
    assert "- `gateway/routing/`: The routing table in force. Pure.\n" in lines
    assert "- `gateway/upstream/`: The engine's side of HTTP/1.1, by callbacks.\n" in lines


def test_a_page_without_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="controller"):
        replace_parts("# Architecture\n", {"controller": "x"})


MAP = DOCS / "map.md"
MAP_PROGRAMS = ("controller", "gateway", "engines", "retrieval", "transfers")
MOST_WORDS_OF_MAP = 1400


def test_the_map_stays_one_page() -> None:
    assert len(MAP.read_text().split()) <= MOST_WORDS_OF_MAP


def test_each_program_has_five_sentences() -> None:
    section = re.search(r"^## The programs\n(.*?)(?=^## )", MAP.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    paragraphs = [each for each in section[1].split("\n\n") if each.strip().startswith("**")]
    names = [name.lower() for each in paragraphs for name in re.findall(r"\A\s*\*\*(?:The )?(\w+)\*\*", each)]
    assert tuple(names) == MAP_PROGRAMS
    assert [len(re.findall(r"\.(?=\s|$)", each)) for each in paragraphs] == [5] * len(MAP_PROGRAMS)


def test_the_drawing_names_the_programs_in_light_and_dark() -> None:
    text = (DOCS / "map.svg").read_text()
    root = ET.fromstring(text)
    words = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(MAP_PROGRAMS) <= set(words)
    assert "prefers-color-scheme: dark" in text
    assert "(map.svg)" in MAP.read_text()


def test_the_figures_are_the_defaults() -> None:
    text = MAP.read_text()
    gateway = GatewaySettings.model_fields
    assert f"have {gateway['shutdown_grace_s'].default:g} s to end" in text
    assert f"waits, {gateway['autoload_timeout_s'].default:g} s at most" in text
    assert f"`drain_timeout_s`, {ControllerSettings.model_fields['drain_timeout_s'].default:g} s" in text
    assert f"after {FIRST_BACKOFF_S:g} s and then twice as long each time, up to {MAX_BACKOFF_S / 60:g} minutes" in text
