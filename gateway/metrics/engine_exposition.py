"""Merges the metrics of several engines into one page in Prometheus' text format. Pure.

Each sample gets the labels `model` and `replica`. Names that vLLM has changed between its versions are served under the
newest name. A line that is no sample is left out: one engine's bad page must not spoil the others'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PREFIXES: Final = ("llamacpp:", "vllm:")
"""How the names of engines' own metrics begin. Others, such as those of an engine's process, are left out."""
RENAMED: Final = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_hits": "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_queries": "vllm:prefix_cache_queries",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
}
"""Names of older versions of vLLM, and those that newer ones serve the same figures under."""
_SUFFIXES: Final = ("_bucket", "_sum", "_count", "_total")
_SAMPLE: Final = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*",?)*)\})?'
    r"[ \t]+([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|[Ii]nf|[Nn]a[Nn]))(?:[ \t]+-?\d+)?[ \t]*"
)
_OWN_LABEL: Final = re.compile(r'(^|,)(model|replica)=(?=")')
_HEADER: Final = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)")
_TYPES: Final = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})


class EnginePage(NamedTuple):
    """What one engine said at its `/metrics`. `text` None: the page could not be read. `seconds`: how long the read
    took."""

    model: str
    replica: str
    text: str | None
    """Text of the page; None: the page could not be read."""
    seconds: float
    """Seconds that the read took."""


@dataclass(slots=True)
class _Family:
    help: str = ""
    kind: str = "untyped"
    samples: list[str] = field(default_factory=list)


def merge_pages(pages: Iterable[EnginePage]) -> str:
    """Return one page in Prometheus' text format of all engines' metrics, and of how reading them went; empty without
    `pages`.

    Families are in the order of their names. Of a family that engines describe differently, the first engine's
    description counts. Of a page whose `text` is None, only `roundhouse_engine_up` 0 and the seconds are told.
    """
    families = {
        "roundhouse_engine_up": _Family("1 if the engine's metrics could be read.", "gauge"),
        "roundhouse_engine_scrape_seconds": _Family("Seconds that reading the engine's metrics took.", "gauge"),
    }
    for page in pages:
        labels = f'model="{_escape(page.model)}",replica="{_escape(page.replica)}"'
        families["roundhouse_engine_up"].samples.append(
            f"roundhouse_engine_up{{{labels}}} {int(page.text is not None)}"
        )
        seconds_sample = f"roundhouse_engine_scrape_seconds{{{labels}}} {page.seconds:.6f}"
        families["roundhouse_engine_scrape_seconds"].samples.append(seconds_sample)
        for name, family in parse_page(page.text or "", labels).items():
            known = families.setdefault(name, _Family(family.help, family.kind))
            known.samples += family.samples
    return "".join(_write_family(name, family) for name, family in sorted(families.items()) if family.samples)


def parse_page(text: str, labels: str) -> dict[str, _Family]:
    """Return help, type and sample lines of an engine's metrics by name, under the newest names (see `rename`).

    `labels`: text such as `model="m",replica="r"`, escaped already, that is put before each sample's own labels; an own
    label `model` or `replica` becomes `exported_model` or `exported_replica`. Where an engine serves a figure under its
    old and its new name, the new one counts. Left out are lines that are no samples, metrics whose names do not begin
    with one of `PREFIXES`, and times of creation (`_created`).
    """
    families: dict[str, _Family] = {}
    for line in text.split("\n"):
        if line.startswith("#"):
            _read_header(line, families)
            continue
        match = _SAMPLE.fullmatch(line.rstrip("\r"))
        if match is None or not match[1].startswith(PREFIXES) or match[1].endswith("_created"):
            continue
        name, own_labels, value = match[1], (match[2] or "").rstrip(","), match[3]
        own_labels = _OWN_LABEL.sub(r"\1exported_\2=", own_labels)
        family = families.setdefault(_family_of(name, families), _Family())
        family.samples.append(f"{rename(name)}{{{labels}{',' if own_labels else ''}{own_labels}}} {value}")
    with_samples = {name: family for name, family in families.items() if family.samples}
    return {rename(name): family for name, family in with_samples.items() if not _is_superseded(name, with_samples)}


def rename(name: str) -> str:
    """Return the newest name (see `RENAMED`) of a metric, or of a sample with a suffix such as `_bucket`, which stays.
    A name that has not changed is returned as it is."""
    if name in RENAMED:
        return RENAMED[name]
    for suffix in _SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and base in RENAMED:
            return RENAMED[base] + suffix
    return name


def _is_superseded(name: str, families: dict[str, _Family]) -> bool:
    newest_name = rename(name)
    return newest_name != name and newest_name in families


def _read_header(line: str, families: dict[str, _Family]) -> None:
    match = _HEADER.fullmatch(line.rstrip("\r"))
    if match is None or not match[2].startswith(PREFIXES) or match[2].endswith("_created"):
        return
    family = families.setdefault(match[2], _Family())
    if match[1] == "HELP":
        family.help = match[3]
    elif match[3] in _TYPES:
        family.kind = match[3]


def _family_of(sample: str, families: dict[str, _Family]) -> str:
    if sample not in families:
        for suffix in _SUFFIXES:
            base = sample.removesuffix(suffix)
            if base != sample and base in families:
                return base
    return sample


def _write_family(name: str, family: _Family) -> str:
    help_line = f"# HELP {name} {family.help}\n" if family.help else ""
    return f"{help_line}# TYPE {name} {family.kind}\n" + "\n".join(family.samples) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
