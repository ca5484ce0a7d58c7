"""Writes desired-state files, such as an export of runtime declarations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO

from pydantic import JsonValue
from ruamel.yaml import YAML

_NEVER_FOLDED = 2**31 - 1


def write_yaml(document: Mapping[str, JsonValue]) -> str:
    """Return the YAML 1.2 text of a document, with a line feed at its end and the keys in their order. `read_document`
    reads the same values from the text."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] # ruamel's own annotation says None
    yaml.allow_unicode = True
    yaml.width = _NEVER_FOLDED
    text = StringIO()
    yaml.dump(dict(document), text)
    return text.getvalue()
