"""Tools and MCP servers in desired-state files: what is accepted, and what is said of the rest."""

from __future__ import annotations

import json

import pytest

from contract.routing import RoutingTable, Stamp
from contract.tools import BUILTIN_TOOLS, McpServer, McpServerRoute, PlainTool, ToolRoute
from controller.config.debounce import CONFIRM_S, DebouncedState, debounce
from controller.routing_table import build_mcp_servers, build_tools
from tests.support.definitions import parse_text, problems_of

SECRET = "s3cr3t-value"
ALL = """
    models: {}
    tools:
      current_time: {}
      calculate: {timeout_s: 1}
      search_documents: {max_output_kib: 4096}
      fetch_url: {hosts: ["docs.python.org", "*.example.org", "wiki:8080"], timeout_s: 10}
      read_file: {folder: /srv/notes}
      list_files: {folder: /srv/notes/}
      search_files: {folder: /srv/notes}
      write_file: {folder: /srv/notes, write: true}
    mcp_servers:
      weather:
        url: https://mcp.example.org/mcp
        headers: {Authorization: "Bearer s3cr3t-value"}
        tools: ["forecast", "current_*"]
      time:
        command: [mcp-server-time, --local-timezone, UTC]
        image: example.org/time:1
        env: {TZ: UTC}
        network: true
        mounts: ["/srv/a:/a", "/srv/b:/b:rw"]
        timeout_s: 600
        max_output_kib: 1
"""


def problems_in(section: str, name: str, *lines: str) -> list[str]:
    """The problems of one declaration with these fields, without the file's name."""
    text = "\n".join(["models: {}", f"{section}:", f"  {name}:", *(f"    {line}" for line in lines)])
    return [problem.removeprefix("desired-state/models.yaml:") for problem in problems_of(text)]


def test_everything_that_may_be_declared() -> None:
    parsed = parse_text(ALL)
    assert not parsed.problems
    assert set(parsed.tools.tools) == set(BUILTIN_TOOLS)
    tools = {route.name: route for route in build_tools(parsed.tools.tools)}
    assert list(tools) == sorted(BUILTIN_TOOLS)
    assert tools["current_time"] == ToolRoute(name="current_time", timeout_s=30.0, max_output_kib=64)
    assert tools["calculate"].timeout_s == 1
    assert tools["fetch_url"] == ToolRoute(
        name="fetch_url", timeout_s=10.0, hosts=("docs.python.org", "*.example.org", "wiki:8080"), folder=None
    )
    assert tools["write_file"] == ToolRoute(name="write_file", folder="/srv/notes")
    time, weather = build_mcp_servers(parsed.tools.servers, {})
    assert weather.headers["Authorization"].get_secret_value() == f"Bearer {SECRET}"
    assert (weather.url, weather.reason) == ("https://mcp.example.org/mcp", None)
    assert weather.tools == ("forecast", "current_*")
    assert (time.url, time.reason, time.tools) == (None, "it is not started", None)
    assert (time.timeout_s, time.max_output_kib) == (600.0, 1)
    assert parsed.tools.servers["time"].mounts == ["/srv/a:/a", "/srv/b:/b:rw"]


@pytest.mark.parametrize("nothing", ["", "tools:", "tools: null", "tools: {}", "tools: {calculate: null}"])
def test_no_tools_is_what_older_versions_declare(nothing: str) -> None:
    parsed = parse_text(f"models: {{}}\n{nothing}\nmcp_servers: {{time: null}}")
    assert (parsed.is_valid, parsed.tools.declared) == (True, {})
    assert parsed.digest == parse_text("models: {}").digest


def test_files_are_merged_as_they_are_for_models() -> None:
    parsed = parse_text(
        "models: {}\ntools: {calculate: {timeout_s: 2}, current_time: {}}\n"
        "mcp_servers: {a: {url: 'http://a/mcp', headers: {X-A: one}}, b: {command: [b]}}\n",
        local="tools: {calculate: {timeout_s: null, max_output_kib: 2}, current_time: null}\n"
        "mcp_servers: {a: {headers: {X-B: two}}, b: null}\n",
    )
    assert parsed.tools.declared == {
        "tools": {"calculate": {"max_output_kib": 2}},
        "mcp_servers": {"a": {"url": "http://a/mcp", "headers": {"X-A": "one", "X-B": "two"}}},
    }
    assert problems_of("models: {}\ntools: {calculate: {}}", local="tools: {calculate: {timeout_s: 0}}") == [
        "desired-state/local.yaml:1: tools.calculate.timeout_s: must be at least 1, is 0"
    ]


def test_the_digest_is_of_tools_too() -> None:
    texts = ("", "tools: {calculate: {}}", "tools: {current_time: {}}", "mcp_servers: {calculate: {command: [x]}}")
    assert len({parse_text(f"models: {{}}\n{text}").digest for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("calculate", ["timeout_s: 0.5"], "4: tools.calculate.timeout_s: must be at least 1, is 0.5"),
        ("calculate", ["timeout_s: 601"], "4: tools.calculate.timeout_s: must be at most 600, is 601"),
        ("calculate", ["max_output_kib: 0"], "4: tools.calculate.max_output_kib: must be at least 1, is 0"),
        ("calculate", ["max_output_kib: 4097"], "4: tools.calculate.max_output_kib: must be at most 4096, is 4097"),
        ("calculate", ["max_output_kb: 1"], "4: tools.calculate.max_output_kb: unknown field; did you mean `max_out"),
        ("current_time", ["folder: /srv"], "4: tools.current_time.folder: unknown field"),
        ("fetch_url", ["timeout_s: 5"], "3: tools.fetch_url.hosts: is required"),
        ("fetch_url", ["hosts: []"], "4: tools.fetch_url.hosts: must have at least 1 item(s)"),
        ("fetch_url", ["hosts: example.org"], '4: tools.fetch_url.hosts: must be a list, is the text "example.org"'),
        ("fetch_url", ["hosts: ['*']"], "4: tools.fetch_url.hosts[0]: must be the name of a host in lower case"),
        ("fetch_url", ["hosts: [a.b, 'A.b']"], "4: tools.fetch_url.hosts[1]: must be the name of a host in lower case"),
        ("fetch_url", ["hosts: ['a.b:']"], "4: tools.fetch_url.hosts[0]: must be the name of a host in lower case"),
        ("fetch_url", ["hosts: ['*.a:80']"], "4: tools.fetch_url.hosts[0]: must be the name of a host in lower case"),
        ("fetch_url", ["hosts: ['https://a.b']"], "4: tools.fetch_url.hosts[0]: must be the name of a host"),
        ("read_file", ["timeout_s: 5"], "3: tools.read_file.folder: is required"),
        ("read_file", ["folder: notes"], "4: tools.read_file.folder: must be the absolute path of a folder below"),
        ("read_file", ["folder: /"], "4: tools.read_file.folder: must be the absolute path of a folder below the"),
        ("read_file", ["folder: //"], "4: tools.read_file.folder: must be a folder below the root"),
        ("read_file", ["folder: /srv/../etc"], "4: tools.read_file.folder: must not hold `.` or `..` as a step"),
        ("write_file", ["folder: /srv"], "3: tools.write_file.write: must be `true`: whoever declares the tool permi"),
        ("write_file", ["folder: /srv", "write: false"], "5: tools.write_file.write: must be `true`"),
        ("write_file", ["folder: /srv", "write: 1"], "5: tools.write_file.write: must be `true`"),
        ("read_file", ["folder: /srv", "write: true"], "5: tools.read_file.write: unknown field"),
        ("current_tiem", ["timeout_s: 5"], "3: tools.current_tiem: there is no such built-in tool; did you mean `curr"),
        ("shell", ["timeout_s: 5"], "3: tools.shell: there is no such built-in tool; there are current_time, calcul"),
    ],
)
def test_problems_of_tools_say_where_and_what(name: str, fields: list[str], problem: str) -> None:
    [found] = problems_in("tools", name, *fields)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (["timeout_s: 5"], "3: mcp_servers.a: `url` or `command` is required"),
        (["url: http://a/", "command: [a]"], "5: mcp_servers.a.command: `command` and `url` exclude each other"),
        (["url: http://a/", "network: true"], "5: mcp_servers.a.network: `network` belongs to a server with `command`"),
        (["url: http://a/", "env: {A: b}"], "5: mcp_servers.a.env: `env` belongs to a server with `command`, and this"),
        (["command: [a]", "headers: {X: y}"], "5: mcp_servers.a.headers: `headers` belong to a server with `url`"),
        (["url: ftp://a/"], "4: mcp_servers.a.url: must be an http:// or https:// address without a query, is `ftp:"),
        (["url: 'http://a/?key=s3cr3t-value'"], "4: mcp_servers.a.url: must be an http:// or https:// address with"),
        (["url: http://u:s3cr3t-value@a/"], "4: mcp_servers.a.url: must not hold a user or a password; `headers` may"),
        (["url: http://a/", "headers: {X: 1}"], "5: mcp_servers.a.headers.X: must be a string, is a number: put it"),
        (["url: http://a/", "headers: {X: [s3cr3t-value]}"], "5: mcp_servers.a.headers.X: must be a string, is a li"),
        (["url: http://a/", "headers: {'a b': s3cr3t-value}"], "5: mcp_servers.a.headers: no header can have the na"),
        (["url: http://a/", "headers: {Host: s3cr3t-value}"], "5: mcp_servers.a.headers: must not hold `Host`, whic"),
        (["url: http://a/", 'headers: {X: "s3cr3t-value\\r\\n"}'], "5: mcp_servers.a.headers: the value of `X` must"),
        (["command: mcp-server-time"], '4: mcp_servers.a.command: must be a list, is a string'),
        (["command: []"], "4: mcp_servers.a.command: must have at least 1 item(s)"),
        (["command: ['', x]"], "4: mcp_servers.a.command: must begin with the name of a program"),
        (["command: [a, 5]"], "4: mcp_servers.a.command[1]: must be a string, is a number: put it in quotes"),
        (["command: [a]", "env: {A: 5}"], "5: mcp_servers.a.env.A: must be a string, is a number: put it in quotes"),
        (["command: [a]", "env: {A=B: s3cr3t-value}"], "5: mcp_servers.a.env: a variable's name holds only letters"),
        (["command: [a]", "mounts: [/srv]"], "5: mcp_servers.a.mounts: must be `HOST:CONTAINER` or `HOST:CONTAINER:"),
        (["command: [a]", "mounts: ['a:/b']"], "5: mcp_servers.a.mounts: must be `HOST:CONTAINER`"),
        (["command: [a]", "mounts: ['/a:/b:z']"], "5: mcp_servers.a.mounts: must be `HOST:CONTAINER`"),
        (["command: [a]", "mounts: ['/a/../b:/b']"], "5: mcp_servers.a.mounts: must be `HOST:CONTAINER`"),
        (["command: [a]", "tools: ['a b']"], "5: mcp_servers.a.tools[0]: must have the form"),
        (["command: [a]", "tool: [x]"], "5: mcp_servers.a.tool: unknown field; did you mean `tools`?"),
        (["command: [a]", "network: yes"], '5: mcp_servers.a.network: must be true or false, is the text "yes"'),
    ],
)  # fmt: skip
def test_problems_of_servers_say_where_and_what(fields: list[str], problem: str) -> None:
    [found] = problems_in("mcp_servers", "a", *fields)
    assert found.startswith(problem)
    assert SECRET not in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tools: [calculate]", "2: tools: must map names to declarations, is a list"),
        ("tools: {calculate: on}", "2: tools.calculate: is a mapping of fields; `{}` declares none of them"),
        ("mcp_servers: x", "2: mcp_servers: must map names to declarations, is a string"),
        ("mcp_servers: {a: [x]}", "2: mcp_servers.a: is a mapping of fields"),
        ("mcp_servers: {A: {command: [x]}}", "2: mcp_servers.A: the name must begin with a lower-case letter or a di"),
        ("mcp_servers: {a__b: {command: [x]}}", "2: mcp_servers.a__b: the name must begin with a lower-case letter o"),
        (f"mcp_servers: {{{'x' * 33}: {{command: [x]}}}}", f"2: mcp_servers.{'x' * 33}: the name must have at most 32"),
        ("mcp-servers: {}", "2: mcp-servers: unknown key; did you mean `mcp_servers`?"),
    ],
)
def test_problems_of_the_whole(text: str, problem: str) -> None:
    [found] = problems_of(f"models: {{}}\n{text}")
    assert found.startswith(f"desired-state/models.yaml:{problem}")


def test_a_key_names_tools_that_exist_or_may_come() -> None:
    sha = "a" * 64
    parsed = parse_text(
        f"models: {{}}\nkeys: {{ci: {{sha256: {sha}, tools: [current_time, weather__now, 'weather__*', '*']}}}}"
    )
    assert parsed.keys["ci"].tools == ["current_time", "weather__now", "weather__*", "*"]
    assert problems_of(
        f"models: {{}}\nkeys:\n  ci:\n    sha256: {sha}\n    tools: [calculat, weather, 'a b', 5]\n"
    ) == [
        "desired-state/models.yaml:5: keys.ci.tools[0]: there is no built-in tool `calculat`; did you mean "
        "`calculate`?",
        "desired-state/models.yaml:5: keys.ci.tools[1]: there is no built-in tool `weather`; a tool of an MCP server "
        "is named `SERVER__TOOL`",
        "desired-state/models.yaml:5: keys.ci.tools[2]: no tool can have such a name: `a b`; `*` stands for any text",
        "desired-state/models.yaml:5: keys.ci.tools[3]: must be a string, is a number: put it in quotes",
    ]


# When they come into force.


def after(*reads: tuple[str, float]) -> DebouncedState:
    """What is in force after reads of these texts at these times."""
    settled: DebouncedState | None = None
    for text, now in reads:
        settled = debounce(settled, parse_text(f"models: {{}}\n{text}"), now)
    assert settled is not None
    return settled


def test_a_tool_ends_at_once_and_a_server_when_two_reads_agree() -> None:
    both = ("tools: {calculate: {}}\nmcp_servers: {a: {command: [x]}, b: {command: [y]}}", 10.0)
    state = after(both, ("", 20.0))
    assert (state.tools.tools, sorted(state.tools.servers)) == ({}, ["a", "b"])
    assert (state.missing_servers, state.wake_at) == ({"a": 20.0, "b": 20.0}, 20.0 + CONFIRM_S)
    assert after(both, ("", 20.0), ("", 20.0 + CONFIRM_S)) == DebouncedState({}, {})


def test_broken_files_take_nothing_away() -> None:
    good, broken = ("tools: {calculate: {}}\nmcp_servers: {a: {command: [x]}}", 1.0), ("tools: [", 9.0)
    state = after(good, ("", 2.0), broken)
    assert (sorted(state.tools.servers), state.wake_at) == (["a"], None)
    assert after(good, broken).tools == after(good).tools


# Between versions.


def test_a_table_survives_the_wire_and_shows_no_secret() -> None:
    parsed = parse_text(ALL)
    table = RoutingTable(
        instance="i",
        stamp=Stamp(epoch=1, seq=1),
        tools=build_tools(parsed.tools.tools),
        mcp_servers=build_mcp_servers(parsed.tools.servers, {}),
    )
    assert SECRET not in repr(table)
    assert RoutingTable.model_validate_json(table.model_dump_json()) == table


def test_a_table_of_an_older_controller_permits_no_tool_and_what_a_newer_one_adds_is_ignored() -> None:
    key = {"name": "ci", "sha256": "a" * 64, "tenant": "ci"}
    old = {"kind": "table", "instance": "i", "stamp": {"epoch": 1, "seq": 1}, "keys": [key]}
    table = RoutingTable.model_validate_json(json.dumps(old))
    assert (table.tools, table.mcp_servers, table.keys[0].tools) == ((), (), ())
    route = ToolRoute.model_validate({"name": "x", "later": 1})
    server = McpServerRoute.model_validate({"name": "x", "url": None, "later": 1})
    assert (route, server) == (ToolRoute(name="x"), McpServerRoute(name="x", url=None))


def test_definitions_are_immutable_and_strict() -> None:
    with pytest.raises(ValueError, match="frozen"):
        PlainTool().timeout_s = 5.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="valid number"):
        McpServer(url="http://a/", timeout_s="5")  # type: ignore[arg-type]
