"""What a chaos campaign saw, and what it comes to: figures that must be 0, and times beside their bounds. Times are
seconds of one monotonic clock. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from cli.up import supervisor
from controller.planning import backoff
from tests.campaigns.record import Outcome as CampaignOutcome
from tests.campaigns.record import Table
from tests.support.chaos.clients import Ended, Outcome, Refusal

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


ENGINE_BOUND_S = 1.0
"""Most seconds beyond the engine's own start until requests to its model are answered again."""
GATEWAY_BOUND_S = 3.0
"""Most seconds until requests are answered again."""
NEVER_EXCUSED = (Outcome.WRONG, Outcome.SILENT, Outcome.HANGING)
SHOWN = 20
"""Most of one kind that a failure shows."""


def unexcused(record: Record) -> list[Ended]:
    """Lost requests that no fault excuses: neither inside what was killed nor refused while it was away."""
    allowances = [allowance for fault in record.faults for allowance in fault.allowances]
    return [
        each
        for each in record.lost
        if each.outcome not in NEVER_EXCUSED and not any(allowance.excuses(each) for allowance in allowances)
    ]


def refused_while_whole(record: Record) -> list[Refusal]:
    """Requests of keepers that were refused while no fault lasted."""
    faults = [(fault.began, math.inf if fault.ended is None else fault.ended) for fault in record.faults]
    return [
        each
        for each in record.refused
        if not any(each.began <= ended and each.ended >= began for began, ended in faults)
    ]


def find_failures(record: Record, kills: int) -> list[str]:
    """What did not hold, one text each; empty: all did. `kills`: how many there should have been."""
    found = [_failure(f"{each.value} answers", _of_outcome(record, each)) for each in NEVER_EXCUSED]
    outside = [describe_lost(record, each) for each in unexcused(record)]
    found.append(_failure("requests lost outside what was killed", outside))
    found.append(_failure("acknowledged and not kept", record.forgotten))
    found.append(
        _failure("documents, stored responses or tools refused while all was well", refused_while_whole(record))
    )
    found += [f"bound of routing back: {row[0]}: {row[-1]}" for row in back_rows(record) if row[-1] not in ("", "yes")]
    for fault in record.faults:
        found.append(_failure(f"engines that are not as declared after: {fault.kind}", fault.engine_troubles))
        found.append(_failure(f"engines restarted that were not touched by: {fault.kind}", fault.restarted))
    found.append(_failure("left after `down`", record.left))
    done = sum(len(fault.kills) for fault in record.faults)
    found.append(f"{done} kills instead of {kills}" if done < kills else "")
    found.append(f"it broke off\n{record.broke}" if record.broke is not None else "")
    return [each for each in found if each]


def describe_lost(record: Record, lost: Ended) -> str:
    """One lost request beside the last fault that had begun when it ended."""
    kind = "streaming" if lost.stream else "blocking"
    text = f"{lost.model}, {kind}, {lost.outcome} {lost.detail}".rstrip()
    fault = next((each for each in reversed(record.faults) if each.began <= lost.ended), None)
    if fault is None:
        return f"{text}, before the first fault"
    times = [f"began at {lost.began - fault.began:+.3f} s", f"ended at {lost.ended - fault.began:+.3f} s"]
    times += [f"{kill.victim} killed at {kill.at - fault.began:+.3f} s" for kill in fault.kills]
    times += ["never whole again" if fault.ended is None else f"whole at {fault.ended - fault.began:+.3f} s"]
    return f"{text}; fault `{fault.kind}`: {', '.join(times)}"


def make_outcome(record: Record, kills: int) -> CampaignOutcome:
    """The tables of the campaign's page, and its failures."""
    tables = [
        Table("What must be 0", ("figure", "value"), must_be_zero(record)),
        Table("What there was", ("figure", "value"), counts(record)),
        Table("Routing back", BACK_COLUMNS, back_rows(record)),
        Table("Faults", FAULT_COLUMNS, fault_rows(record)),
        Table("Requests lost to what was killed, unloaded or stopped", LOST_COLUMNS, lost_rows(record)),
    ]
    if record.left_out:
        tables.append(Table("Left out", ("fault", "why"), sorted(record.left_out.items())))
    return CampaignOutcome(tables, find_failures(record, kills))


def must_be_zero(record: Record) -> list[tuple[str, int]]:
    return [
        ("requests lost outside what was killed", len(unexcused(record))),
        *((f"{each.value} answers", len(_of_outcome(record, each))) for each in NEVER_EXCUSED),
        ("acknowledged and not kept", len(record.forgotten)),
        ("documents, stored responses or tools refused while all was well", len(refused_while_whole(record))),
        ("engines missing, orphaned or doubled", sum(len(fault.engine_troubles) for fault in record.faults)),
        ("engines restarted that no fault had touched", sum(len(fault.restarted) for fault in record.faults)),
        ("left after `down`", len(record.left)),
    ]


def counts(record: Record) -> list[tuple[str, object]]:
    """Name and value: kills by victim, faults, requests, how busy the machine was."""
    kills = Counter(kill.victim for fault in record.faults for kill in fault.kills)
    return [
        ("kills", kills.total()),
        *((f"kills: {victim}", count) for victim, count in sorted(kills.items())),
        ("faults", len(record.faults)),
        ("requests", record.answered + len(record.lost)),
        ("answers, each compared byte by byte", record.answered),
        *((f"acknowledged beside: {kind}", count) for kind, count in sorted(record.acknowledged.items())),
        ("refused beside, while a fault lasted", len(record.refused) - len(refused_while_whole(record))),
        ("requests that were lost to what was killed, unloaded or stopped", len(record.lost) - len(unexcused(record))),
        ("processes that wanted to run, per processor", spread(record.loads, "")[0]),
    ]


@dataclass(frozen=True)
class _BackRow:
    """One row of the table of routing back: which kills, and the bound that is stated for them."""

    what: str
    is_meant: Callable[[Kill], bool]
    bound_s: float | None = None
    is_beyond_start: bool = False


def _is_stable(kill: Kill) -> bool:
    return kill.ran_s >= STABLE_S[kill.victim]


BACK_ROWS: Sequence[_BackRow] = (
    _BackRow(
        "engine, its model's only one",
        lambda kill: kill.victim == "engine" and kill.replicas == 1 and _is_stable(kill),
        ENGINE_BOUND_S,
        is_beyond_start=True,
    ),
    _BackRow(
        "the same, when it had run for less than a minute",
        lambda kill: kill.victim == "engine" and kill.replicas == 1 and not _is_stable(kill),
        is_beyond_start=True,
    ),
    _BackRow(
        "engine, another of its model stands by",
        lambda kill: kill.victim == "engine" and kill.replicas > 1,
        ENGINE_BOUND_S,
        is_beyond_start=True,
    ),
    _BackRow("gateway", lambda kill: kill.victim == "gateway" and _is_stable(kill), GATEWAY_BOUND_S),
    _BackRow(
        "the same, when it had run for less than 10 s",
        lambda kill: kill.victim == "gateway" and not _is_stable(kill),
    ),
    _BackRow("controller: until the admin API answers", lambda kill: kill.victim == "controller" and _is_stable(kill)),
    _BackRow(
        "the same, when it had run for less than 10 s",
        lambda kill: kill.victim == "controller" and not _is_stable(kill),
    ),
    _BackRow("dockerd", lambda kill: kill.victim == "dockerd"),
)
BACK_COLUMNS = (
    *("killed", "times", "start itself: median", "back: median", "p95", "max"),
    *("beyond its start: median", "p95", "max", "bound", "held"),
)


def back_rows(record: Record) -> list[tuple[object, ...]]:
    """Seconds until routing was back, of kills while nothing else was wrong."""
    kills = [kill for fault in record.faults for kill in fault.kills if kill.is_alone and kill.back_s is not None]
    return [_back_row(row, chosen) for row in BACK_ROWS if (chosen := [kill for kill in kills if row.is_meant(kill)])]


def _back_row(row: _BackRow, kills: Sequence[Kill]) -> tuple[object, ...]:
    backs = [kill.back_s for kill in kills if kill.back_s is not None]
    starts = [kill.start_s for kill in kills if kill.start_s is not None]
    beyond = [
        max(0.0, kill.back_s - kill.start_s)
        for kill in kills
        if row.is_beyond_start and kill.back_s is not None and kill.start_s is not None
    ]
    judged = beyond if row.is_beyond_start else backs
    bound, held = "", ""
    if row.bound_s is not None:
        broken = sum(each > row.bound_s for each in judged)
        bound = f"its start + {row.bound_s:g} s" if row.is_beyond_start else f"{row.bound_s:g} s"
        held = "yes" if not broken else f"no: {broken} of {len(judged)} took longer"
    return (row.what, len(kills), *spread(starts)[:1], *spread(backs), *spread(beyond), bound, held)


FAULT_COLUMNS = ("fault", "times", "kills", "until whole: median", "p95", "max")


def fault_rows(record: Record) -> list[tuple[object, ...]]:
    """By kind: how often, and the seconds from its beginning until everything declared ran and served again."""
    kinds: dict[str, list[Fault]] = {}
    for fault in record.faults:
        kinds.setdefault(fault.kind, []).append(fault)
    return [
        (
            kind,
            len(faults),
            sum(len(fault.kills) for fault in faults),
            *spread([fault.ended - fault.began for fault in faults if fault.ended is not None]),
        )
        for kind, faults in sorted(kinds.items())
    ]


LOST_COLUMNS = ("fault", "how the requests ended", "requests")


def lost_rows(record: Record) -> list[tuple[object, ...]]:
    """Excused requests by the kind of the first fault that excuses them, and by how they ended."""
    found: Counter[tuple[str, str]] = Counter()
    for lost in record.lost:
        excused_by = next((fault for fault in record.faults if _any_excuses(fault.allowances, lost)), None)
        if excused_by is not None:
            found[excused_by.kind, lost.outcome] += 1
    return [(kind, outcome, count) for (kind, outcome), count in sorted(found.items())]


def spread(values: Sequence[float], unit: str = " s") -> tuple[str, str, str]:
    """Median, 95th percentile and maximum; empty texts where there is no value."""
    if not values:
        return ("", "", "")
    ranked = sorted(values)
    median, high, most = (f"{ranked[math.ceil(share * len(ranked)) - 1]:.2f}{unit}" for share in (0.5, 0.95, 1.0))
    return median, high, most


def _any_excuses(allowances: Iterable[Allowance], lost: Ended) -> bool:
    return any(allowance.excuses(lost) for allowance in allowances)


def _of_outcome(record: Record, outcome: Outcome) -> list[Ended]:
    return [each for each in record.lost if each.outcome == outcome]


def _failure(what: str, found: Sequence[object]) -> str:
    """Title and the first of what was found; empty where nothing was."""
    shown = [str(each) for each in found[:SHOWN]]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([f"{what}: {len(found)}", *shown, *more]) if found else ""
