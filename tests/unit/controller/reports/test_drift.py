"""What runs differently from what is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from contract.admin import MASKED, DriftItem
from contract.desired import Definition
from controller.engines import ENGINES, spec_hash
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.openai_remote import OpenAIRemoteDefinition
from controller.engines.stub import StubDefinition
from controller.model_status import Round
from controller.planning.actions import Blocked, Plan
from controller.redaction import Redact, Redactor, redact_nothing
from controller.reports.drift import find_drift
from controller.reports.drift_detector import DriftDetector
from controller.runtimes.base import Rendered, SeenReplica
from controller.state import (
    AppliedFigures,
    DesiredModel,
    DesiredState,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    Statement,
)
from tests.fakes.fake_runtime import FakeRuntime

NOW = 1_000.0
FILE_SINCE = {"m": 100.0}
ARGV = ("python", "-m", "worker", "stub", "--port", "1", "--text=hello")


def model(**fields: Any) -> DesiredModel:
    values: dict[str, Any] = {"statement": Statement("file", 100.0, "enabled in the files"), "replicas": 1}
    definition = fields.pop("definition", StubDefinition(backend="stub"))
    return DesiredModel("m", definition, fields.pop("backend", "stub"), "new", **(values | fields))


def replica(index: int = 0, spec: str = "new", **fields: Any) -> ObservedReplica:
    values: dict[str, Any] = {"health": Health.READY, "ready_since": NOW - 1, "argv": ARGV, "image_id": "sha256:a"}
    name = fields.pop("name", f"rh-{spec}-{index}")
    of = fields.pop("model", "m")
    phase = fields.pop("phase", Phase.RUNNING)
    return ObservedReplica(ReplicaId(of, index, spec), name, phase, NOW - 3, **(values | fields))


def items(
    want: DesiredModel | None,
    *replicas: ObservedReplica,
    rendered: Mapping[str, Rendered] | None = None,
    blocked: tuple[Blocked, ...] = (),
    redact: Redact = redact_nothing,
    **fields: Any,
) -> list[DriftItem]:
    desired = DesiredState(1, {want.name: want} if want else {})
    observed = ObservedState(NOW, replicas, **fields)
    return find_drift(desired, observed, rendered or {}, file_since=FILE_SINCE, blocked=blocked, redact=redact, now=NOW)


def kinds(found: list[DriftItem]) -> list[tuple[str, str | None, float]]:
    return [(item.kind, item.replica, item.since) for item in found]


def test_what_runs_as_declared_has_not_drifted() -> None:
    assert items(model(), replica(), rendered={"rh-new-0": Rendered(ARGV, "sha256:a")}) == []
    assert items(model(), replica()) == [], "not known is not different"
    assert items(model(replicas=0)) == []


def test_an_earlier_share_of_the_same_vram_is_no_drift_and_replaces_no_engine() -> None:
    """An upgrade computes the share of a GPU anew, and leaves what runs alone."""
    fields = {"backend": "vllm", "model_path": "m", "gpus": 1}
    declared = ENGINES["vllm"].definition.model_validate({**fields, "vram_mib": 20_000})
    # The share is in no hash: an earlier version made this of the same definition.
    assert spec_hash(declared, "image", "m") == "4d9cfada81730dc6"
    want = model(definition=declared, backend="vllm")
    share = ("--gpu-memory-utilization", "0.2333")
    words = ("python", "-m", "worker", "vllm", "--", "m", *share, "--seed", "1")
    runs = replica(argv=(*words[:7], "0.2452", *words[8:]))
    assert items(want, runs, rendered={"rh-new-0": Rendered(words, "sha256:a")}) == []
    [item] = items(want, runs, rendered={"rh-new-0": Rendered((*words[:-1], "2"), "sha256:a")})
    assert (item.kind, item.running, item.declared) == ("arguments", ["--seed", "1"], ["--seed", "2"])
    said = ENGINES["vllm"].definition.model_validate({**fields, "vllm_gpu_memory_utilization": 0.2333})
    want = model(definition=said, backend="vllm")
    assert items(want, runs, rendered={"rh-new-0": Rendered(words, "sha256:a")}) == [], "one that is declared neither"


def test_a_replica_of_an_older_definition_differs_since_the_edit() -> None:
    other = {"rh-old-0": Rendered(("other",), "sha256:b")}
    assert kinds(items(model(), replica(spec="old"), rendered=other)) == [("definition", "rh-old-0", 100.0)]
    loaded = model(statement=Statement("load", 500.0, "loaded by me"))
    assert kinds(items(loaded, replica(spec="old"))) == [("definition", "rh-old-0", 500.0)]


def test_what_a_load_sets_differs_where_it_is_another_value() -> None:
    files = StubDefinition(backend="stub", stub_text="a", stub_load_s=1.0)
    statement = Statement("load", 500.0, "loaded by me")
    params = {"stub_text": None, "stub_load_s": 1.0}
    definition = files.model_copy(update={"stub_text": None})
    loaded = model(definition=definition, in_files=files, params=params, statement=statement)
    (item,) = items(loaded, replica())
    assert (item.kind, item.field, item.declared, item.running, item.since) == ("override", "stub_text", "a", None, 500)
    unloaded = replace(loaded, replicas=0, statement=Statement("unload", 600.0, "unloaded by me"))
    assert items(unloaded)[0].kind == "statement"


@pytest.mark.parametrize(
    ("kind", "enabled", "replicas", "expected"),
    [
        ("load", False, 1, [(0, 1)]),
        ("load", True, 1, []),
        ("load", True, 2, [(1, 2)]),
        ("unload", True, 0, [(1, 0)]),
        ("unload", False, 0, []),
        ("autoload", False, 1, []),
        ("file", True, 1, []),
    ],
)
def test_a_statement_differs_where_it_wants_another_count(
    kind: Any, enabled: bool, replicas: int, expected: list[tuple[int, int]]
) -> None:
    definition, statement = StubDefinition(backend="stub", enabled=enabled), Statement(kind, 500.0, "said by me")
    want = model(definition=definition, replicas=replicas, statement=statement)
    found = items(want, *(replica(index) for index in range(replicas)))
    assert [(item.declared, item.running) for item in found] == expected
    assert all(item.kind == "statement" and item.since == 500.0 for item in found)


def test_what_is_wanted_and_not_ready_is_missing_with_its_reason() -> None:
    reasons = (Blocked("m", 2, "no GPU is free"), Blocked("m", 2, "second"))
    found = items(model(replicas=3), replica(0), replica(1, health=Health.STARTING), blocked=reasons)
    assert [(each.replica, each.running) for each in found] == [("m/1", "starting"), ("m/2", None)]
    assert {each.kind for each in found} == {"missing"}
    assert "it is starting" in found[0].message
    assert found[1].message == "replica 2 does not serve: no GPU is free"
    assert kinds(items(model(), replica(phase=Phase.EXITED))) == [("missing", "m/0", NOW)]


def test_what_an_engine_applied_otherwise_differs_with_both_values() -> None:
    definition = LlamaServerDefinition(model_path="m.gguf", llama_server_n_ctx=8192)
    want = model(definition=definition, backend="llama_server", replicas=2)
    figures = (AppliedFigures(context_length=4096, slots=4), AppliedFigures(context_length=8192, slots=2))
    found = items(want, *(replica(index, figures=each) for index, each in enumerate(figures)))
    assert [(each.kind, each.replica, each.field, each.declared, each.running, each.since) for each in found] == [
        ("applied", "rh-new-0", "llama_server_n_ctx", 8192, 4096, NOW),
        ("applied", "rh-new-1", "target_inflight", 4, 2, NOW),
    ]
    assert found[0].message == "llama_server_n_ctx is declared as 8192, and rh-new-0 reports 4096"
    assert items(want, replica(0), replica(1)) == [], "not known is not different"


def test_a_remote_that_fails_is_missing() -> None:
    definition = OpenAIRemoteDefinition.model_validate({"backend": "openai_remote", "base_url": "http://127.0.0.1:1"})
    want = model(definition=definition, backend="openai_remote", runs=False)
    assert items(want, remotes={"m": None}) == []
    (item,) = items(want, remotes={"m": "HTTP 500"})
    assert (item.kind, item.running) == ("missing", "failing")


def test_what_nobody_wants_is_undeclared() -> None:
    assert kinds(items(None, replica())) == [("undeclared", "rh-new-0", NOW)]
    assert kinds(items(model(), replica(), replica(1))) == [("undeclared", "rh-new-1", NOW)]
    assert kinds(items(model(), replica(), replica(name="twin"))) == [("undeclared", "twin", NOW)]
    assert kinds(items(model(replicas=0), replica())) == [("undeclared", "rh-new-0", NOW)]
    assert items(None, replica(phase=Phase.EXITED)) == []


def test_a_reference_that_names_another_image_now_differs() -> None:
    (item,) = items(model(image="engine:latest"), replica(), rendered={"rh-new-0": Rendered(ARGV, "sha256:b")})
    assert (item.kind, item.declared, item.running) == ("image", "sha256:b", "sha256:a")
    assert "engine:latest" in item.message
    assert items(model(), replica(), rendered={"rh-new-0": Rendered(ARGV, None)}) == []


def test_arguments_show_the_words_that_differ_with_their_flags() -> None:
    now = ("python", "-m", "worker", "stub", "--port", "2", "--text=hello", "--new")
    (item,) = items(model(), replica(), rendered={"rh-new-0": Rendered(now)})
    assert (item.kind, item.declared, item.running) == ("arguments", ["--port", "2", "--new"], ["--port", "1"])


def test_neither_arguments_nor_a_reason_show_a_secret() -> None:
    fields: dict[str, Any] = {"extra_args": ["--api-key", "sk-very-secret-1"], "env": {"PASSWORD": "hunter22"}}
    definition = StubDefinition(backend="stub", **fields)
    running = replica(argv=("stub", "--api-key", "sk-older-secret-2", "--x=hunter22", "earlier1", "tok-rh-new-0"))
    rendered = {"rh-new-0": Rendered(("stub", "--api-key", "sk-very-secret-1", "hunter22"))}
    known = Redactor(lambda name: f"tok-{name}")
    known.learn_secrets({"m": {"env": {"PASSWORD": "earlier1"}}})
    known.learn_secrets({"m": definition.model_dump()})
    (item,) = items(model(definition=definition), running, rendered=rendered, redact=known.redact_text)
    assert item.declared == ["--api-key", MASKED, MASKED]
    assert item.running == ["--api-key", MASKED, f"--x={MASKED}", MASKED, MASKED]
    (item,) = items(model(), blocked=(Blocked("m", 0, "it ended: bad hunter22"),), redact=known.redact_text)
    assert item.message == f"replica 0 does not serve: it ended: bad {MASKED}"


# The watch.


class Watch:
    """A watch, its clock and its runtime."""

    def __init__(self) -> None:
        self.now = NOW
        self.runtime = FakeRuntime(lambda: self.now)
        self.watch = DriftDetector(
            self.runtime, file_since=lambda: FILE_SINCE, clock=lambda: self.now, redact=redact_nothing
        )

    async def check(self, want: DesiredModel, *replicas: ObservedReplica) -> list[tuple[str, str | None, float]]:
        seen = Round(DesiredState(1, {"m": want}), ObservedState(self.now, replicas), Plan(1), ())
        found = await self.watch.check_drift(seen)
        assert found.checked_at == self.now
        return kinds(found.items)


async def test_a_difference_lasts_since_it_was_first_seen() -> None:
    it = Watch()
    it.runtime.rendered_argv["rh-new-0"] = Rendered(("other",), "sha256:a")
    assert await it.check(model(replicas=2), replica()) == [("missing", "m/1", NOW), ("arguments", "rh-new-0", NOW)]
    it.now += 30
    assert await it.check(model(replicas=2), replica(), replica(1)) == [("arguments", "rh-new-0", NOW)]
    it.now += 30
    again = await it.check(model(replicas=2), replica())
    assert again == [("missing", "m/1", NOW + 60), ("arguments", "rh-new-0", NOW)], "what had gone is new"
    assert await it.check(model(), replica(spec="old")) == [("definition", "rh-old-0", 100.0)]


async def test_a_command_line_follows_the_claims_of_its_start_whatever_was_raised_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it, claims = Watch(), list[dict[str, int]]()

    async def render(replica: SeenReplica, definition: Definition, image: str | None) -> None:
        claims.append(dict(replica.claims))

    monkeypatch.setattr(it.runtime, "render_replica", render)
    await it.check(model(gpu_count=1), replica(claims={"GPU-a": 7_000}, start_claims={"GPU-a": 4_000}))
    assert claims == [{"GPU-a": 4_000}]


async def test_a_runtime_that_does_not_answer_changes_nothing_that_was_known() -> None:
    it = Watch()
    it.runtime.rendered_argv["rh-new-0"] = Rendered(("other",), "sha256:b")
    before = await it.check(model(), replica())
    assert [kind for kind, _, _ in before] == ["image", "arguments"]
    it.runtime.unavailable = "it hangs"
    it.now += 30
    assert await it.check(model(), replica()) == before
