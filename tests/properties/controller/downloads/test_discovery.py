"""Models that are served because their files are there: no file twice, and names that nothing else decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from contract.desired import ModelName
from contract.model_reference import LocalReference, suggest_model_name
from controller.artifacts.heads import Gguf
from controller.artifacts.model_roots import ModelRoots
from controller.downloads.serving import Discovery, FoundModel, ModelFolders, discover_models
from controller.hosts import Host
from controller.state import ObservedState

ROOTS = (Path("/models"), Path("/data/gguf"))
NAMES: TypeAdapter[str] = TypeAdapter(ModelName)
HEAD = Gguf(2**20, "llama", {"llama.context_length": 2048}, (2**10,), 2**10, 0, 0, 100, has_tied_embeddings=True)

parts = st.sampled_from(["a", "A", "b b", "ü", "-", "x" * 120, "model-GGUF", "m.v1", "mmproj-a"])
paths = st.builds(lambda folders, name: "/".join([*folders, f"{name}.gguf"]), st.lists(parts, max_size=2), parts)
found_models = st.builds(
    lambda root, path: FoundModel(root, path, False, (path,), 2**20), st.sampled_from(ROOTS), paths
)


def discover(
    models: tuple[FoundModel, ...], used: frozenset[FoundModel], taken: frozenset[str], **kept: str
) -> Discovery:
    folders = ModelFolders(models, ModelRoots(ROOTS))
    folders = ModelFolders(models, folders.roots, {folders.name_path(each): HEAD for each in models})
    users = {each: ["mine"] for each in used}
    host = ObservedState(0.0, hosts=(Host(gpus=(), memory_mib=2**20),))
    return discover_models(folders, users, taken, host, folders.find_names(kept))


def paths_of(declarations: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: str(fields["model_path"]) for name, fields in declarations.items()}


def short_name(found: FoundModel) -> str:
    return suggest_model_name(LocalReference(path=f"/{found.path}")).casefold()


def has_own_name(found: FoundModel, models: list[FoundModel]) -> bool:
    return sum(short_name(each) == short_name(found) for each in models if each.is_candidate) == 1


@given(st.data(), st.sets(found_models, max_size=8), st.integers(0, 2**16))
def test_each_file_is_declared_once_under_a_name_that_the_order_does_not_decide(
    data: st.DataObject, models: set[FoundModel], seed: int
) -> None:
    ordered = sorted(models, key=lambda each: (str(each.root), each.path))
    free = discover(tuple(ordered), frozenset(), frozenset())
    for name in free.declarations:
        NAMES.validate_python(name)
    assert len({name.casefold() for name in free.names.values()}) == len(free.names), "names are unique"
    declared = paths_of(free.declarations)
    assert len(set(declared.values())) == len(declared), "no file twice"
    candidates = [each for each in ordered if each.is_candidate]
    assert len(declared) + sum(each in free.reasons for each in candidates) == len(candidates), "none is passed over"

    shuffled = list(ordered)
    Random(seed).shuffle(shuffled)
    assert discover(tuple(shuffled), frozenset(), frozenset()).declarations == free.declarations

    # A file that is declared, and a name that is taken, are not declared again; all others stay as they were.
    used = frozenset(data.draw(st.sets(st.sampled_from(ordered)))) if ordered else frozenset()
    taken = frozenset(data.draw(st.sets(st.sampled_from(sorted(declared))))) if declared else frozenset()
    folders = ModelFolders(tuple(ordered), ModelRoots(ROOTS))
    used_paths = {folders.name_path(each) for each in used}
    rest = paths_of(discover(tuple(ordered), used, taken).declarations)
    low = {name.casefold() for name in taken}
    assert rest == {
        name: path for name, path in declared.items() if path not in used_paths and name.casefold() not in low
    }


@given(st.sets(found_models, min_size=1, max_size=8), st.data())
def test_a_file_that_goes_takes_its_declaration_with_it(models: set[FoundModel], data: st.DataObject) -> None:
    ordered = sorted(models, key=lambda each: (str(each.root), each.path))
    gone = data.draw(st.sampled_from(ordered))
    fewer = tuple(each for each in ordered if each != gone)
    before = discover(tuple(ordered), frozenset(), frozenset())
    after = discover(fewer, frozenset(), frozenset())
    assert gone not in after.names
    # A model whose file name no other one had keeps its name.
    others = {each: name for each, name in before.names.items() if each != gone and has_own_name(each, ordered)}
    assert {each: after.names[each] for each in others} == others


@given(st.sets(found_models, min_size=1, max_size=8), st.data())
def test_what_is_served_keeps_its_name_when_others_come_and_go(models: set[FoundModel], data: st.DataObject) -> None:
    ordered = sorted(models, key=lambda each: (str(each.root), each.path))
    some = tuple(each for each in ordered if data.draw(st.booleans()))
    served = paths_of(discover(some, frozenset(), frozenset()).declarations)
    now = discover(tuple(ordered), frozenset(), frozenset(), **served)
    declared = paths_of(now.declarations)
    # Of one path below two folders, the name leads to the first: the other's was of a path that means another file now.
    lasting = {name: path for name, path in served.items() if path in declared.values()}
    assert lasting.items() <= declared.items()
    assert len({name.casefold() for name in now.names.values()}) == len(now.names)
