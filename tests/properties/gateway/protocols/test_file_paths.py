"""No absolute path that a reason holds is left in what is told, whatever stands around it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.common.hiding import HIDDEN_PATH, hide_paths
from tests.support.campaign import campaign_count

parts = st.text("ghijklmnopqrstuvwxyz0123456789_-", min_size=5, max_size=20)
paths = st.lists(parts, min_size=1, max_size=5).map(lambda each: "/" + "/".join(each))
spaced_parts = st.lists(parts, min_size=1, max_size=3).map(" ".join)
spaced_paths = st.lists(spaced_parts, min_size=1, max_size=4).map(lambda each: "/" + "/".join(each))
around = st.text(st.characters(codec="utf-8", exclude_characters="/\\~\"'`"), max_size=15)
before = st.sampled_from([" ", "(", "=", "\n", ", ", "from ", "[", ": ", r"\n"])
after = st.sampled_from(["", " ", ")", ",", "\n", ": ", ". ", "; ", "] "])


@settings(max_examples=campaign_count(200, 20_000))
@given(around, before, paths, after, around)
def test_no_path_is_left(opening: str, start: str, path: str, end: str, closing: str) -> None:
    told = hide_paths(opening + start + path + end + closing)
    assert HIDDEN_PATH in told
    assert not [part for part in path.split("/") if part and part in told.replace(opening, "").replace(closing, "")]
    assert hide_paths(told) == told, "what is hidden stays as it is"


@settings(max_examples=campaign_count(100, 10_000))
@given(around, st.sampled_from("\"'`"), spaced_paths, around)
def test_in_quotation_marks_spaces_belong_to_it(opening: str, mark: str, path: str, closing: str) -> None:
    assert hide_paths(f"{opening}{mark}{path}{mark}{closing}") == f"{opening}{mark}{HIDDEN_PATH}{mark}{closing}"


@settings(max_examples=campaign_count(100, 10_000))
@given(st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=200))
def test_words_without_a_slash_stay(text: str) -> None:
    assert hide_paths(text) == text
