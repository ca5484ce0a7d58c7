"""Model families whose chat templates can turn thinking on and off, and the prompt formats that name them. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal

from controller.schema.admin import ThinkingMode

ChatFormat = Literal["generic", "mistral_template", "qwen3_template", "gemma4_template"]
"""Prompt formats of conversations."""
PromptFormat = Literal["generic", "mistral_template", "qwen3_template", "gemma4_template", "translategemma_template"]
Family = Literal["gemma4", "qwen3"]

DEFAULT_ONLY: Final[tuple[ThinkingMode, ...]] = ("default",)
ALL_MODES: Final[tuple[ThinkingMode, ...]] = ("default", "enabled", "disabled")

_OF_FORMAT: Final[dict[str, Family]] = {"gemma4_template": "gemma4", "qwen3_template": "qwen3"}
# The number must not be part of another number (gemma-40) or of a size (gemma-4b, qwen-32b).
_OF_NAME: Final[tuple[tuple[re.Pattern[str], Family], ...]] = (
    (re.compile(r"gemma[-_ ]?4(?![0-9b])", re.IGNORECASE), "gemma4"),
    (re.compile(r"qwen[-_ ]?3(?![0-9b])", re.IGNORECASE), "qwen3"),
)
# Models of Qwen3 that always think or never do: their templates have no switch.
_WITHOUT_SWITCH: Final = re.compile(r"coder|2507|embed|rerank|guard", re.IGNORECASE)


def family_of(prompt_format: str | None, *names: str | None) -> Family | None:
    """Return the family by the prompt format, where one is declared, else by the first name that matches a family.

    Names are of files, folders or models of the hub; None among them is skipped. None: the declared format or the names
    belong to no known family, or the name is of a Qwen3 model whose template has no switch for thinking (Qwen3-Coder is
    one).
    """
    if prompt_format is not None:
        return _OF_FORMAT.get(prompt_format)
    for name in names:
        for pattern, family in _OF_NAME:
            if name is not None and pattern.search(name):
                return None if family == "qwen3" and _WITHOUT_SWITCH.search(name) else family
    return None


def thinking_modes(family: Family | None, *switchable: Family) -> tuple[ThinkingMode, ...]:
    """Return all thinking modes where `family` is among `switchable`, the families that the backend can switch; else
    `default` alone."""
    return ALL_MODES if family in switchable else DEFAULT_ONLY
