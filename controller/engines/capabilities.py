"""What a definition declares about requests beats what its backend derives. Pure."""

from __future__ import annotations

from typing import get_args

from controller.schema.admin import Capabilities, Modality, ThinkingMode
from controller.schema.desired import Definition

EMBEDDINGS = Capabilities(multi_turn=False, tools=False, structured_output=False, logprobs=False)
"""Of a model that serves embeddings or rankings and nothing else."""


def apply_declared(definition: Definition, derived: Capabilities) -> Capabilities:
    """`derived`, with what the definition declares instead. `default` thinking is always taken."""
    modalities, multi_turn, thinking_modes = derived.modalities, derived.multi_turn, derived.thinking_modes
    if definition.modalities is not None:
        modalities = tuple(each for each in get_args(Modality) if each in definition.modalities)
    if definition.multi_turn is not None:
        multi_turn = definition.multi_turn
    if definition.thinking_modes is not None:
        declared_modes = {"default", *definition.thinking_modes}
        thinking_modes = tuple(each for each in get_args(ThinkingMode) if each in declared_modes)
    tools, structured_output = definition.tools, definition.structured_output
    # Every field is set, so that none is left out of an answer that leaves out what is not set.
    return Capabilities(
        modalities=modalities,
        multi_turn=multi_turn,
        thinking_modes=thinking_modes,
        tools=derived.tools if tools is None else tools,
        structured_output=derived.structured_output if structured_output is None else structured_output,
        logprobs=derived.logprobs,
    )
