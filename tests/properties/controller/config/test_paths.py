"""Whatever is declared as a model path: it stays in the models folders, and further folders change none of them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.artifacts.model_roots import ModelRoots, path_below
from controller.config.validate import PathRefusedError, normalize_model_path
from tests.support.campaign import campaign_count

PARTS = st.sampled_from(["", ".", "..", "~", "~bob", "a", "b", "m.gguf", "srv", "home", "models--x", "a b", "é", "a\n"])
PATHS = st.builds(
    lambda start, parts: start + "/".join(parts), st.sampled_from(["", "/", "//"]), st.lists(PARTS, max_size=6)
)
FOLDERS = st.lists(st.lists(st.sampled_from(["a", "b", "srv", "home"]), min_size=1, max_size=3), min_size=1, max_size=4)


def normalized(declared: str, roots: ModelRoots) -> str | None:
    try:
        return normalize_model_path(declared, roots)
    except PathRefusedError:
        return None


@settings(max_examples=campaign_count(200, 20_000))
@given(declared=PATHS | st.text(max_size=20), folders=FOLDERS)
def test_no_path_leaves_the_models_folders(declared: str, folders: list[list[str]]) -> None:
    roots = ModelRoots(tuple(Path("/", *parts) for parts in folders), home=Path("/home/a"))
    path = normalized(declared, roots)
    if path is None:
        return
    plain = PurePosixPath(path)
    assert str(plain) == path
    assert ".." not in plain.parts
    assert path.isprintable()
    places = [path_below(str(folder / plain), folder) for folder in roots.folders]
    assert any(inner not in (None, ".") for inner in places), (path, roots)
    assert plain.is_absolute() == (places[0] in (None, ".") and plain.is_absolute())
    assert normalized(path, roots) == path, "the one way of writing is its own"


@settings(max_examples=campaign_count(200, 20_000))
@given(declared=PATHS, folders=FOLDERS, further=FOLDERS)
def test_further_folders_change_no_path_that_was_taken_without_them(
    declared: str, folders: list[list[str]], further: list[list[str]]
) -> None:
    before = ModelRoots(tuple(Path("/", *parts) for parts in folders), home=Path("/home/a"))
    after = ModelRoots((*before.folders, *(Path("/", *parts) for parts in further)), before.home)
    path = normalized(declared, before)
    if path is not None:
        assert normalized(declared, after) == path
