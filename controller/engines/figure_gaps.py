"""Compares what a definition declares with the figures that the loaded engine reports. Pure.

What an engine does not report makes no gap, and neither does what nobody declared or what `extra_args` set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from controller.engines.options import list_options
from controller.schema.desired import Definition

CONTEXT_MULTIPLE: Final = 256
"""llama.cpp rounds a context length up to a multiple of this number of tokens (`llama_context`)."""


@dataclass(frozen=True, slots=True)
class FigureGap:
    """One option that a loaded engine applied otherwise than declared."""

    field: str
    """Name of the definition's field."""
    declared: JsonValue
    applied: JsonValue
    """What the engine reports instead."""


def compare_figure(
    definition: Definition, field: str, declared: JsonValue, applied: JsonValue, *flags: str
) -> tuple[FigureGap, ...]:
    """Return the gap of one figure, or nothing: where either value is None (not declared, not reported), where both are
    equal, and where `extra_args` have the flag of `field` or one of `flags`."""
    if declared is None or applied is None or declared == applied or has_argument(definition, field, *flags):
        return ()
    return (FigureGap(field, declared, applied),)


def compare_slots(definition: Definition, declared: int, applied: int | None) -> tuple[FigureGap, ...]:
    """Return the gap of an engine that serves fewer requests at a time than `declared`; empty: it serves as many or
    more, or does not report it. More of them harm nobody: the gateway sends no more than declared."""
    too_few = applied if applied is not None and applied < declared else None
    return compare_figure(definition, "target_inflight", declared, too_few)


def compare_padded_context(
    definition: Definition, field: str, declared: int | None, applied: int | None, *flags: str
) -> tuple[FigureGap, ...]:
    """Return the gap of a context length, in tokens, as `compare_figure` does. There is none where `applied` is the
    declared length rounded up to a multiple of 256, as llama.cpp rounds it (`pad_context`)."""
    if declared is not None and applied == pad_context(declared):
        return ()
    return compare_figure(definition, field, declared, applied, *flags)


def pad_context(tokens: int) -> int:
    """Return a context length, in tokens, rounded up to a multiple of 256 (CONTEXT_MULTIPLE), as llama.cpp does."""
    return -(-tokens // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE


def has_argument(definition: Definition, field: str, *flags: str) -> bool:
    """Return whether `extra_args` have the flag of `field` or one of `flags`, also as `--flag=value` and with
    underscores. They come last in a command line, so that they win over the field."""
    own = (option.flag.name for option in list_options(type(definition)) if option.name == field and option.flag)
    names = {arg.partition("=")[0].replace("_", "-") for arg in definition.extra_args}
    return not names.isdisjoint((*own, *flags))
