"""Values of `roundhouse load --set key=value`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from controller.cli.exit_codes import CommandError, ExitCode

LoadScalar: TypeAlias = str | int | float | bool | None


def load_values(assignments: Sequence[str]) -> dict[str, LoadScalar]:
    """Parse `key=value` texts to values by field name, in their order. Whether the fields exist is not checked.

    Values are read as YAML 1.2, as in the files, so that `on` is a text and `null` is None. Raises CommandError
    (ExitCode.USAGE) for a text without `=` or key, a key given twice, or a value that is no scalar.
    """
    values: dict[str, LoadScalar] = {}
    for each in assignments:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise CommandError(f"--set takes key=value, not {each}", ExitCode.USAGE)
        if key in values:
            raise CommandError(f"--set {key} stands twice", ExitCode.USAGE)
        try:
            values[key] = _scalar(text.strip())
        except ValueError as error:
            raise CommandError(f"--set {key}: {error}", ExitCode.USAGE) from None
    return values


def _scalar(text: str) -> LoadScalar:
    from controller.config.tree import Scalar
    from controller.config.yaml12 import read_document, resolve_scalar  # ruamel.yaml

    if not text.startswith(("'", '"')):
        # In a file `#`, `:` and `[` may end a scalar. Here the shell has separated the value already.
        return resolve_scalar(text)
    table, problems = read_document("--set", b"value: " + text.encode("utf-8", "surrogateescape"))
    node = table.get("value") if table is not None else None
    if problems or not isinstance(node, Scalar):
        raise ValueError(problems[0].message if problems else "must be one value")
    return node.value
