"""As much of torch as the worker itself calls: tensors of token ids, which numpy's arrays stand for."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

long = np.int64


class cuda:  # noqa: N801 - the real name
    """GPUs, of which there is one, or as many as `FAKE_GPUS` says."""

    @staticmethod
    def device_count() -> int:
        return int(os.environ.get("FAKE_GPUS", "1"))


def tensor(data: Any, dtype: Any = None) -> Any:
    return np.array(data, dtype)
