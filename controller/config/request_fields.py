"""Which values a request may give the fields of a definition, by the marker `Settable` of each. Pure.

A request is a runtime declaration, its dry run, or a load. Where a path leads once symbolic links are resolved is not
seen here: `controller.desired.request_paths` looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from common.model_reference import HubReference, InvalidReferenceError, RegistryReference, parse_reference
from controller.artifacts.model_roots import ModelRoots
from controller.config.paths import PathRefusedError, normalize_model_path
from controller.engines.options import Flag
from controller.schema.desired import Definition, Settable

TRUSTED_VARIABLE: Final = "ROUNDHOUSE_TRUSTED_DECLARATIONS"
"""Environment variable of the setting that lists the fields which requests may give any valid value."""
_GPU: Final = re.compile(r"\d{1,2}|(GPU|MIG)-[A-Za-z0-9/-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RequestRules:
    """The rules by which one controller refuses fields of requests: its models folders, and the fields and names that
    are trusted. `roots` are absolute."""

    roots: ModelRoots
    trusted: frozenset[str] = frozenset()
    """Names of the fields that a request may give any valid value."""
    declared_names: frozenset[str] = frozenset()
    """Names that `Settable.IN_MODELS_FOLDER_OR_DECLARED` allows: see `list_declared_names`."""

    def find_refusals(self, definition_class: type[Definition], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the name of each field whose value a request may not give, and why, with what to do instead, as the
        second half of a sentence. `values` have passed the validation of `definition_class`; null counts as not
        given, and names that the class does not have are ignored."""
        markers = read_markers(definition_class)
        for name, value in values.items():
            if value is None or name in self.trusted or name not in markers:
                continue
            reason = self._find_reason(markers[name], value) or _find_argument(definition_class, name, value)
            if reason is not None:
                yield name, f"{reason}: {_advise(name)}"

    def list_bounded_paths(
        self, definition_class: type[Definition], values: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield the field and the value of each path that must lead into a models folder, as `values` have it. Values
        that `find_refusals` refuses may be among them."""
        for name, marker in read_markers(definition_class).items():
            value = values.get(name)
            if name in self.trusted or value is None:
                continue
            if marker is Settable.IN_MODELS_FOLDER:
                yield from ((name, path) for path in _list_texts(value))
            elif marker is Settable.IN_MODELS_FOLDER_OR_DECLARED and value not in self.declared_names:
                yield name, value

    def _find_reason(self, marker: Settable, value: Any) -> str | None:
        match marker:
            case Settable.FROM_FILES:
                return "a request may not set it"
            case Settable.HUB_REFERENCE:
                return None if _is_hub_reference(value) else "a request may name a model of the hub (`hf:`, `ollama:`)"
            case Settable.HOST_GPUS:
                names = value if isinstance(value, list) else []
                wrong = next((each for each in names if not _GPU.fullmatch(str(each))), None)
                return None if wrong is None else f"{wrong!r:.100} is neither the index nor the UUID of a GPU"
            case Settable.IN_MODELS_FOLDER_OR_DECLARED:
                return self._find_undeclared(value)
            case Settable.ALWAYS | Settable.IN_MODELS_FOLDER:
                return None

    def _find_undeclared(self, value: str) -> str | None:
        if value in self.declared_names:
            return None
        if not value.startswith("/"):
            return (
                "a request may give an absolute path in a models folder, or the `USER/REPO` of a declared model's "
                "`source`"
            )
        try:
            normalize_model_path(value, self.roots)
        except PathRefusedError as error:
            return str(error)
        return None


@cache
def read_markers(definition_class: type[Definition]) -> Mapping[str, Settable]:
    """Return the marker `Settable` of each field, by the field's name. Raises ValueError for a field that does not have
    exactly one."""
    markers: dict[str, Settable] = {}
    for name, info in definition_class.model_fields.items():
        found = [each for each in info.metadata if isinstance(each, Settable)]
        if len(found) != 1:
            raise ValueError(f"{definition_class.__name__}.{name} has {len(found)} markers `Settable`, and needs one")
        markers[name] = found[0]
    return markers


def list_declared_names(definitions: Iterable[Definition], sources: Iterable[object] = ()) -> frozenset[str]:
    """Return the `USER/REPO` of each `source` of the hub, of `definitions` and in `sources`, and what `definitions`
    give the fields with `Settable.IN_MODELS_FOLDER_OR_DECLARED`. What is no reference is left out."""
    names: set[str] = set()
    texts = [*sources]
    for each in definitions:
        texts.append(each.source)
        markers = read_markers(type(each))
        names.update(
            value
            for name, marker in markers.items()
            if marker is Settable.IN_MODELS_FOLDER_OR_DECLARED and (value := getattr(each, name)) is not None
        )
    for text in texts:
        try:
            reference = parse_reference(text) if isinstance(text, str) else None
        except InvalidReferenceError:
            continue
        if isinstance(reference, HubReference):
            names.add(reference.repo)
    return frozenset(names)


def _is_hub_reference(text: str) -> bool:
    reference = parse_reference(text)  # validated
    return isinstance(reference, HubReference) or (isinstance(reference, RegistryReference) and reference.host is None)


def _find_argument(definition_class: type[Definition], name: str, value: Any) -> str | None:
    """Return why a text may not be an argument of its own: many parsers take one with a dash for another option."""
    is_argument = any(isinstance(each, Flag) for each in definition_class.model_fields[name].metadata)
    if is_argument and any(each.startswith("-") for each in _list_texts(value)):
        return "a request may give no text that begins with a dash"
    return None


def _list_texts(value: Any) -> list[str]:
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _advise(name: str) -> str:
    return f"declare it in the desired-state files, or list `{name}` in {TRUSTED_VARIABLE}"
