"""What `roundhouse top` shows of what was read: rates of tokens, and the table as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.output import count_words
from cli.status import gpu_label, host_notes, host_title, mib_words, unread_gpu_words, warning_lines
from contract.admin import AdminModel, AdminModels, GpuMemoryAnswer, ListContext
from contract.status import ModelState

SERIES = "roundhouse_gateway_tokens_total"
"""Metric of the gateway that counts tokens."""
DIRECTION = "out"
"""Value of the label `direction` for tokens that engines have generated."""


@dataclass(frozen=True, slots=True)
class TokenSample:
    """A sample of a gateway's token counters. `at`: when it was taken, in seconds of a monotonic clock, the same for
    all samples."""

    at: float
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Model to the number of tokens that its engines have generated."""


def token_rates(before: TokenSample | None, after: TokenSample | None) -> Mapping[str, float] | None:
    """Return the generated tokens per second between two samples, by model in `after`. A model that only `before` has
    is left out. A counter that fell counts as restarted at 0.

    None means unknown: a sample is missing, or no time has passed between them.
    """
    if before is None or after is None or after.at <= before.at:
        return None
    seconds = after.at - before.at
    return {model: _increase(before.tokens.get(model, 0.0), now) / seconds for model, now in after.tokens.items()}


def _increase(before: float, now: float) -> float:
    # A counter that fell belongs to a gateway that has restarted.
    return now - before if now >= before else now


def tokens_of(exposition: str) -> dict[str, float]:
    """Parse the text of a gateway's `/metrics` to the tokens that engines have generated since the gateway's start, by
    model. Empty where the text has no such counter. Raises ValueError where the text cannot be parsed."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == SERIES and sample.labels.get("direction") == DIRECTION:
                model = sample.labels.get("model", "")
                totals[model] = totals.get(model, 0.0) + sample.value
    return totals


COLUMNS = ("MODEL", "STATE", "READY", "IN FLIGHT", "QUEUE", "PREFILL", "TOKENS/S", "MEMORY")
UNKNOWN = "-"
SEVERAL_REPLICAS = (
    "Of several replicas one may have all the work: requests that begin alike go where their beginning is in the cache,"
    " unless another replica has fewer inside (docs/gateway.md)."
)


@dataclass(frozen=True, slots=True)
class TopView:
    """Data of one view of `roundhouse top`, and its rendering. `rates` is generated tokens per second by model; a model
    that it does not have generated none. None means that all rates are unknown."""

    listing: AdminModels
    memory: GpuMemoryAnswer
    rates: Mapping[str, float] | None

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table, with the cells of `COLUMNS` as text. They are ordered by the number of
        requests, running and waiting, the most first; of models with equally many, unloaded ones are last, then by
        name."""
        return [self._row(model) for model in sorted(self.listing.models, key=_busiest_first)]

    def trouble_lines(self) -> list[str]:
        """Return warnings to show before the table: the controller is paused, cannot observe what runs, or the files
        have problems; hosts with reasons for their states. Empty where all is well."""
        notes = host_notes(self.memory.hosts, is_cut_off=self.memory.is_cut_off)
        return [*warning_lines(self.listing), *notes]

    def note_lines(self) -> list[str]:
        """Return lines to show after the table, which explain what may look wrong in it. Empty where nothing does."""
        has_several = any(model.loaded_replicas > 1 for model in self.listing.models)
        return [SEVERAL_REPLICAS] if has_several else []

    def gpu_lines(self) -> list[str]:
        """Return one line per host with a name, then one per GPU: the readable ones, then those that cannot be read,
        with the reason."""
        hosts = [
            f"{host_title(each)}: {each.state}, {count_words(len(each.engines), 'engine')}"
            for each in self.memory.hosts
        ]
        figures = [f"GPU {gpu_label(gpu)} {gpu.name}: {gpu.used_over_total}" for gpu in self.memory.gpus]
        return [*hosts, *figures, *(unread_gpu_words(gpu) for gpu in self.memory.unread_gpus)]

    def as_json(self) -> dict[str, Any]:
        """Return the same data for `--json`, in values that `json` can write; unknown ones are None. Keys are `models`
        (in the order of `rows`), `gpus`, `unread_gpus`, of several hosts `hosts`, and the fields of
        `contract.admin.ListContext`."""
        return {
            "models": [self._json(model) for model in sorted(self.listing.models, key=_busiest_first)],
            "gpus": [gpu.model_dump(mode="json") for gpu in self.memory.gpus],
            "unread_gpus": [gpu.model_dump(mode="json") for gpu in self.memory.unread_gpus],
            **self.memory.model_dump(mode="json", include={"hosts", "is_cut_off"}),
            **self.listing.model_dump(mode="json", include=set(ListContext.model_fields)),
        }

    def _rate(self, model: AdminModel) -> float | None:
        return None if self.rates is None else self.rates.get(model.name, 0.0)

    def _row(self, model: AdminModel) -> tuple[str, ...]:
        rate = self._rate(model)
        return (
            model.name,
            _state(model),
            f"{model.loaded_replicas}/{model.replicas}",
            _count(model.inflight_requests),
            _count(model.queue_depth),
            _prefill(model),
            UNKNOWN if rate is None else f"{rate:.1f}",
            mib_words(model.vram_estimate_mib),
        )

    def _json(self, model: AdminModel) -> dict[str, Any]:
        return {
            "name": model.name,
            "runtime_state": model.runtime_state.value,
            "loaded_replicas": model.loaded_replicas,
            "replicas": model.replicas,
            "inflight_requests": model.inflight_requests,
            "queue_depth": model.queue_depth,
            "load_progress": model.load_progress,
            "prefill_requests": model.prefill_requests,
            "prefill_progress": model.prefill_progress,
            "tokens_per_s": self._rate(model),
            "vram_estimate_mib": model.vram_estimate_mib,
        }


def _busiest_first(model: AdminModel) -> tuple[int, bool, str]:
    request_count = (model.inflight_requests or 0) + (model.queue_depth or 0)
    return (-request_count, model.runtime_state.is_at_rest, model.name)


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def _state(model: AdminModel) -> str:
    state = model.runtime_state.value
    is_told = model.runtime_state is ModelState.LOADING and model.load_progress is not None
    return f"{state} {_percent(model.load_progress)}" if is_told else state


def _prefill(model: AdminModel) -> str:
    """Return how many requests' prompts are being read, and how much of them is."""
    return f"{model.prefill_requests}: {_percent(model.prefill_progress)}" if model.prefill_requests else UNKNOWN


def _percent(share: float | None) -> str:
    return f"{share or 0:.0%}".replace("%", " %")
