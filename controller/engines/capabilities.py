"""Capabilities of a model: what a definition declares takes precedence over what its backend derives. Pure."""

from __future__ import annotations

from typing import get_args

from controller.schema.admin import Capabilities, Modality, ThinkingMode
from controller.schema.desired import Definition

EMBEDDINGS = Capabilities(multi_turn=False, tools=False, forced_tools=False, structured_output=False, logprobs=False)
"""Capabilities of a model that serves embeddings or rankings and nothing else."""


def apply_declared(definition: Definition, derived: Capabilities) -> Capabilities:
    """Return `derived` with the fields that the definition declares in their place; None in the definition means not
    declared. Declared thinking modes always get `default` as well. `forced_tools` and `logprobs` cannot be declared;
    `forced_tools` becomes False where `tools` is declared false."""
    modalities, multi_turn, thinking_modes = derived.modalities, derived.multi_turn, derived.thinking_modes
    if definition.modalities is not None:
        modalities = tuple(each for each in get_args(Modality) if each in definition.modalities)
    if definition.multi_turn is not None:
        multi_turn = definition.multi_turn
    if definition.thinking_modes is not None:
        declared_modes = {"default", *definition.thinking_modes}
        thinking_modes = tuple(each for each in get_args(ThinkingMode) if each in declared_modes)
    tools, structured_output = definition.tools, definition.structured_output
    takes_tools = derived.tools if tools is None else tools
    # Every field is set: answers leave out fields that are not.
    return Capabilities(
        modalities=modalities,
        media_urls=derived.media_urls if definition.media_urls is None else definition.media_urls,
        multi_turn=multi_turn,
        thinking_modes=thinking_modes,
        tools=takes_tools,
        structured_output=derived.structured_output if structured_output is None else structured_output,
        forced_tools=derived.forced_tools and takes_tools,
        logprobs=derived.logprobs,
    )
