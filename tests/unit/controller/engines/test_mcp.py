"""MCP servers with a command: their definitions, command lines, containers, and their place in the routing table."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contract.declarations import RuntimeDeclaration, RuntimeDeclarations
from contract.status import ModelState
from contract.tools import McpServerRoute
from controller.config.debounce import settled_state
from controller.config.runtime_declarations import combine_declarations, with_server_replicas
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.engines import ENGINES, REPLICA_ENGINES, spec_hash
from controller.engines.base import Launch, RenderContext, Verdict
from controller.engines.mcp import McpBridge, McpBridgeDefinition
from controller.planning.backoff import verdict_of_exit
from controller.runtimes.base import StartRequest
from controller.runtimes.docker.container_spec import HostContext, UserIdentity, container_config, render_context
from controller.runtimes.process.launch import check_program
from controller.state import Exit, Phase, ReplicaId
from controller.state_dir import StoredState
from tests.support import definitions
from tests.support.controller_harness import AddressedRuntime, ControllerHarness
from tests.support.definitions import MODELS_ROOT, parse_text, problems_of

TIME = "mcp_servers: {time: {command: [mcp-server-time, --utc], env: {B: '2', A: s3cr3t}}, far: {url: https://far/mcp}}"
PROCESS = replace(definitions.PROCESS, served_name="mcp:time")
USER = UserIdentity(1000, 1001)


def server(text: str) -> McpBridgeDefinition:
    """The definition of the server `time` with these fields."""
    state = with_server_replicas(settled_state(parse_text(f"models: {{}}\nmcp_servers: {{time: {text}}}")))
    definition = state.definitions["mcp:time"]
    assert isinstance(definition, McpBridgeDefinition)
    return definition


def hash_of(text: str) -> str:
    return spec_hash(server(text), None, "mcp:time")


def render(definition: McpBridgeDefinition, ctx: RenderContext = PROCESS) -> Launch:
    return McpBridge().render_command(definition, ctx)


# From files to definitions.


def test_a_server_with_a_command_is_run_and_one_with_an_address_is_not() -> None:
    state = with_server_replicas(settled_state(parse_text(f"models: {{m: {{backend: stub}}}}\n{TIME}")))
    assert list(state.definitions) == ["m", "mcp:time"]
    assert state.declared_models["mcp:time"] == {
        "backend": "mcp", "mcp_command": ["mcp-server-time", "--utc"], "env": {"B": "2", "A": "s3cr3t"},
    }  # fmt: skip
    models = {name: DeclaredModel(each, {}, 1.0) for name, each in state.definitions.items()}
    desired = resolve_desired(models, StoredState(), Defaults({"worker": "w:1"}), generation=1)
    model = desired.models["mcp:time"]
    assert (model.backend, model.runs, model.replicas, model.image, model.gpu_count) == ("mcp", True, 1, "w:1", 0)


def test_no_file_and_no_operator_can_name_the_backend_or_take_a_servers_name() -> None:
    assert set(REPLICA_ENGINES) - set(ENGINES) == {"mcp"}
    assert problems_of("models: {a: {backend: mcp, mcp_command: [sh]}}")[0].startswith(
        "desired-state/models.yaml:1: models.a.backend: unknown backend `mcp`"
    )
    assert problems_of("models: {'mcp:time': {backend: stub}}") == [
        "desired-state/models.yaml:1: models.mcp:time: `mcp:time`: names that begin with `mcp:` are those of MCP "
        "servers"
    ]
    [problem] = problems_of("models: {a: {backend: stub, aliases: ['mcp:time']}}")
    assert "models.a.aliases: `mcp:time`: names that begin with `mcp:`" in problem
    files = settled_state(parse_text(f"models: {{}}\n{TIME}"))
    taken = RuntimeDeclaration(fields={"backend": "stub"}, declared_at=1.0, actor="someone")
    combined = combine_declarations(files, RuntimeDeclarations(models={"mcp:time": taken}), MODELS_ROOT)
    assert isinstance(combined.state.definitions["mcp:time"], McpBridgeDefinition)
    assert (combined.runtime_models, len(combined.problems)) == (frozenset(), 1)


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("{command: [x], timeout_s: 5, max_output_kib: 1, tools: [a]}", True),
        ("{command: [y]}", False),
        ("{command: [x, y]}", False),
        ("{command: [x], env: {A: b}}", False),
        ("{command: [x], network: true}", False),
        ("{command: [x], mounts: ['/a:/b']}", False),
    ],
)
def test_only_what_the_process_depends_on_restarts_it(text: str, is_same: bool) -> None:
    assert (hash_of(text) == hash_of("{command: [x]}")) is is_same


# The command line.


def test_the_bridge_runs_the_command_with_the_declared_variables_alone() -> None:
    launch = render(server("{command: [npx, -y, server, --flag], env: {B: '2', A: s3cr3t}}"))
    assert launch.argv == (
        *("/venv/bin/python", "-m", "worker", "mcp", "--", "--host", "127.0.0.1", "--port", "4242", "--name", "time"),
        *("--pass-env", "A", "--pass-env", "B", "--", "npx", "-y", "server", "--flag"),
    )
    assert (launch.env, launch.token_env) == ({"A": "s3cr3t", "B": "2"}, "ROUNDHOUSE_ENGINE_TOKEN")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (sys.executable, None),
        ("no-such-program-of-ours", "program no-such-program-of-ours is not on PATH"),
        ("/no/such/program", "program /no/such/program does not exist"),
        ("./here", "program ./here is a relative path: give an absolute one, or a name on PATH"),
    ],
)
def test_a_missing_program_is_found_before_the_start(program: str, problem: str | None) -> None:
    ctx = replace(PROCESS, executables={"python": sys.executable})
    assert check_program(render(server(f"{{command: [{program}, --, x]}}"), ctx).argv) == problem


@pytest.mark.parametrize(
    ("line", "message", "permanent"),
    [
        (
            "cannot be used: No such file or directory",
            "the program of the MCP server is missing or cannot be run",
            True,
        ),
        ("cannot be used: Permission denied", "the program of the MCP server is missing or cannot be run", True),
        ("ended before it introduced itself", "its command ended before it spoke MCP", False),
        ("cannot be used: Connection closed", "its command does not speak MCP", False),
        ("ended", "its command ended", False),
        ("ended (SIGKILL)", "its command ended", False),
    ],
)
def test_the_reason_names_the_command(line: str, message: str, permanent: bool) -> None:
    log_tail = f"x\nthe MCP server /a b {line}\n"
    plain = f"{message}; the launcher ended with exit code 1"
    shown = f"{plain}. Last log lines:\nx\nthe MCP server /a b {line}"
    verdict = verdict_of_exit("mcp", Exit(1, False, log_tail), was_ready=False)
    assert verdict == Verdict(shown, permanent, 1, plain)


# The container.


def container(text: str) -> dict[str, Any]:
    host = HostContext("one", "engines", False, [{"Type": "bind", "Source": "/srv/models"}], 16)
    definition = server(text)
    launch = render(definition, render_context("mcp:time", USER, {"worker": "worker:1"}))
    request = StartRequest(ReplicaId("mcp:time", 0, "0" * 16, 1), "rh-x", definition, "mcp:time", None, "TOKEN")
    return container_config(request, launch, USER, host, 1.0)


def test_a_container_gets_no_folder_that_is_not_declared() -> None:
    made = container("{command: [x], env: {A: b}}")
    host = made["HostConfig"]
    assert (host["Mounts"], host["CapDrop"], host["CapAdd"], host["ReadonlyRootfs"]) == ([], ["ALL"], [], True)
    assert (host["NetworkMode"], host["SecurityOpt"]) == ("engines", ["no-new-privileges"])
    assert (made["Image"], made["User"]) == ("worker:1", "1000:1001")
    assert {"HOME=/tmp", "A=b", "ROUNDHOUSE_ENGINE_TOKEN=TOKEN"} <= set(made["Env"])
    assert "TOKEN" not in str(made["Cmd"])


def test_a_container_gets_the_declared_folders_read_only_unless_they_say_otherwise() -> None:
    made = container("{command: [x], mounts: ['/srv/a:/a', '/srv/b:/b:rw', '/srv/c:/c:ro']}")
    assert made["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": f"/srv/{name}", "Target": f"/{name}", "ReadOnly": name != "b"} for name in "abc"
    ]


@pytest.mark.parametrize("says", [True, False])
def test_the_way_out_is_as_declared(says: bool) -> None:
    assert render(server(f"{{command: [x], network: {str(says).lower()}}}")).has_egress is says


# The routing table.


@dataclass
class Place:
    """A controller over a fake host."""

    harness: ControllerHarness
    runtime: AddressedRuntime
    time: list[float]

    async def rounds(self, count: int, *, ready: bool = True) -> None:
        """Rounds of a second, in which engines become ready."""
        for _ in range(count):
            await self.harness.reconciler.run_round()
            await self.harness.operations.wait_until_idle()
            for name in self.runtime.replicas if ready else ():
                self.harness.prober.ready.setdefault(name, self.time[0])
            self.time[0] += 1.0


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "desired").mkdir()
    (tmp_path / "desired" / "a.yaml").write_text(f"models: {{m: {{backend: stub}}}}\n{TIME}\n")
    time = [1_000.0]
    runtime = AddressedRuntime(lambda: time[0])
    made = Place(ControllerHarness(tmp_path, runtime, time), runtime, time)
    await made.harness.files.read_files()
    yield made
    made.harness.end()


def route(place: Place, name: str = "time") -> McpServerRoute:
    assert place.harness.hub.table is not None
    return next(each for each in place.harness.hub.table.mcp_servers if each.name == name)


async def test_a_running_server_is_in_the_table_with_its_token_and_is_no_model(place: Place) -> None:
    await place.rounds(2, ready=False)
    assert (route(place).url, route(place).reason, route(place).is_expected) == (None, "it is loading", True)
    await place.rounds(4)
    table = place.harness.hub.table
    assert table is not None
    assert [each.name for each in table.models] == ["m"]
    [endpoint] = table.models[0].endpoints
    found = route(place)
    assert (found.url, found.reason, found.is_expected) == ("http://engine/mcp", None, False)
    assert found.replica is not None
    assert found.replica.startswith("rh-i-mcp-time-")
    assert found.token is not None
    assert found.token != endpoint.token
    far = route(place, "far")
    assert (far.url, far.replica, far.is_expected) == ("https://far/mcp", None, False)


async def test_an_unloaded_server_says_why_it_is_not_there(place: Place) -> None:
    await place.rounds(5)
    place.harness.admin_service.unload_model("mcp:time", hold=True, actor="operator")
    await place.rounds(5)
    assert (route(place).url, route(place).replica, route(place).token) == (None, None, None)
    assert (route(place).reason, route(place).is_expected) == ("it is unloaded", False)
    place.harness.admin_service.load_model("mcp:time", {}, None, actor="operator")
    await place.rounds(2, ready=False)
    assert (route(place).reason, route(place).is_expected) == ("it is loading", True)
    await place.rounds(5)
    assert route(place).url == "http://engine/mcp"


async def test_a_server_stays_in_the_table_while_nothing_can_be_observed(place: Place) -> None:
    await place.rounds(5)
    before = route(place)
    place.runtime.unavailable = "the daemon is down"
    await place.rounds(1, ready=False)
    assert route(place) == before
    assert place.harness.reconciler.round is not None
    states = {each.name: each.state for each in place.harness.reconciler.round.statuses}
    assert states["mcp:time"] is ModelState.LOADED


def end(place: Place) -> None:
    """Let the running replica of the server end, as one that is killed."""
    [name] = [each for each in place.runtime.replicas if each.startswith("rh-i-mcp-time-")]
    seen = place.runtime.replicas[name]
    place.runtime.replicas[name] = replace(seen, phase=Phase.EXITED, exit=Exit(1, False, ""))
    place.harness.prober.ready.pop(name, None)


async def test_a_server_that_ended_is_expected_while_it_is_started_again(place: Place) -> None:
    await place.rounds(5)
    first = route(place).replica
    end(place)
    await place.rounds(1, ready=False)
    assert (route(place).url, route(place).is_expected) == (None, True)
    await place.rounds(3, ready=False)
    assert (route(place).reason, route(place).is_expected) == (
        "it is loading: the launcher ended with exit code 1", True,
    )  # fmt: skip
    await place.rounds(3)
    assert route(place).url == "http://engine/mcp"
    assert route(place).replica != first


async def test_a_server_that_cannot_be_started_is_not_expected(place: Place) -> None:
    place.runtime.preflight_error = "program mcp-server-time is not on PATH"
    await place.rounds(5)
    found = route(place)
    assert (found.url, found.is_expected) == (None, False)
    assert found.reason == "it is failed: program mcp-server-time is not on PATH"


async def test_an_edit_waits_for_the_calls_at_the_former_replica(place: Place, tmp_path: Path) -> None:
    await place.rounds(5)
    former = route(place).replica
    assert former is not None
    place.harness.hub.holds = frozenset({former})
    place.harness.hub.slow_reports()
    edited = TIME.replace("s3cr3t", "0ther")
    (tmp_path / "desired" / "a.yaml").write_text(f"models: {{m: {{backend: stub}}}}\n{edited}\n")
    await place.harness.files.read_files()
    await place.rounds(8)
    assert former in place.runtime.replicas
    assert route(place).replica not in (former, None), "new calls go to the new one"
    place.harness.hub.holds = frozenset()
    place.harness.hub.slow_reports()
    await place.rounds(3)
    assert former not in place.runtime.replicas
