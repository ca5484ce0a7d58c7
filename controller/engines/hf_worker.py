"""What the worker's engines with a Hugging Face tokenizer have in common. Pure."""

from __future__ import annotations

from typing import Final

from controller.engines.base import Verdict

HF_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (r"cannot open .*/tokenizer\.json", Verdict("no tokenizer.json in the folder", True)),
    (r"tokenizers cannot load|/\w+\.json is not (JSON|a JSON object)", Verdict("the tokenizer cannot be read", True)),
    (r"there is no chat template in", Verdict("no chat template in the folder", True)),
    (r"the chat template \S+ cannot be used", Verdict("the chat template cannot be used", True)),
    (r"invalid choice|argument --|unrecognized arguments", Verdict("bad argument", True)),
    (r"port .*(taken|in use)|address already in use", Verdict("port taken")),
)
"""Sentences of the worker, and what they mean in plain words."""
