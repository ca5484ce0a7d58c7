"""Options of every command: `roundhouse`, `python -m worker`, `python -m worker.clockwork`. And exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import typer

from tests.support.goldens.product import (
    LAUNCHERS,
    CommandExit,
    clockwork_main,
    parse_engine,
    program_exits,
    roundhouse_app,
    run_worker,
)

_SHELL_COMPLETION: Final = ("install_completion", "show_completion")
"""Typer's own; what they take depends on the machine."""
_TYPES: Final = (int, float, str)


def make_roundhouse() -> Any:
    """Every command's arguments and options, in order."""
    return dict(_commands(typer.main.get_command(roundhouse_app), "roundhouse"))


def make_worker() -> Any:
    """The worker's own arguments, each engine's, and those of the program that makes the demo model."""
    [own] = _parsers(lambda: run_worker([]))
    engines = next(list(action.choices) for action in own._actions if action.choices)
    made = {"worker": _arguments(own), "worker.clockwork": _arguments(*_parsers(lambda: clockwork_main([])))}
    for name in engines:
        if name not in LAUNCHERS:
            made[f"worker {name}"] = _arguments(*_parsers(lambda name=name: parse_engine(name, [])))  # type: ignore[misc]
    return made


def make_exits() -> Any:
    """What the exit codes of the programs say."""
    return {"roundhouse": {code.name: code.value for code in CommandExit}, **program_exits()}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, [_option(each) for each in command.params if each.name not in _SHELL_COMPLETION]
    for child, each in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(each, f"{name} {child}")


def _option(parameter: Any) -> dict[str, Any]:
    said = vars(parameter)
    kind = said["type_descriptor"].annotation
    return {
        "names": [*said["opts"], *said["secondary_opts"]],
        "type": kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind),
        **{key: said[key] for key in ("default", "required", "multiple", "nargs", "envvar", "min", "max", "metavar")},
        "is_flag": said.get("is_flag", False),
        "hidden": said["hidden"],
    }


class _ParsersSeenError(Exception):
    """What a program was about to parse its arguments with."""


@contextmanager
def _caught(seen: list[argparse.ArgumentParser]) -> Iterator[None]:
    def parse_args(parser: argparse.ArgumentParser, *_: object) -> None:
        seen.append(parser)
        raise _ParsersSeenError

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        try:
            yield
        except _ParsersSeenError:
            return
    raise AssertionError("the program parsed no arguments")


def _parsers(run: Callable[[], object]) -> list[argparse.ArgumentParser]:
    seen: list[argparse.ArgumentParser] = []
    with _caught(seen):
        run()
    return seen


def _arguments(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    return [
        {
            "names": list(action.option_strings) or [action.dest],
            "type": action.type.__name__ if action.type in _TYPES else "checked" if action.type else None,
            "action": type(action).__name__.strip("_"),
            "default": action.default if isinstance(action.default, str | int | float | bool | None) else "another",
            "required": action.required,
            "choices": None if action.choices is None else [str(each) for each in action.choices],
            "nargs": action.nargs,
        }
        for action in parser._actions
        if action.option_strings != ["-h", "--help"]
    ]
