"""What a chaos campaign saw. Times are seconds of one monotonic clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from controller.cli.up import supervisor
from controller.planning import backoff
from tests.support.chaos.keepers import Refusal
from tests.support.checked_clients import Ended, Outcome

STABLE_S = {"engine": backoff.STABLE_S + 2.0, "gateway": supervisor.STABLE_S, "controller": supervisor.STABLE_S}
"""By victim: who has run this long is started again after the shortest wait there is; else the wait grows. An engine's
time counts from its being ready, seconds after its start."""

RESTARTING = frozenset(
    {
        "refused: engine_disconnected",
        "refused: engine_unreachable",
        "refused: model_failed",  # between an engine's end and its next start
        "refused: model_loading",
        "refused: model_not_loaded",
    }
)
"""What may become of a request to a model whose only engine was killed, until it serves again."""
INSIDE = frozenset({"refused: engine_disconnected", "refused: engine_unreachable"})
"""The same where another replica stands by: only those that were inside the engine when it was killed."""
UNLOADED = frozenset({"refused: model_not_loaded", "refused: model_unloading", "refused: model_loading"})
"""What may become of a request to a model that an operator unloaded, until it is loaded again."""
GATEWAY_AWAY = frozenset(
    {
        Outcome.CUT.value,
        Outcome.NOT_CONNECTED.value,
        "refused: controller_unavailable",  # a gateway that was started again has no table yet
    }
)
"""What may become of any request while the gateway is away."""
STOPPED = GATEWAY_AWAY | RESTARTING | {"refused: gateway_stopping", "refused: model_unloading"}
"""What may become of any request while an operator stops everything and starts it again."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Requests that may be lost because of a fault: those to one of `models` (None: to any) that were under way
    between `since` and `until`, and ended with one of `outcomes`. Which began after `until` may not be lost."""

    models: frozenset[str] | None
    outcomes: frozenset[str]
    since: float
    until: float

    def excuses(self, lost: Ended) -> bool:
        is_asked_of = self.models is None or lost.model in self.models
        return is_asked_of and lost.outcome in self.outcomes and lost.began <= self.until and lost.ended >= self.since


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL."""

    victim: str
    """engine, gateway, controller, up, dockerd, or a side program."""
    at: float
    ran_s: float
    """How long the victim had run."""
    is_alone: bool = False
    """Whether nothing else was wrong meanwhile, so that the bounds of routing back are meant for it."""
    replicas: int = 1
    """Of the killed engine's model."""
    back_s: float | None = None
    """From the kill until an answer to a request that began after it: of the engine's model, of any where the gateway
    was killed, of the admin API where it was the controller. None: not measured, for something else was wrong, too."""
    start_s: float | None = None
    """What the start of the engine in its place took by itself: from its process to its health; of a gateway, from its
    process to its first answer. None: not measured."""


@dataclass
class Fault:
    kind: str
    began: float
    ended: float | None = None
    """When it was whole again; None: it never was."""
    kills: list[Kill] = field(default_factory=list)
    allowances: list[Allowance] = field(default_factory=list)
    engine_troubles: list[str] = field(default_factory=list)
    """Engines that are missing, doubled, orphaned or dead although there was time enough to mend it."""
    restarted: list[str] = field(default_factory=list)
    """Engines that were started again although the fault had not touched them."""

    def allow(self, models: Collection[str] | None, outcomes: Collection[str], since: float, until: float) -> None:
        """Excuse requests. See Allowance."""
        whose = None if models is None else frozenset(models)
        self.allowances.append(Allowance(whose, frozenset(outcomes), since, until))


@dataclass
class Record:
    faults: list[Fault] = field(default_factory=list)
    lost: list[Ended] = field(default_factory=list)
    """Requests that were not answered rightly."""
    answered: int = 0
    """Requests whose every byte was right."""
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Documents, stored responses and calls of a tool that were acknowledged."""
    refused: list[Refusal] = field(default_factory=list)
    """Those that were not, which is excused while a fault lasts."""
    forgotten: list[str] = field(default_factory=list)
    """What was acknowledged and was not there after a fault."""
    left: list[str] = field(default_factory=list)
    """What still was there after `down`."""
    broke: str | None = None
    """Why the campaign ended before its time; None: it did not."""
    loads: list[float] = field(default_factory=list)
    """Processes that wanted to run, per processor, on average over a minute, at the beginning of each fault."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Kinds of faults that could not be tried, and why."""
