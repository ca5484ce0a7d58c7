"""The top-level packages of Roundhouse, as the wheel has them: pyproject.toml is the only place that names them all."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

_PROJECT: Final = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
PACKAGES: Final[tuple[str, ...]] = tuple(_PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
"""In alphabetical order."""
