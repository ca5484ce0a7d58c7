"""Runtime declarations through the admin API: what is declared, declaring, and taking back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import JsonValue

from controller.desired.source import DesiredStateSource
from controller.redaction.patterns import mask_fields
from controller.schema.declarations import (
    DeclarationKind,
    DeclarationsView,
    DeclarationView,
    RuntimeDeclaration,
    RuntimeDeclarations,
)
from controller.schema.errors import RoundhouseError

MAX_DECLARATIONS = 10_000
"""Runtime declarations of one kind at most: they are kept in one file, which each change writes anew."""


class DeclarationService:
    """Shows and changes the runtime declarations of one controller. A change is in force before a method returns, and
    written to the state folder; a failed write raises nothing and is tried again."""

    def __init__(self, files: DesiredStateSource, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        """`wake` makes the controller plan again. `clock` gives Unix time in seconds."""
        self._files = files
        self._wake = wake
        self._clock = clock

    def list_declarations(self) -> DeclarationsView:
        """Return all runtime declarations with secrets masked, and why some are not in force."""
        declared = self._files.declarations
        return DeclarationsView(
            models={name: _masked(each) for name, each in declared.models.items()},
            keys=declared.keys,  # the hash of a secret is none
            problems=list(self._files.declaration_problems),
        )

    def get_declaration(self, kind: DeclarationKind, name: str) -> DeclarationView:
        """Return one runtime declaration with secrets masked. Raises RoundhouseError `unknown_declaration` if there is
        none of this kind and name; what the files declare is none."""
        declaration = _of_kind(self._files.declarations, kind).get(name)
        if declaration is None:
            raise _unknown(kind, name)
        return _view(kind, name, declaration)

    def put_declaration(
        self, kind: DeclarationKind, name: str, fields: Mapping[str, JsonValue], *, actor: str
    ) -> tuple[DeclarationView, bool]:
        """Declare a model or a key for `actor`, with `fields` as a desired-state file has them below the name, and
        return the declaration with secrets masked, and whether it is new (False: it replaces an earlier one, or has the
        same fields, which changes nothing). It is in force before the return.

        Raises RoundhouseError: `declared_in_files` if the files declare the name; `invalid_declaration` if the fields
        have a problem or no request may set one of them (`param` is the field of the first one), or if 10,000
        (`MAX_DECLARATIONS`) of this kind are declared already.
        """
        if self._files.declares(kind, name):
            message = f"The desired-state files declare {_subject(kind, name)}: edit them."
            raise RoundhouseError("declared_in_files", message, param="name")
        known = _of_kind(self._files.declarations, kind)
        earlier = known.get(name)
        if earlier is None and len(known) >= MAX_DECLARATIONS:
            message = f"There are {MAX_DECLARATIONS} runtime declarations of {kind}: delete some, or use files."
            raise RoundhouseError("invalid_declaration", message)
        if earlier is not None and earlier.fields == dict(fields):
            return _view(kind, name, earlier), False
        declaration = RuntimeDeclaration(fields=dict(fields), declared_at=self._clock(), actor=actor)
        problems = self._files.check_declaration(kind, name, declaration)
        if problems:
            # Without the prefix: the caller named model and key itself.
            words = "; ".join(f"{each.field}: {each.message}" for each in problems)
            raise RoundhouseError("invalid_declaration", f"{words}.", param=problems[0].field)
        self._files.put_declaration(kind, name, declaration)
        self._wake()
        return _view(kind, name, declaration), earlier is None

    def drop_declaration(self, kind: DeclarationKind, name: str, *, actor: str) -> DeclarationView:
        """Remove a runtime declaration for `actor`, and return what it was, with secrets masked. A model is drained and
        its engines end; a key is refused from then on. Raises RoundhouseError `unknown_declaration` if there is none of
        this kind and name."""
        view = self.get_declaration(kind, name)
        self._files.drop_declaration(kind, name, actor)
        self._wake()
        return view


def _of_kind(declared: RuntimeDeclarations, kind: DeclarationKind) -> Mapping[str, RuntimeDeclaration]:
    return declared.models if kind == "models" else declared.keys


def _subject(kind: DeclarationKind, name: str) -> str:
    return f"the {'model' if kind == 'models' else 'key'} {name}"


def _unknown(kind: DeclarationKind, name: str) -> RoundhouseError:
    message = f"There is no runtime declaration of {_subject(kind, name)}; what files declare is not one."
    return RoundhouseError("unknown_declaration", message, param="name")


def _masked(declaration: RuntimeDeclaration) -> RuntimeDeclaration:
    return declaration.model_copy(update={"fields": mask_fields(declaration.fields)})


def _view(kind: DeclarationKind, name: str, declaration: RuntimeDeclaration) -> DeclarationView:
    return DeclarationView(kind=kind, name=name, **dict(_masked(declaration) if kind == "models" else declaration))
