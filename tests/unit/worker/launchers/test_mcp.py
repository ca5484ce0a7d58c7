"""The command line and the environment of the bridge to an MCP server, and what is said of its end."""

from __future__ import annotations

import signal

import pytest

from worker.launchers.child_process import Ending
from worker.launchers.mcp import Options, explain_ending, find_error, parse_arguments, server_environment

FLAGS = ("--host", "127.0.0.1", "--port", "4242", "--name", "time")
OPTIONS = Options("127.0.0.1", 4242, "time", (), ("mcp-server-time",))


def test_everything_behind_the_dashes_is_the_servers_command() -> None:
    parsed = parse_arguments([*FLAGS, "--pass-env", "A", "--pass-env", "B", "--", "npx", "-y", "--", "--port", "1"])
    assert parsed == Options("127.0.0.1", 4242, "time", ("A", "B"), ("npx", "-y", "--", "--port", "1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*FLAGS], "the server's command is missing after `--`"),
        ([*FLAGS, "--"], "the server's command is missing after `--`"),
        ([*FLAGS, "--shell", "--", "x"], "unknown argument --shell"),
        ([*FLAGS[:4], "--", "x"], "the following arguments are required: --name"),
        ([*FLAGS, "--pass-env", "--", "x"], "argument --pass-env: expected one argument"),
        ([*FLAGS, "--help", "--", "x"], "unknown argument --help"),
        (["--host", "::1", "--port", "0", "--name", "n", "--", "x"], "a port is a number from 1 to 65535"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("`", ".")):
        parse_arguments(arguments)


def test_the_server_gets_what_is_named_the_locale_and_the_marks_of_its_replica() -> None:
    environment = {
        **{name: name for name in ("A", "B", "LANG", "LC_ALL", "TZ", "ROUNDHOUSE_START", "ROUNDHOUSE_REPLICA")},
        **dict.fromkeys(("ROUNDHOUSE_ENGINE_TOKEN", "HF_TOKEN", "PYTHONPATH", "LD_LIBRARY_PATH"), "secret"),
    }
    assert server_environment(environment, ("A",)) == {
        name: name for name in ("A", "LANG", "LC_ALL", "TZ", "ROUNDHOUSE_START", "ROUNDHOUSE_REPLICA")
    }


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Ending(True, True, None, "x", 0), (0, None)),
        (Ending(False, True, None, "the MCP server x ended", 1), (1, "the MCP server x ended")),
        (
            Ending(False, True, signal.SIGKILL, None),
            (1, "the bridge of the MCP server mcp-server-time ended (SIGKILL)"),
        ),
        (Ending(False, False, None, None, 5), (1, "the bridge of the MCP server mcp-server-time ended (code 5)")),
    ],
)
def test_the_end_is_explained(ending: Ending, outcome: tuple[int, str | None]) -> None:
    assert explain_ending(ending, OPTIONS) == outcome


def test_only_the_bridges_own_lines_are_reasons() -> None:
    assert find_error("roundhouse mcp: the MCP server x ended\n") == "the MCP server x ended"
    assert find_error("ERROR of the server: roundhouse mcp: no\n") is None
