"""Where the paths that a request names lead, once symbolic links are resolved."""

from __future__ import annotations

from collections.abc import Iterable

from controller.artifacts.facts import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import find_outside_link
from controller.config.debounce import DebouncedState
from controller.config.runtime_declarations import PLACE, check_declaration
from controller.schema.declarations import DeclarationKind, RuntimeDeclarations
from controller.schema.status import Problem


def check_request(
    files: DebouncedState,
    declarations: RuntimeDeclarations,
    kind: DeclarationKind,
    name: str,
    roots: ModelRoots,
    trusted: frozenset[str],
) -> tuple[Problem, ...]:
    """Return the problems, with secrets masked, that the runtime declaration of this kind and name, which
    `declarations` contains, has beside the other declarations; empty: it can be put. Blocks on the disk. Never
    raises."""
    checked = check_declaration(files, declarations, kind, name, roots, trusted)
    outside = find_outside_paths(roots, checked.paths)
    return checked.problems or tuple(
        Problem(file=PLACE.file, line=None, field=field, message=message) for field, message in outside
    )


def find_outside_paths(roots: ModelRoots, paths: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the field and what is wrong, as the second half of a sentence, of each of these fields and declared paths
    that leads out of the models folders. What does not exist leads nowhere. Blocks on the disk."""
    found: list[tuple[str, str]] = []
    for field, path in paths:
        try:
            link = find_outside_link(roots, path)
        except (ArtifactError, OSError, ValueError) as error:
            found.append((field, f"{path:.200} cannot be followed: {error}"))
            continue
        if link is not None:
            found.append((field, f"{path:.200} leads out of {roots.describe()} by the symbolic link {link}"))
    return found
