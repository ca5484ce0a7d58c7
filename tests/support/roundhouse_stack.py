"""A whole Roundhouse for tests: a real controller and gateway as processes, over folders of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from ruamel.yaml import YAML

from contract.status import ControllerStatus, ModelState, ModelStatus, PlanView
from tests.support.http_client import HttpClient, Reply, answers, send_request
from tests.support.ports import free_port
from tests.support.wait import until

if TYPE_CHECKING:
    import openai  # slow, and every test imports this file

SENTENCE = "The quick brown fox jumps over a lazy dog. And then it sleeps!"
REPOSITORY = Path(__file__).parents[2]


class RoundhouseStack:
    """One instance of Roundhouse. `settings` holds what is set beyond the folders
    and the gateway's port, for programs that start from now on."""

    def __init__(self, root: Path, runtime: str, env: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.desired = root / "desired-state"
        self.state = root / "state"
        self.models = root / "models"
        self.runtime = runtime
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = dict(env or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for folder in (self.desired, self.models):
            folder.mkdir(parents=True)

    # Files.

    def declare(self, models: Mapping[str, Any], name: str = "models.yaml") -> None:
        """Write a desired-state file that has these models."""
        self.write(name, {"models": dict(models)})

    def write(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write a desired-state file, as an editor does: whole, by rename."""
        temporary = self.root / f"{name}.tmp"
        with temporary.open("w") as file:
            YAML(typ="safe", pure=True).dump(fields, file)
        temporary.replace(self.desired / name)

    # Processes.

    def start(self, program: str, *, name: str | None = None, **settings: str) -> subprocess.Popen[bytes]:
        """Start `controller` or `gateway`; a further one under a name of its own, with `settings` of its own."""
        name = name or program
        log = (self.root / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", program],
            cwd=REPOSITORY,
            env=self.environment() | settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._processes[name] = process
        return process

    def environment(self) -> dict[str, str]:
        """The settings, beside this process's own environment."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        return own | {
            "ROUNDHOUSE_DESIRED": str(self.desired),
            "ROUNDHOUSE_STATE": str(self.state),
            "ROUNDHOUSE_MODELS": str(self.models),
            "ROUNDHOUSE_RUNTIME": self.runtime,
            "ROUNDHOUSE_PORT": str(self.port),
            "ROUNDHOUSE_CONTROLLER_URL": f"unix:{self.state / 'controller.sock'}",
            "ROUNDHOUSE_STOP_TIMEOUT_S": "10",
            "ROUNDHOUSE_LOG_LEVEL": "info",
            **self.settings,
        }

    def send(self, program: str, number: int) -> None:
        self._processes[program].send_signal(number)

    def kill(self, program: str, number: int = signal.SIGKILL) -> None:
        process = self._processes.pop(program)
        process.send_signal(number)
        process.wait(60)

    def pid(self, program: str) -> int:
        return self._processes[program].pid

    def log(self, program: str) -> str:
        path = self.root / f"{program}.log"
        return path.read_text() if path.exists() else ""

    def run_command(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """A `roundhouse` command with the settings, and with `settings` of its own, once it has ended."""
        command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
        env = self.environment() | settings
        return subprocess.run(
            command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=120
        )

    async def open(self, *models: str) -> None:
        """Start both, and wait until the gateway has a routing table and these models are loaded."""
        self.start("controller")
        self.start("gateway")
        await self.gateway_connected()
        await self.loaded(*models)

    @contextlib.asynccontextmanager
    async def running(self, *models: str) -> AsyncIterator[RoundhouseStack]:
        """Opened, with these models loaded; closed in the end."""
        try:
            await self.open(*models)
            yield self
        finally:
            await self.close()

    async def gateway_connected(self) -> None:
        """Wait until the gateway has a routing table and its link is up."""
        await until("the gateway has a table", self._connected)

    async def _connected(self) -> bool:
        if not await answers(f"{self.url}/v1/models"):
            return False
        health = await self.request("GET", "/health")
        return bool(health.body["controller"] == "connected")

    async def close(self) -> None:
        """Stop everything, engines first. Fails if the controller does not end cleanly."""
        for name in self._processes.keys() - {"gateway", "controller"}:
            self.kill(name, signal.SIGTERM if name in ("retrieval", "transfers") else signal.SIGKILL)
        if "gateway" in self._processes:
            self.kill("gateway", signal.SIGTERM)
        if "controller" not in self._processes:
            self.start("controller")
        controller = self._processes["controller"]
        try:
            await until("the controller answers", self._answers)
            await self.post("/internal/shutdown", {"stop_engines": True})
            code = await asyncio.to_thread(controller.wait, 60)
            assert code == 0, f"the controller ended with {code}:\n{self.log('controller')[-3000:]}"
        finally:
            if controller.poll() is None:
                controller.kill()
                controller.wait()

    async def _answers(self) -> bool:
        try:
            return bool(await self.get("/internal/health"))
        except aiohttp.ClientError:
            return False

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        """A reply of the gateway; see `HttpClient.request`."""
        return await send_request(self.url + path, method, body, **options)

    async def chat(self, model: str, **fields: Any) -> Reply:
        """The gateway's answer to a chat; see `HttpClient.chat`."""
        async with aiohttp.ClientSession() as session:
            return await HttpClient(self.url, session).chat(model, **fields)

    def sdk(self) -> openai.AsyncOpenAI:
        """OpenAI's SDK for the gateway, which tries nothing again."""
        import openai

        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    # The controller's own interface.

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.state / "controller.sock")))

    async def get(self, path: str) -> Any:
        """JSON of one of the controller's own paths."""
        async with self._session() as session, session.get(f"http://controller{path}") as answer:
            return await answer.json()

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """JSON of a POST to one of the controller's own paths."""
        async with self._session() as session, session.post(f"http://controller{path}", json=body) as answer:
            return await answer.json()

    async def status(self) -> ControllerStatus:
        return ControllerStatus.model_validate(await self.get("/internal/status"))

    async def plan(self) -> PlanView:
        return PlanView.model_validate(await self.get("/internal/plan"))

    async def model(self, name: str) -> ModelStatus | None:
        """One model's status; None while it is not known."""
        try:
            status = await self.status()
        except aiohttp.ClientError:
            return None
        return next((model for model in status.models if model.name == name), None)

    async def model_where(self, name: str, holds: Callable[[ModelStatus], bool], what: str) -> ModelStatus:
        """Wait until a model's status is as wanted."""

        async def look() -> ModelStatus | None:
            model = await self.model(name)
            return model if model is not None and holds(model) else None

        try:
            found: ModelStatus = await until(f"{name}: {what}", look)
        except AssertionError as error:
            seen = await self.model(name)
            raise AssertionError(f"{error}\nstatus: {seen}\n{self.log('controller')[-4000:]}") from None
        return found

    async def loaded(self, *names: str) -> dict[str, ModelStatus]:
        """Wait until all replicas of these models are ready, and nothing else of them is there."""

        def at_rest(model: ModelStatus) -> bool:
            ready = [replica for replica in model.replicas if replica.phase == "ready" and not replica.outdated]
            return model.state is ModelState.LOADED and len(ready) == len(model.replicas) == model.wanted_replicas > 0

        return {name: await self.model_where(name, at_rest, "all replicas ready") for name in names}

    async def gone(self, name: str) -> None:
        """Wait until a model is not known any more."""

        async def look() -> bool:
            return all(model.name != name for model in (await self.status()).models)

        await until(f"{name} is gone", look)


def replica_names(model: ModelStatus) -> set[str]:
    """Its replicas' names; a replica that is started again has a new one."""
    return {replica.name for replica in model.replicas}


@contextlib.contextmanager
def serving(stack: RoundhouseStack, *models: str) -> Iterator[RoundhouseStack]:
    """The stack, started, once these models are loaded; it is stopped in the end."""
    try:
        asyncio.run(stack.open(*models))
        yield stack
    finally:
        asyncio.run(stack.close())
