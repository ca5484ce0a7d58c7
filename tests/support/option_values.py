"""Values of options, by their declarations: for Hypothesis, and one of each for goldens."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MultipleOf
from hypothesis import strategies as st

from contract.desired import Definition
from controller.engines.options import Option, PathFlag, list_options

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,20}", fullmatch=True)
WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
TEXTS = st.text(max_size=12)
CONTENT = st.recursive(st.none() | st.booleans() | st.integers() | TEXTS, lambda each: st.lists(each, max_size=3))
_MOST = 2**31 - 1


def option_values(option: Option) -> st.SearchStrategy[Any]:
    """Values that the option takes, without None. Numbers are within 31 bits, texts are words or names of files."""
    if isinstance(option.flag, PathFlag):
        kinds = {list: st.lists(NAMES, min_size=1, max_size=3), dict: st.dictionaries(WORDS, NAMES, min_size=1)}
        return kinds.get(_origin(option), NAMES)
    return _values(_strip_null(option.info.annotation), option.info.metadata)


def sample_value(option: Option) -> Any:
    if isinstance(option.flag, PathFlag):
        path = f"org/{option.name}.gguf" if option.flag.kind == "gguf" else f"org/{option.name}"
        return {list: [path, f"other/{path}"], dict: {"name": path}}.get(_origin(option), path)
    return _sample(_strip_null(option.info.annotation), option)


def tried_options(definition_class: type[Definition]) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies of all options that the command line says, by field name."""
    return {option.name: option_values(option) for option in list_options(definition_class) if option.flag is not None}


def _origin(option: Option) -> Any:
    """`list` or `dict` for an option that takes such; None: another kind of value."""
    return get_origin(_strip_null(option.info.annotation))


def _strip_null(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        [annotation] = (each for each in get_args(annotation) if each is not NoneType)
    return annotation


def _values(kind: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    if get_origin(kind) is Annotated:
        kind, *inner = get_args(kind)
        metadata = [*inner, *(part for each in inner for part in getattr(each, "metadata", ()))]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is list:
        [item] = get_args(kind)
        return st.lists(_values(item, []), min_size=1, max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(WORDS, _values(get_args(kind)[1], []), max_size=3)
    if kind is int:
        return st.integers(_bound(metadata, Ge, "ge", -_MOST), _bound(metadata, Le, "le", _MOST))
    if kind is float:
        above = _bound(metadata, Gt, "gt", None)
        least = _bound(metadata, Ge, "ge", -1e6) if above is None else above
        return st.floats(least, _bound(metadata, Le, "le", 1e6), exclude_min=above is not None)
    return {bool: st.booleans(), str: WORDS}.get(kind, CONTENT)


def _sample(kind: Any, option: Option) -> Any:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return next(each for each in get_args(kind) if each != option.default)
    if get_origin(kind) is list:
        return [_sample(get_args(kind)[0], option)]
    if get_origin(kind) is dict:
        return {"name": _sample(get_args(kind)[1], option)}
    metadata = option.info.metadata
    if kind is int:
        return _bound(metadata, MultipleOf, "multiple_of", 0) or _bound(metadata, Ge, "ge", 0) + 1
    if kind is float:
        return min(0.25 + _bound(metadata, Ge, "ge", 0), _bound(metadata, Le, "le", 1e6))
    return option.default is not True if kind is bool else "word"


def _bound(metadata: list[Any], kind: type, name: str, otherwise: Any) -> Any:
    return next((getattr(each, name) for each in metadata if isinstance(each, kind)), otherwise)
