"""What two rounds in a row are told as."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from contract.status import ModelState, ModelStatus, Problem, StatementView
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.hosts import Gpu, Host, HostState, UnreadGpu
from controller.model_status import Round
from controller.planning.actions import Action, Drain, Plan, Preflight, PullImage, Remove, Start, Stop
from controller.planning.backoff import with_log_tail
from controller.redaction import Redactor
from controller.round_events import NewEntry, Trouble, round_events, trouble_events
from controller.state import (
    AppliedFigures,
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    PullKey,
    ReplicaId,
    Statement,
)

NOW = 1_000.0
SECRET = "s3cret-s3cret"
DEFINITION = StubDefinition(backend="stub", env={"API_KEY": SECRET})
KNOWN = Redactor(str)
KNOWN.learn_secrets({"m": DEFINITION.model_dump()})
MODEL = DesiredModel("m", DEFINITION, "stub", "hash", 1, Statement("file", 0.0, "enabled"), drain_timeout_s=60.0)
UNLOADED = replace(MODEL, replicas=0, statement=Statement("unload", 900.0, "unloaded by me"), drain_ends=False)
ID = ReplicaId("m", 0, "hash", 2)
REPLICA = ObservedReplica(ID, "rh-m-0", Phase.RUNNING, 1.0, 1.0, Health.READY, 2.0, "http://x")


@dataclass
class Story:
    """One round, spelled out."""

    state: ModelState | None = ModelState.LOADED
    error: str | None = None
    model: DesiredModel = MODEL
    actions: tuple[Action, ...] = ()
    observed: ObservedState = field(default_factory=lambda: ObservedState(NOW))
    paused: bool = False

    def round(self) -> Round:
        statement = StatementView(kind="file", since=0.0, reason="enabled")
        status = ModelStatus(
            name="m", backend="stub", state=self.state or ModelState.UNLOADED, wanted_replicas=1, loaded_replicas=1,
            statement=statement, last_error=self.error,
        )  # fmt: skip
        statuses = (status,) if self.state is not None else ()
        return Round(DesiredState(1, {"m": self.model}, self.paused), self.observed, Plan(1, self.actions), statuses)


def told(before: Story | None, after: Story, leaving: dict[str, dict[str, float]] | None = None) -> list[NewEntry]:
    done: Round = after.round()
    return round_events(before.round() if before is not None else None, done, leaving or {}, KNOWN.redact_text)


def failed(count: int = 1, at: float = NOW, error: str = "bad luck", attempt: int = 2) -> ObservedState:
    failure = Failure(count, at, with_log_tail(error, f"line 1\n\nkey is {SECRET}\n"), at + 5, attempt)
    return ObservedState(at, failures={ID.key: failure})


def test_rounds_that_are_alike_tell_nothing() -> None:
    same = Story(observed=replace(failed(), replicas=(REPLICA,)))
    assert told(same, same) == []
    assert told(None, Story()) == []


def test_a_change_of_state_says_from_where_to_where_and_why() -> None:
    error = f"no such file {SECRET}. Last log lines:\nmore"
    [entry] = told(Story(ModelState.LOADING), Story(ModelState.FAILED, error))
    assert (entry.kind, entry.model, entry.actor) == ("state", "m", "controller")
    assert entry.message == "loading -> failed: no such file ***"
    assert entry.details == {"from": "loading", "to": "failed", "last_error": "no such file ***"}
    [entry] = told(Story(ModelState.LOADING), Story(ModelState.LOADED))
    assert entry.message == "loading -> loaded"


def test_what_an_engine_applied_otherwise_is_told_once_for_each_engine() -> None:
    model = replace(
        MODEL, definition=LlamaServerDefinition(model_path="m", llama_server_n_ctx=8192), backend="llama_server"
    )
    told_replica = replace(REPLICA, figures=AppliedFigures(context_length=4096))
    before = Story(model=model, observed=ObservedState(NOW, (REPLICA,)))
    after = Story(model=model, observed=ObservedState(NOW, (told_replica,)))
    [entry] = told(before, after)
    assert (entry.kind, entry.model, entry.actor) == ("drift", "m", "engine")
    assert entry.message == "llama_server_n_ctx is declared as 8192, and rh-m-0 reports 4096"
    details = {"replica": "rh-m-0", "field": "llama_server_n_ctx", "declared": 8192, "applied": 4096}
    assert entry.details == details
    assert told(after, after) == []
    assert told(after, before) == [], "its end is no event: the engine that applied it has ended"
    again = replace(told_replica, id=replace(ID, attempt=3), name="rh-m-1")
    [entry] = told(after, Story(model=model, observed=ObservedState(NOW, (again,))))
    assert entry.details["replica"] == "rh-m-1"
    [entry] = told(None, after)
    assert entry.kind == "drift"


def test_models_that_come_and_go_are_told() -> None:
    [came] = told(Story(None), Story(ModelState.LOADING))
    assert (came.message, came.details["from"], came.details["to"]) == ("is loading", None, "loading")
    [gone] = told(Story(ModelState.UNLOADING), Story(None))
    assert (gone.message, gone.details["to"]) == ("is gone", None)


def test_actions_are_told_with_their_reason_but_looks_are_not() -> None:
    actions = (
        Preflight("m", "hash", "before a start"),
        Start(ID, f"because of {SECRET}"),
        Drain(ID, "rh-m-0", "edited", 5.0),
        Stop(ID, "rh-m-0", "drained"),
        PullImage("m", "image:1", "not here"),
    )
    entries = told(None, Story(actions=actions))
    assert [(entry.message, dict(entry.details)) for entry in entries] == [
        ("start m/0: because of ***", {"action": "start", "replica": "m/0", "attempt": 2}),
        ("drain rh-m-0: edited", {"action": "drain", "replica": "rh-m-0", "deadline": 5.0}),
        ("stop rh-m-0: drained", {"action": "stop", "replica": "rh-m-0"}),
        ("pull image:1: not here", {"action": "pull", "image": "image:1"}),
    ]
    assert {(entry.kind, entry.model) for entry in entries} == {("action", "m")}
    assert told(None, Story(actions=actions, paused=True)) == []


def test_an_action_that_is_issued_again_is_told_once() -> None:
    stop = Story(actions=(Stop(ID, "rh-m-0", "drained"),))
    assert len(told(Story(), stop)) == 1
    assert told(stop, stop) == []
    assert len(told(stop, Story(actions=(Stop(ID, "rh-m-0", "its drain deadline has passed"),)))) == 1
    assert len(told(stop, Story(actions=(Stop(replace(ID, index=1), "rh-m-1", "drained"),)))) == 1
    again = Story(actions=(Start(ID, "wanted"),))
    assert told(again, again) == []
    assert len(told(again, Story(actions=(Start(replace(ID, attempt=3), "wanted"),)))) == 1
    # A deadline that moves makes it no other drain.
    drain = Story(actions=(Drain(ID, "rh-m-0", "edited", 5.0),))
    assert told(drain, Story(actions=(Drain(ID, "rh-m-0", "edited", 7.0),))) == []
    # What a paused controller would do was not told, for it was not done.
    assert len(told(replace(stop, paused=True), stop)) == 1


def test_an_end_that_the_runtime_refuses_is_told_once_whatever_rounds_there_are_between() -> None:
    stop = Story(actions=(Stop(ID, "rh-m-0", "drained"),))
    pending = {"rh-m-0": PendingOp(OpKind.STOP, ID)}
    under_way = Story(observed=ObservedState(NOW, pending=pending))
    assert told(stop, under_way) == []
    assert told(under_way, stop) == []
    assert len(told(under_way, Story(actions=(Remove(ID, "rh-m-0", "ended"),)))) == 1


def test_a_failure_is_told_once_and_again_when_it_repeats() -> None:
    for before in (None, Story()):
        [entry] = told(before, Story(observed=failed()))
        assert (entry.kind, entry.actor, entry.message) == ("failure", "engine", "bad luck: key is ***")
        assert entry.details == {
            "replica": "m/0", "attempt": 2, "failures": 1, "retry_at": NOW + 5, "was_ready": False,
            "log": ["line 1", "key is ***"],
        }  # fmt: skip
    assert told(Story(observed=failed()), Story(observed=failed())) == []
    [again] = told(Story(observed=failed()), Story(observed=failed(2, NOW + 9)))
    assert again.details["failures"] == 2
    # Its log came later: the same failure.
    assert told(Story(observed=failed(error="bad")), Story(observed=failed(error="bad, since"))) == []


def test_a_failure_says_whether_the_engine_had_served() -> None:
    assert told(Story(), Story(observed=replace(failed(), replicas=(REPLICA,))))[0].details["was_ready"] is True
    before = ObservedState(NOW, (REPLICA,))
    assert told(Story(observed=before), Story(observed=failed()))[0].details["was_ready"] is True
    loading = replace(failed(), replicas=(replace(REPLICA, ready_since=None),))
    assert told(Story(), Story(observed=loading))[0].details["was_ready"] is False
    another = replace(failed(), replicas=(replace(REPLICA, id=replace(ID, attempt=1)),))
    assert told(Story(), Story(observed=another))[0].details["was_ready"] is False


def test_what_cannot_be_started_is_told_once_though_it_is_looked_at_again() -> None:
    def checked(error: str | None, at: float = NOW, missing: str | None = None) -> Story:
        result = PreflightResult(error is None, at, error, missing)
        return Story(observed=ObservedState(at, preflights={PreflightKey("m", "hash"): result}))

    wrong = checked(f"model_path: no such file {SECRET}")
    [entry] = told(Story(), wrong)
    assert (entry.kind, entry.actor) == ("failure", "controller")
    assert entry.message == "cannot be started: model_path: no such file ***"
    assert told(wrong, checked(f"model_path: no such file {SECRET}", NOW + 30)) == []
    assert told(wrong, checked(None)) == []
    assert len(told(checked(None), wrong)) == 1
    assert told(Story(), checked("image x is missing", missing="x")) == []


def test_a_pull_that_fails_is_told_for_the_models_that_wait_for_it() -> None:
    waiting = replace(MODEL, image="x:1")
    observed = ObservedState(
        NOW, pulls={PullKey("x:1"): Failure(1, NOW, "no such image", NOW + 1), PullKey("y:1"): None}
    )
    under_way = Story(model=waiting, observed=ObservedState(NOW, pulls={PullKey("x:1"): None}))
    after = Story(model=waiting, observed=observed)
    [entry] = told(under_way, after)
    assert (entry.model, entry.message, entry.details["image"]) == ("m", "no such image", "x:1")
    assert told(after, after) == []


def test_an_unload_past_its_deadline_is_told_once_with_who_holds_it() -> None:
    leaving = {"rh-m-0": {"req-b": 910.0, "req-a": 905.0}, "other": {"req-c": 1.0}}

    def at(now: float, model: DesiredModel = UNLOADED) -> Story:
        drained = replace(REPLICA, draining=Draining(900.0, None))
        return Story(ModelState.UNLOADING, model=model, observed=ObservedState(now, (drained,)))

    assert told(at(950.0), at(959.0), leaving) == []
    [entry] = told(at(959.0), at(960.0), leaving)
    assert (entry.kind, entry.model) == ("overdue", "m")
    assert "60 s, for 2 running" in entry.message
    assert entry.details["held_by"] == [
        {"request_id": "req-a", "replica": "rh-m-0", "since": 905.0},
        {"request_id": "req-b", "replica": "rh-m-0", "since": 910.0},
    ]
    assert told(at(960.0), at(990.0), leaving) == []
    # An edit's drain ends at its deadline by itself.
    assert told(at(959.0, MODEL), at(960.0, MODEL), leaving) == []
    [unknown] = told(at(959.0), at(960.0))
    assert "no gateway names" in unknown.message


def test_broken_files_and_lost_engines_are_told_when_it_begins_and_when_it_ends() -> None:
    well = Trouble()
    first = Problem(file="a.yaml", line=3, field="models.m", message="base_url is `https://h?x`")
    broken = Trouble((first, Problem(file="b.yaml", message="cannot be read")))
    [entry] = trouble_events(well, broken)
    assert (entry.kind, entry.actor) == ("problem", "files")
    assert "a.yaml:3: models.m: base_url is `https://h?x` (and 1 more)" in entry.message
    assert trouble_events(broken, broken) == []
    assert len(trouble_events(broken, Trouble((first,)))) == 1
    assert [each.message for each in trouble_events(broken, well)] == ["the files are good again"]

    blind = Trouble(error="the daemon is down")
    assert "nothing is changed: the daemon is down" in trouble_events(well, blind)[0].message
    assert trouble_events(blind, Trouble(error="connection reset")) == []
    assert [each.message for each in trouble_events(blind, well)] == ["engines are observed again"]

    full = Trouble(unsaved=("whether it is paused", "the newest events"))
    words = "the state folder cannot be written; a restart would not know: whether it is paused, the newest events"
    assert [each.message for each in trouble_events(well, full)] == [words]
    assert trouble_events(full, Trouble(unsaved=("the newest events",))) == []
    assert [each.message for each in trouble_events(full, well)] == ["the state folder is written again"]


def test_a_gpu_that_cannot_be_read_is_told_once_with_its_reason_and_when_it_is_back() -> None:
    first, second = Gpu("GPU-a", 0, "fake", 1_000), Gpu("GPU-b", 1, "fake", 1_000)
    lost = UnreadGpu(1, "it has fallen off the bus", "GPU-b", "0000:0a:00.0")
    well = Story(observed=ObservedState(NOW, hosts=(Host(gpus=(first, second)),)))
    in_part = Story(observed=ObservedState(NOW, hosts=(Host(gpus=(first,), unread_gpus=(lost,)),)))
    unknown = Story(
        observed=ObservedState(NOW, hosts=(Host(gpus=None, unread_gpus=(replace(lost, reason="Unknown Error"),)),))
    )
    [entry] = told(well, in_part)
    assert (entry.kind, entry.actor, entry.model) == ("problem", "controller", None)
    assert entry.message == "GPU 1 (GPU-b, PCI 0000:0a:00.0) is left out: it has fallen off the bus"
    assert entry.details == {"gpu": "1", "uuid": "GPU-b", "error": "it has fallen off the bus"}
    assert told(None, in_part) == [entry], "a controller that starts tells it, too"
    assert told(in_part, in_part) == []
    assert told(in_part, unknown) == [], "it is left out for another reason now"
    assert told(unknown, Story(observed=ObservedState(NOW, hosts=(Host(gpus=None),)))) == [], "nobody knows"
    [back] = told(in_part, well)
    assert (back.message, back.details) == ("GPU 1 is read again", {"gpu": "1", "uuid": "GPU-b", "error": None})


def hosts(*seen: tuple[str, HostState], reason: str | None = None, is_cut_off: bool = False) -> Story:
    made = tuple(Host(name, state, reason=reason) for name, state in seen)
    return Story(observed=ObservedState(NOW, hosts=made, is_cut_off=is_cut_off))


def test_each_change_of_a_host_is_told_once() -> None:
    ready, silent, lost = (hosts(("b", each)) for each in (HostState.READY, HostState.SILENT, HostState.LOST))
    draining = hosts(("b", HostState.DRAINING))
    for before, after, words in (
        (hosts(), ready, "has joined"),
        (hosts(), draining, "has joined, and is drained"),
        (ready, silent, "is silent, and what runs there is unknown"),
        (silent, lost, "is lost, and others take over what ran there"),
        (lost, ready, "is back"),
        (silent, draining, "is back, and is drained"),
        (ready, draining, "is drained"),
        (draining, ready, "is not drained any more"),
        (ready, hosts(("b", HostState.REFUSED), reason="it runs docker"), "is refused: it runs docker"),
        (lost, hosts(), "has left"),
    ):
        [entry] = told(before, after)
        assert (entry.kind, entry.model, entry.message) == ("host", None, f"host b {words}")
        assert entry.details["host"] == "b"
        assert told(after, after) == []
    assert told(None, ready) == [], "the first round compares with nothing"


def test_the_host_without_a_name_is_no_event_and_being_cut_off_is_one() -> None:
    assert told(hosts(("", HostState.READY)), hosts(("", HostState.DRAINING))) == []
    away = (("a", HostState.SILENT), ("b", HostState.SILENT), ("c", HostState.READY))
    [entry] = told(hosts(*away), hosts(*away, is_cut_off=True))
    assert entry.message == "the controller is cut off: 2 of 3 hosts do not answer, nothing is moved"
    [entry] = told(hosts(*away, is_cut_off=True), hosts(*away))
    assert (entry.message, entry.details) == ("the controller is not cut off any more", {"is_cut_off": False})
