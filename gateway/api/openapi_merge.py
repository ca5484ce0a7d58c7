"""Merge two OpenAPI documents: the gateway's, and the admin routes of the controller's. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

ADMIN_PREFIX: Final = "/v1/admin/"
RENAMED: Final = "Controller"
"""Prefix for a component of the controller whose name means another component in the gateway's document."""

_COMPONENTS: Final = "#/components/"
_ENVELOPE: Final = "#/components/schemas/ErrorEnvelope"
"""Reference to the error envelope in the gateway's document."""

Document = dict[str, Any]
Place = tuple[str, str]
"""Kind (`schemas`) and name of a component."""


def merge_documents(
    own: Mapping[str, Any],
    controller: Mapping[str, Any],
    gateway_errors: Mapping[str, list[str]] = MappingProxyType({}),
) -> Document:
    """Return `own` with the admin paths of `controller`, the components that they use, and their tags.

    `gateway_errors`: Markdown lines by status, of errors that the gateway itself may answer on admin routes; they are
    added to each operation. A component of the controller that differs from the gateway's of the same name, directly or
    in what it refers to, is renamed with the prefix `RENAMED`. Where both have a path, `own` wins. Neither document is
    changed, but the result shares parts with both.

    Raises:
        ValueError: `paths` of `controller` is missing or no object, or `components` is no object. Other malformed parts
            may raise KeyError, TypeError or AttributeError.
    """
    paths = controller.get("paths")
    components = controller.get("components", {})
    if not isinstance(paths, dict) or not isinstance(components, dict):
        raise ValueError("not an OpenAPI document")  # noqa: TRY004 - it came over the wire
    admin = {path: item for path, item in paths.items() if path.startswith(ADMIN_PREFIX)}
    used_components = _collect_components(admin, components)
    names = _new_names(used_components, own.get("components", {}))

    def moved(value: Any) -> Any:
        return _rewrite_references(value, lambda ref: _reference_to(names.get(_place_of(ref), _place_of(ref))))

    admin_paths = {path: _with_errors(item, gateway_errors) for path, item in moved(admin).items()}
    merged: Document = {**own, "paths": {**admin_paths, **own.get("paths", {})}}
    kinds: dict[str, dict[str, Any]] = {kind: dict(items) for kind, items in own.get("components", {}).items()}
    for place, component in used_components.items():
        kind, name = names.get(place, place)
        kinds.setdefault(kind, {}).setdefault(name, moved(component))
    if kinds:
        merged["components"] = kinds
    if tags := _tags(own, controller, admin):
        merged["tags"] = tags
    return merged


def _with_errors(item: Mapping[str, Any], errors: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a path item whose operations list `errors` besides their own answers."""
    return {
        key: {**operation, "responses": _more_responses(operation["responses"], errors)}
        if isinstance(operation, dict) and "responses" in operation
        else operation
        for key, operation in item.items()
    }


def _more_responses(responses: Mapping[str, Any], errors: Mapping[str, list[str]]) -> dict[str, Any]:
    all_responses = dict(responses)
    for status, lines in errors.items():
        response = all_responses.get(status, {"content": {"application/json": {"schema": {"$ref": _ENVELOPE}}}})
        description = response.get("description", "")
        new_lines = [line for line in lines if line.removeprefix("- ") not in description]
        all_responses[status] = {
            **response,
            "description": "\n".join([description, *new_lines] if description else new_lines),
        }
    return all_responses


def _collect_components(paths: Mapping[str, Any], components: Mapping[str, Any]) -> dict[Place, Any]:
    """Return all components that `paths` refer to, directly or through other components."""
    used_components: dict[Place, Any] = {}
    pending = list(_references(paths))
    while pending:
        place = pending.pop()
        component = components.get(place[0], {}).get(place[1])
        if component is None or place in used_components:
            continue
        used_components[place] = component
        pending.extend(_references(component))
    return used_components


def _new_names(used: Mapping[Place, Any], own: Mapping[str, Any]) -> dict[Place, Place]:
    """Return the new name of each component of `used` that must be renamed."""
    shared = {place for place in used if place[1] in own.get(place[0], {})}
    different = {place for place in shared if used[place] != own[place[0]][place[1]]}
    # Equal text that refers to a component that differs is not equal.
    while more := {place for place in shared - different if not different.isdisjoint(_references(used[place]))}:
        different |= more
    names: dict[Place, Place] = {}
    for kind, name in sorted(different):
        new_name = RENAMED + name
        while new_name in own.get(kind, {}) or (kind, new_name) in used or (kind, new_name) in names.values():
            new_name = RENAMED + new_name
        names[kind, name] = (kind, new_name)
    return names


def _tags(own: Mapping[str, Any], controller: Mapping[str, Any], admin: Mapping[str, Any]) -> list[Any]:
    tags = list(own.get("tags", ()))
    known_names = {tag["name"] for tag in tags}
    used_names = {
        name
        for item in admin.values()
        for operation in item.values()
        if isinstance(operation, dict)
        for name in operation.get("tags", ())
    }
    return tags + [tag for tag in controller.get("tags", ()) if tag["name"] in used_names - known_names]


def _references(value: Any) -> Iterator[Place]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _references(item)
    elif _is_reference(value):
        yield _place_of(value)


def _rewrite_references(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with `change` applied to every reference to a component."""
    if isinstance(value, dict):
        return {key: _rewrite_references(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_rewrite_references(item, change) for item in value]
    return change(value) if _is_reference(value) else value


def _is_reference(value: Any) -> bool:
    """Return whether `value` has the form of a reference, which also stands in a discriminator's mapping, not in `$ref`
    alone."""
    return isinstance(value, str) and value.startswith(_COMPONENTS) and value.count("/") == 3


def _place_of(ref: str) -> Place:
    kind, _, name = ref.removeprefix(_COMPONENTS).partition("/")
    return kind, name


def _reference_to(place: Place) -> str:
    return f"{_COMPONENTS}{place[0]}/{place[1]}"


def decode_document(text: bytes) -> Document:
    """Return the JSON object in `text`. Whether it is an OpenAPI document is not checked.

    Raises:
        ValueError: `text` is no JSON, or no JSON object.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - it came over the wire
    return document
