"""Whatever stands in the files: problems with a place, never a crash, all or nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config.parse import parse_folder
from tests.support.campaign import campaign_count
from tests.support.definitions import FOLDER, MODELS_ROOT, snapshot

TOKENS = st.sampled_from(
    [
        *("models", "chat", "backend", "stub", "replicas", "model_path", "gpus", "aliases", "null", "true", "on"),
        *":[]{},'\"!# \n",
        *("  ", "- ", "&a ", "*a", "!!str ", "|\n", ">-\n"),
        *("%YAML 1.1\n", "---\n", "...\n", "? ", "~", "1e999", "0x", "4", "1.5", ".inf", "<<", "\t", "\\", "\\u"),
        *("\\U0011ffff", "\\ud83d", "\r", "\x85", "\u2028", "\ufeff", "@", "`", "é", "😀", "\x00", "\x1b", "-"),
    ]
)
YAML_LIKE = st.lists(TOKENS, max_size=40).map("".join).map(str.encode)
CONTENT = st.one_of(YAML_LIKE, st.text().map(str.encode), st.binary())


@settings(max_examples=campaign_count(50, 1_500))
@given(first=CONTENT, last=YAML_LIKE)
def test_any_text_gives_definitions_or_problems_with_a_place(first: bytes, last: bytes) -> None:
    read = snapshot({"models.yaml": first, "local.json": last})
    parsed = parse_folder(read, MODELS_ROOT)
    for problem in parsed.problems:
        if problem.file == FOLDER:
            assert problem.line is None
            continue
        content = read.files[problem.file.removeprefix(f"{FOLDER}/")]
        lines = max(1, content.count(b"\n") + (not content.endswith(b"\n")))
        assert problem.line is None or 1 <= problem.line <= lines, (problem, content)
    assert parsed.is_valid == bool(parsed.digest)
    if not parsed.is_valid:
        assert not parsed.definitions
        assert not parsed.declared_models


@settings(max_examples=campaign_count(50, 1_500))
@given(first=CONTENT, last=YAML_LIKE)
def test_the_same_text_gives_the_same(first: bytes, last: bytes) -> None:
    read = snapshot({"models.yaml": first, "local.json": last})
    assert parse_folder(read, MODELS_ROOT) == parse_folder(read, MODELS_ROOT)
