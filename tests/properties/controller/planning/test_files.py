"""Copies of model files to hosts that lack them, under generated sequences of edits, copies that end, fail and are
lost: nothing is checked, started or drained before the files are there, and one host's copy keeps no other waiting.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from controller.engines.base import Verdict
from controller.engines.stub import StubDefinition
from controller.hosts import Host, HostState
from controller.planning.actions import Action, Drain, FetchFiles, Preflight, Start, Stop, Undrain
from controller.planning.backoff import next_failure
from controller.planning.hosts import HEAD, MOST_SOURCES, find_file_sources
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    FetchKey,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightKey,
    PreflightResult,
    Statement,
)
from tests.support.campaign import campaign_seeds

MODELS = ("k", "l", "m")


@pytest.mark.parametrize("seed", campaign_seeds(60, 600))
def test_who_is_asked_has_the_files_or_may_have_a_part(seed: int) -> None:
    chance = random.Random(seed)
    states = [HostState.READY] * 4 + list(HostState)
    hosts = tuple(
        Host(
            f"h{number}",
            chance.choice(states),
            files_url=chance.choice([None, "http://x", "http://x"]),
            missing_models=frozenset(chance.sample(MODELS, chance.randint(0, 3))),
        )
        for number in range(chance.choice([1, 2, 3, 5, 30]))
    )
    observed = ObservedState(0.0, hosts=hosts, head_models=frozenset(chance.sample(MODELS, chance.randint(0, 3))))
    for host in hosts:
        for model in MODELS:
            sources = find_file_sources(model, host, observed)
            named = {each.name: each for each in hosts}
            others = [each for each in hosts if each is not host and each.answers and each.files_url is not None]
            having = {each.name for each in others if model not in each.missing_models}
            is_needed = model in host.missing_models and host.files_url is not None
            assert bool(sources) == (is_needed and bool(having or model in observed.head_models))
            assert len(set(sources)) == len(sources) <= MOST_SOURCES
            assert all(name == HEAD or named[name] in others for name in sources)
            if sources:
                assert sources[0] == (HEAD if model in observed.head_models else min(having))
                assert HEAD not in sources[1:]
                asked = [name in having for name in sources if name != HEAD]
                assert asked == sorted(asked, reverse=True), "those that have all come first"


@dataclass
class Site:
    chance: random.Random
    now: float = 1_000.0
    models: dict[str, DesiredModel] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    files: dict[str, set[str]] = field(default_factory=dict)
    """Host to the definitions (model and spec hash) whose files it has."""
    full: str = ""
    """Host whose disk is full."""
    stuck: str = ""
    """Host whose copies never end."""
    replicas: dict[str, ObservedReplica] = field(default_factory=dict)
    fetches: dict[FetchKey, Failure | None] = field(default_factory=dict)
    failed: dict[FetchKey, Failure] = field(default_factory=dict)
    preflights: dict[PreflightKey, PreflightResult] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.hosts = tuple("abcd"[: self.chance.randint(2, 4)])
        self.files = {name: set() for name in self.hosts}
        self.full, self.stuck = self.chance.sample(["a", "b", ""], 2)
        for name in MODELS:
            self.edit(name)

    def edit(self, name: str) -> None:
        spec_hash = f"{name}{self.chance.randrange(10**6)}"
        self.models[name] = DesiredModel(
            name, StubDefinition(backend="stub"), "stub", spec_hash, 1, Statement("file", 0.0, "enabled"),
            memory_mib=300, drain_timeout_s=5.0,
        )  # fmt: skip

    def key(self, model: str) -> str:
        return self.models[model].spec_hash

    def lacks(self, host: str, model: str) -> bool:
        return self.key(model) not in self.files[host]

    def step(self) -> None:
        self.now += 1.0
        hosts = tuple(
            Host(
                name,
                memory_mib=1_000,
                files_url=f"http://{name}",
                missing_models=frozenset(model for model in MODELS if self.lacks(name, model)),
            )
            for name in self.hosts
        )
        observed = ObservedState(
            self.now, tuple(self.replicas.values()), hosts=hosts, head_models=frozenset(MODELS),
            fetches=dict(self.fetches), preflights=dict(self.preflights), loaded_once=frozenset(MODELS),
        )  # fmt: skip
        made = plan(DesiredState(1, dict(self.models)), observed, self.now)
        for action in made.actions:
            self._apply(action)
        for key, failure in list(self.fetches.items()):
            if failure is None and key.host != self.stuck and self.chance.random() < 0.5:
                self._end_fetch(key)
        for name, each in self.replicas.items():
            draining = each.draining and replace(each.draining, idle=True)
            self.replicas[name] = replace(each, health=Health.READY, ready_since=self.now - 1, draining=draining)

    def _end_fetch(self, key: FetchKey) -> None:
        if key.host == self.full:
            before = self.failed.get(key)
            failure = next_failure(before, Verdict("the disk is full"), 0, self.now, ready_for_s=None)
            self.fetches[key] = self.failed[key] = failure
            self.done["full"] += 1
        else:
            del self.fetches[key]
            self.files[key.host].add(key.spec_hash)
            self.done["copied"] += 1

    def _apply(self, action: Action) -> None:
        match action:
            case FetchFiles():
                key = FetchKey(action.model, action.spec_hash, action.host)
                failure = self.fetches.get(key)
                assert key not in self.fetches or (failure is not None and not failure.must_wait(self.now))
                assert self.lacks(action.host, action.model)
                self.fetches[key] = None
            case Preflight():
                assert not self.lacks(action.host, action.model), "what is to come is not looked for"
                result = PreflightResult(True, self.now)
                self.preflights[PreflightKey(action.model, action.spec_hash, action.host)] = result
            case Start():
                assert not self.lacks(action.host, action.model)
                name = f"{action.model}-{action.id.spec_hash}-{action.id.attempt}"
                self.replicas[name] = ObservedReplica(
                    action.id, name, Phase.RUNNING, self.now, self.now, claims=action.claims, host=action.host
                )
            case Drain():
                is_there = any(not self.lacks(host, action.model) for host in self.hosts)
                assert is_there or action.reason == "more replicas than declared", (
                    "nothing leaves for what is not there"
                )
                self.replicas[action.name] = replace(self.replicas[action.name], draining=Draining(self.now, None))
            case Undrain():
                self.replicas[action.name] = replace(self.replicas[action.name], draining=None)
            case Stop():
                del self.replicas[action.name]
            case _:
                raise AssertionError(action)


@pytest.mark.parametrize("seed", campaign_seeds(30, 600))
def test_files_come_before_anything_else_and_no_host_waits_for_another_one(seed: int) -> None:
    site = Site(random.Random(seed))
    for _ in range(site.chance.randint(3, 8)):
        for _ in range(site.chance.randint(1, 12)):
            site.step()
        site.edit(site.chance.choice(MODELS))
    if len({*site.hosts} - {site.full, site.stuck}) == 0:
        site.full = site.stuck = ""
    for _ in range(60):
        site.step()
    lacking = [name for name in MODELS if site.key(name) not in {each.id.spec_hash for each in site.replicas.values()}]
    waiting = {key.model for key in site.fetches if key.host == site.stuck}
    assert set(lacking) <= waiting, (lacking, site.fetches)
    assert site.done["copied"] or waiting or not lacking
