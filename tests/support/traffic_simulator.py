"""Simulated traffic on a simulated host: models that requests load, room for a part of them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace

from controller.engines.stub import StubDefinition
from controller.planning.actions import Start, Stop
from controller.state import DesiredModel, DesiredState, Draining, Health, ModelTraffic, Phase, Statement
from tests.support.world import World

SLOTS = 2


def autoload(name: str, mib: int, **fields: object) -> DesiredModel:
    """A model that a request would load, and that takes so much main memory."""
    rest = Statement("file", 0.0, "autoload: no request asked for it yet")
    model = DesiredModel(name, StubDefinition(backend="stub"), "stub", "new", 0, rest, memory_mib=mib, autoload=True)
    return replace(model, demand_replicas=1, **fields)  # type: ignore[arg-type]


@dataclass
class TrafficSimulator:
    """Steps of one second: requests come, wait, are inside for a while and leave."""

    models: dict[str, DesiredModel]
    host_mib: int
    load_s: float = 3.0
    swap_wait_s: float = 10.0
    world: World = field(init=False)
    waiting: dict[str, deque[float]] = field(default_factory=dict)
    """Model to when each of its waiting requests came."""
    inside: dict[str, list[float]] = field(default_factory=dict)
    """Model to when each request that is inside will be done."""
    last_used: dict[str, float] = field(default_factory=dict)
    loads: Counter[str] = field(default_factory=Counter)
    evictions: list[str] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    longest_wait_s: float = 0.0

    def __post_init__(self) -> None:
        desired = DesiredState(1, dict(self.models), swap_wait_s=self.swap_wait_s)
        self.world = World(desired, host_mib=self.host_mib)

    def ask(self, model: str, count: int = 1) -> None:
        self.waiting.setdefault(model, deque()).extend([self.world.now] * count)

    def step(self, takes_s: float = 1.0) -> None:
        """One second: what is inside may finish, what waits may go in, the controller plans and acts."""
        now = self.world.now
        for name, until in self.inside.items():
            done = [each for each in until if each <= now]
            if done:
                self.inside[name] = [each for each in until if each > now]
                self.served[name] += len(done)
                self.last_used[name] = now
        self._admit(takes_s)
        self._tell()
        self._act()
        self.world.now += 1.0
        self._age()

    @property
    def quiet(self) -> bool:
        """Whether nobody waits, and nobody is inside."""
        return not any(self.waiting.values()) and not any(self.inside.values())

    def loaded(self) -> set[str]:
        """Models with an engine that serves."""
        serving = (each for each in self.world.replicas.values() if each.health is Health.READY)
        return {each.id.model for each in serving if each.draining is None}

    def _admit(self, takes_s: float) -> None:
        for name in self.loaded():
            queue, inside = self.waiting.get(name, deque()), self.inside.setdefault(name, [])
            while queue and len(inside) < SLOTS:
                self.longest_wait_s = max(self.longest_wait_s, self.world.now - queue.popleft())
                inside.append(self.world.now + takes_s)
                self.last_used[name] = self.world.now

    def _tell(self) -> None:
        names = self.world.desired.models
        queues = {name: self.waiting.get(name, deque()) for name in names}
        self.world.traffic = {
            name: ModelTraffic(len(queue), queue[0] if queue else None, self.last_used.get(name))
            for name, queue in queues.items()
        }
        self.world.inside = {
            replica.name: len(self.inside.get(replica.id.model, ())) for replica in self.world.replicas.values()
        }

    def _act(self) -> None:
        made = self.world.plan()
        for action in made.actions:
            if isinstance(action, Start):
                self.loads[action.id.model] += 1
            if isinstance(action, Stop):
                self._check_stop(action)
        self.world.apply(made.actions)
        models = dict(self.world.desired.models)
        for name in made.reload_requested:
            statement = Statement("autoload", self.world.now, "asked for")
            models[name] = replace(models[name], replicas=1, demand_replicas=0, statement=statement)
        for name, reason in made.evicted.items():
            statement = Statement("autoload", self.world.now, reason)
            models[name] = replace(models[name], replicas=0, demand_replicas=1, statement=statement)
        self.world.desired = replace(self.world.desired, models=models)
        self._check_says_why()

    def _check_stop(self, action: Stop) -> None:
        want, replica = self.models[action.id.model], self.world.replicas[action.name]
        assert not want.pinned, f"{action} is pinned"
        assert not self.inside.get(want.name), f"{action}: somebody is inside"
        assert replica.ready_since is not None, f"{action} loads"
        assert replica.draining is not None, f"{action} is routed to"
        stays = want.min_residency_s
        stays = min(60.0, replica.ready_since - (replica.started_at or 0.0)) if stays is None else stays
        assert replica.draining.since >= replica.ready_since + stays, f"{action} was loaded only just now"
        self.evictions.append(want.name)

    def _check_says_why(self) -> None:
        made = self.world.plan()
        assert made.desired is not None
        here = {replica.id.model for replica in self.world.replicas.values()}
        told = {each.model for each in made.blocked} | {action.model for action in made.actions}
        for want in made.desired.models.values():
            assert not want.replicas or want.name in here | told, f"{want.name} is not there, and nobody says why"

    def _age(self) -> None:
        now = self.world.now
        for name, seen in list(self.world.replicas.items()):
            replica, started = seen, seen.started_at or now
            if seen.health is Health.STARTING and seen.phase is Phase.RUNNING and now - started >= self.load_s:
                replica = replace(replica, health=Health.READY, ready_since=now)
            if seen.draining is not None:
                idle = not self.inside.get(seen.id.model)
                replica = replace(replica, draining=Draining(seen.draining.since, idle))
            self.world.replicas[name] = replica
