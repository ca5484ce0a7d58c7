"""What a definition declares of GPU memory, beside what its replicas were seen to take. Pure."""

from __future__ import annotations

from typing import Final

from controller.state import DesiredModel

TOLERANCE: Final = 0.1
"""Share of the declared figure by which the observed one may differ without a word."""


def explain_vram_gap(model: DesiredModel, observed_mib: int | None) -> str | None:
    """That a replica takes more or less of a GPU than `vram_mib` declares, by a tenth and more, and what to do.

    None: it takes about as much, or nothing is declared, or nothing was observed. `observed_mib`: the most that one
    replica was seen to take of one of its GPUs; None: that is not known.
    """
    declared_mib = model.vram_mib
    if declared_mib is None or not observed_mib or model.gpu_count == 0:
        return None
    if abs(observed_mib - declared_mib) < TOLERANCE * declared_mib:
        return None
    difference = observed_mib / declared_mib - 1
    figures = f"`vram_mib` declares {declared_mib} MiB of each GPU, and a replica was seen to take {observed_mib}"
    if difference > 0:
        return f"{figures}, {difference:.0%} more: raise it, or its next load may find too little memory"
    return f"{figures}, {-difference:.0%} less: a lower one leaves room for others"
