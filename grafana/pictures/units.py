"""Figures as Grafana writes them. Pure."""

from __future__ import annotations

from typing import Final

_SCALES: Final[dict[str, tuple[tuple[float, float, str], ...]]] = {
    "s": (
        (86_400, 86_400, " d"),
        (3_600, 3_600, " h"),
        (60, 60, " min"),
        (1, 1, " s"),
        (1e-3, 1e-3, " ms"),
        (0, 1e-6, " µs"),
    ),
    "bytes": ((2**30, 2**30, " GiB"), (2**20, 2**20, " MiB"), (2**10, 2**10, " KiB"), (0, 1, " B")),
    "mbytes": ((2**20, 2**20, " TiB"), (2**10, 2**10, " GiB"), (0, 1, " MiB")),
    "short": ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e3, 1e3, " k"), (0, 1, "")),
    "percentunit": ((0, 0.01, "%"),),
}
"""By unit: from which value on, divided by what, followed by what."""
_SUFFIXES: Final = {"reqps": " req/s", "ops": " /s"}


def format_value(value: float, unit: str) -> str:
    """Return a figure of Grafana's `unit` with three significant digits."""
    if value == 0:
        return "0%" if unit == "percentunit" else "0"
    if unit in _SUFFIXES:
        return f"{value:.3g}{_SUFFIXES[unit]}"
    divisor, suffix = _scale_of(value, unit)
    return f"{_shorten(value / divisor)}{suffix}"


def divisor_of(value: float, unit: str) -> float:
    """Return by what `format_value` divides a figure of this size."""
    return 1.0 if unit in _SUFFIXES else _scale_of(value, unit)[0]


def _scale_of(value: float, unit: str) -> tuple[float, str]:
    return next(
        (divisor, suffix) for least, divisor, suffix in _SCALES.get(unit, _SCALES["short"]) if abs(value) >= least
    )


def _shorten(value: float) -> str:
    """Return three significant digits, and all digits of a whole part."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
