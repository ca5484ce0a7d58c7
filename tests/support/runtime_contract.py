"""What the contract of runtimes needs of the place where engines run: one set of tests, on processes and on containers.

`runtime_fixtures` is something else: there a whole Roundhouse is given its runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from contract.desired import Definition
from controller.engines import spec_hash
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import Runtime, SeenReplica, StartRequest, replica_name, replica_token
from controller.state import Exit, Phase, ReplicaId
from tests.support.http_client import answers, send_request
from tests.support.wait import until

RUN = "exec sleep 600"


class ContractEngines(Protocol):
    """The engines of one test: an instance and folders of their own, and nothing of them left afterwards."""

    instance: str
    models: Path
    models_inside: str
    """What engines know the models folder as."""
    state: Path
    killed_code: int
    """How the end by SIGKILL is told."""
    tells_codes_of_unseen_ends: bool
    """Whether an engine's exit code is known that ended while no controller ran."""

    def runtime(self, **settings: Any) -> Runtime:
        """A runtime over this place; another object stands for another controller."""

    def other_instance(self) -> ContractEngines:
        """Another Roundhouse on the same daemon, or in the same state folder."""

    def shell(self, body: str, **fields: object) -> LlamaServerDefinition:
        """A model whose engine is a shell program."""

    def stub(self, **fields: object) -> StubDefinition:
        """A model served by the real worker's stub."""

    def llama_server(self, model_path: str) -> LlamaServerDefinition:
        """A model served by the real llama-server."""

    def request(
        self, definition: Definition, model: str = "m", *, attempt: int = 1, claims: Mapping[str, int] | None = None
    ) -> StartRequest:
        """A start of a model's first replica."""

    def unstartable(self) -> tuple[StartRequest, str]:
        """A start that must fail, and what its error says."""

    def identity(self, name: str) -> str:
        """What a restart would change."""

    def pids(self, name: str) -> list[int]:
        """Every process of a running replica, as this machine counts them."""

    def kill(self, name: str) -> None:
        """End an engine without warning."""

    def log_bytes(self, name: str) -> int:
        """How much is kept of a running replica's output."""

    def foreign(self, name: str) -> None:
        """Something that runs, that has a name as ours do, and that somebody else made."""

    def foreign_runs(self, name: str) -> bool:
        """Whether it is the same still."""

    async def half_created(self, request: StartRequest) -> None:
        """What a controller leaves that is killed in the middle of a start, before there is an engine."""

    def unreachable(self) -> AbstractContextManager[Runtime]:
        """A runtime whose daemon, or whose records, are away until the context ends."""

    def left(self) -> list[str]:
        """What is still there of this instance's replicas."""

    async def close(self) -> None:
        """Remove all that the test made."""


def request_for(
    instance: str,
    definition: Definition,
    image: str | None,
    model: str,
    attempt: int,
    claims: Mapping[str, int] | None,
) -> StartRequest:
    """A start of a model's first replica, named as the controller names it."""
    replica = ReplicaId(model, 0, spec_hash(definition, image, model), attempt)
    name = replica_name(instance, replica)
    return StartRequest(replica, name, definition, model, image, replica_token(b"secret", name), claims or {})


def says_and_waits(word: str) -> str:
    """A shell program that says a word and runs on, and from then on runs its traps at once.

    With a program in the foreground the shell would wait for that first. And its child has the shell's own traps until
    it has become another program: the word comes after that.
    """
    child_is_there = 'until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.01; done'
    return f"sleep 600 & {child_is_there}; echo {word}; while :; do wait; sleep 600 & done"


def waiting_for(engines: ContractEngines, signal: str) -> str:
    """A shell program that runs until the test gives a signal."""
    return f"while [ ! -e {engines.models_inside}/{signal} ]; do sleep 0.02; done"


def give(engines: ContractEngines, signal: str) -> None:
    (engines.models / signal).touch()


def running(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = text.rpartition(")")[2].split()
    # A zombie whose other threads run on has not ended.
    return fields[0] not in "ZX" or int(fields[17]) > 1


async def start_shell(
    engines: ContractEngines,
    body: str = RUN,
    *,
    attempt: int = 1,
    **fields: object,
) -> tuple[Runtime, StartRequest]:
    """A runtime that has started a shell program as an engine, and the start. `fields`: of the definition."""
    runtime = engines.runtime()
    request = engines.request(engines.shell(body, **fields), "m", attempt=attempt, claims=None)
    await runtime.start_replica(request)
    return runtime, request


async def only(runtime: Runtime) -> SeenReplica:
    (seen,) = await runtime.list_replicas()
    return seen


async def exited(runtime: Runtime) -> SeenReplica:
    async def look() -> SeenReplica | None:
        seen = await only(runtime)
        return seen if seen.phase is Phase.EXITED else None

    ended: SeenReplica = await until("the engine's end", look)
    return ended


async def ended(runtime: Runtime) -> Exit:
    """How the one replica ended, once it has."""
    seen = await exited(runtime)
    assert seen.exit is not None
    return seen.exit


async def wait_for_log(runtime: Runtime, name: str, text: str) -> None:
    """Return when the engine has written a text."""

    async def look() -> bool:
        return text in await runtime.read_log_tail(name)

    await until(f"{text!r} in the log of {name}", look)


async def ready(runtime: Runtime) -> SeenReplica:
    """The one replica, once its engine has loaded."""

    async def look() -> SeenReplica | None:
        seen = await only(runtime)
        assert seen.phase is Phase.RUNNING, seen.exit
        is_healthy = await answers(f"{seen.base_url}/health", timeout=aiohttp.ClientTimeout(30))
        return seen if is_healthy else None

    found: SeenReplica = await until("a healthy engine", look)
    return found


async def complete(seen: SeenReplica, token: str | None) -> tuple[int, str]:
    """Status and text of one chat completion."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    timeout = aiohttp.ClientTimeout(60)
    reply = await send_request(f"{seen.base_url}/v1/chat/completions", "POST", body, key=token, timeout=timeout)
    return reply.status, reply.body["choices"][0]["message"]["content"] if reply.status == 200 else ""


async def serve_and_end(engines: ContractEngines, definition: Definition, text: str) -> None:
    """From preflight to the last process."""
    runtime = engines.runtime()
    request = engines.request(definition)
    assert (await runtime.check_preflight("m", definition, request.image)).error is None
    await runtime.start_replica(request)
    seen = await ready(runtime)
    assert await complete(seen, request.token) == (200, text)
    assert (await complete(seen, None))[0] == 401
    assert request.token not in await runtime.read_log_tail(request.name, 400)
    assert request.token not in " ".join(seen.argv)
    pids = engines.pids(request.name)
    assert pids
    await runtime.stop_replica(request.name, 30)
    assert [pid for pid in pids if running(pid)] == []


class LogReader:
    """Reads a replica's log as a client does that follows it."""

    def __init__(self, runtime: Runtime, name: str, first: int = 50) -> None:
        self.runtime = runtime
        self.name = name
        self.first = first
        self.cursor: str | None = None
        self.lines: list[str] = []
        self.parts = 0
        self.running = True

    async def read(self) -> list[str]:
        """All that was given so far, after one more question."""
        part = await self.runtime.read_log_after(self.name, self.cursor, self.first)
        assert part is not None
        self.cursor, self.running = part.cursor, part.running
        self.parts += bool(part.lines)
        self.lines += part.lines
        return self.lines

    async def finish(self) -> list[str]:
        """All, once nothing will follow."""

        async def look() -> bool:
            await self.runtime.list_replicas()  # as the controller does: it sees the end, and cuts long logs
            await self.read()
            return not self.running

        await until("the end of the log", look)
        return self.lines
