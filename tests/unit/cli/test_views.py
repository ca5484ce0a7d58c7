"""`plan --diff`, `drift`, `history`, `gpu` and `logs` against the admin API on a real unix socket."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from cli.history import entry_words
from cli.output import ExitCode, print_error, time_words
from contract.admin import (
    MASKED,
    Drift,
    DriftItem,
    DryRun,
    FieldChange,
    GpuMemory,
    GpuMemoryAnswer,
    GpuModel,
    KeyChange,
    ModelChange,
    ToolChange,
)
from contract.errors import RoundhouseError
from contract.status import BlockedView, GpuProcessView, ModelState, PlanView, Problem, UnreadGpuStatus
from tests.fakes.fake_control_api import FakeControlApi, entry
from tests.support.cli import Cli, Output, started
from tests.support.wait import until

FILES = {"models.yaml": "models: {}\n", "local.yaml": "models: {chat: {replicas: 2}}\n"}
CHAT = ModelChange(
    model="chat",
    change="edited",
    fields=[
        FieldChange(field="llama_server_n_ctx", before=4096, after=8192),
        FieldChange(field="aliases", before=None, after=["ä"]),
        FieldChange(field="env.TOKEN", before=MASKED, after=MASKED),
    ],
    effect="restart",
    restarts=["chat/0", "chat/1"],
    ends=["llama_server_n_ctx"],
)
OLD = ModelChange(model="old", change="removed", fields=[], effect="stop", restarts=[], ends=[])


def dry_run(*blocked: str, **changes: Any) -> DryRun:
    """What files without problems would do."""
    views = [BlockedView(model=name, index=0, reason="no GPU") for name in blocked]
    return DryRun(
        **{"ok": True, "problems": [], "changes": [], "plan": PlanView(generation=4, blocked=views), **changes}
    )


@pytest.fixture
def diff(tmp_path: Path) -> list[str]:
    """The arguments that propose `FILES`."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return ["plan", *(word for name in FILES for word in ("--diff", str(tmp_path / name)))]


@pytest.mark.parametrize(
    ("change", "code", "out"),
    [
        (
            dry_run("chat", "untouched", changes=[CHAT, OLD]),
            ExitCode.PENDING,
            "BLOCKED      REASON\n"
            "chat/0       no GPU\n"
            "untouched/0  no GPU\n"
            "chat: edited, BLOCKED for chat/0; once that is over, restarts chat/0, chat/1\n"
            "  llama_server_n_ctx: 4096 -> 8192\n"
            '  aliases: null -> ["ä"]\n'
            "  env.TOKEN: changed (secret)\n"
            "  ends what an operator set: llama_server_n_ctx\n"
            "old: removed, stops\n",
        ),
        (dry_run(), ExitCode.DONE, "nothing would change\n"),
        (
            dry_run("chat"),
            ExitCode.DONE,
            "nothing would change, and this would stay blocked:\nBLOCKED  REASON\nchat/0   no GPU\n",
        ),
        (
            dry_run(
                keys=[
                    KeyChange(key="ci", change="edited", fields=["sha256", "weight"]),
                    KeyChange(key="old", change="removed", fields=["sha256"]),
                ]
            ),
            ExitCode.PENDING,
            "key ci: edited: sha256, weight\nkey old: removed\n",
        ),
        (
            dry_run(
                tools=[
                    ToolChange(kind="tool", name="calculate", change="added", fields=[]),
                    ToolChange(kind="mcp_server", name="a", change="edited", fields=["headers", "url"]),
                    ToolChange(kind="mcp_server", name="b", change="removed", fields=["command"]),
                ]
            ),
            ExitCode.PENDING,
            "tool calculate: added\nMCP server a: edited: headers, url\nMCP server b: removed\n",
        ),
    ],
    ids=["models", "nothing", "still blocked", "keys", "tools"],
)
async def test_what_proposed_files_would_change(
    api: FakeControlApi, cli: Cli, diff: list[str], change: DryRun, code: ExitCode, out: str
) -> None:
    api.dry_run = change
    assert await cli(*diff) == Output(code, out)
    assert api.requests == [("dry_run", {"files": FILES})]
    as_json = await cli(*diff, "--json")
    assert (as_json.code, DryRun.model_validate_json(as_json.out)) == (code, change)


async def test_proposed_files_with_problems(api: FakeControlApi, cli: Cli, diff: list[str]) -> None:
    given = diff[2]
    problem = Problem(file="/srv/desired/models.yaml", line=1, message="not YAML 1.2")
    other = Problem(file="/srv/desired/other.yaml", line=2, message="bad")
    api.dry_run = DryRun(ok=False, problems=[problem, other], changes=[], plan=None)
    assert await cli(*diff) == Output(
        ExitCode.FAILED,
        f"{given}:1: not YAML 1.2\n/srv/desired/other.yaml:2: bad\nwith these problems what is in force would stay\n",
    )
    as_json = await cli(*diff, "--json")
    assert as_json.code == ExitCode.FAILED
    assert [each["file"] for each in as_json.json["problems"]] == [given, other.file]


async def test_files_that_cannot_be_proposed(api: FakeControlApi, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    (tmp_path / "b.yaml").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").touch()
    wrong_name = "no desired-state file has such a name (*.yaml, *.yml, *.json)"
    for names, code, line in (
        (["none.yaml"], ExitCode.FAILED, f"{tmp_path}/none.yaml cannot be read: No such file or directory"),
        (["a.yaml"], ExitCode.FAILED, f"{tmp_path}/a.yaml is not UTF-8: invalid start byte at byte 0"),
        (["notes.txt"], ExitCode.USAGE, f"--diff {tmp_path}/notes.txt: {wrong_name}"),
        ([".b.yaml"], ExitCode.USAGE, f"--diff {tmp_path}/.b.yaml: {wrong_name}"),
        (["schema.json"], ExitCode.USAGE, f"--diff {tmp_path}/schema.json: {wrong_name}"),
        (["b.yaml", "sub/b.yaml"], ExitCode.USAGE, f"--diff {tmp_path}/sub/b.yaml: there is another file b.yaml"),
    ):
        arguments = [word for name in names for word in ("--diff", str(tmp_path / name))]
        assert await cli("plan", *arguments) == Output(code, err=f"roundhouse: {line}\n")
    assert api.requests == []


async def test_drift_is_shown_by_field(api: FakeControlApi, cli: Cli) -> None:
    assert await cli("drift") == Output(ExitCode.DONE, "no drift: what runs is what is declared\n")
    item = DriftItem(
        model="chat",
        replica="chat/0",
        kind="override",
        field="gguf_n_ctx",
        declared=4096,
        running="x" * 100,
        since=2000.0,
        message="a load sets it. Last log lines:\nmore",
    )
    running: list[JsonValue] = ["--ctx", 8, True, {"a": "b"}]
    gone = DriftItem(
        model="old", replica=None, kind="arguments", declared=None, running=running, since=2000.0, message="m" * 200
    )
    api.drift = Drift(items=[item, gone], checked_at=1000.0)
    shown = await cli("drift")
    since = time_words(2000.0)
    assert shown.code == ExitCode.PENDING
    assert [re.split(r" {2,}", line) for line in shown.lines] == [
        ["MODEL", "REPLICA", "KIND", "FIELD", "DECLARED", "RUNNING", "SINCE", "MESSAGE"],
        ["chat", "chat/0", "override", "gguf_n_ctx", "4096", "x" * 57 + "...", since, "a load sets it. ..."],
        ["old", "-", "arguments", "-", "-", "--ctx 8 true a=b", since, "m" * 117 + "..."],
    ]
    as_json = await cli("drift", "--json")
    assert (as_json.code, Drift.model_validate_json(as_json.out)) == (ExitCode.PENDING, api.drift)


async def test_history_is_read_page_by_page(api: FakeControlApi, cli: Cli) -> None:
    api.journal = [entry(n, "statement", actor="cli") for n in range(1, 6)]
    shown = await cli("history", "--limit", "3")
    assert shown.code == ExitCode.DONE
    assert shown.lines[0].split() == ["ID", "TIME", "KIND", "MODEL", "WHO", "WHAT"]
    assert shown.lines[1] == f"5   {time_words(1005.0)}  statement  chat   cli  thing 5"
    assert [line.split()[0] for line in shown.lines[1:]] == ["5", "4", "3"]
    queries = [query for what, query in api.requests if what == "history"]
    assert queries == [{"limit": "3"}, {"limit": "1", "before": "4"}]


async def test_history_of_one_model_and_kind(api: FakeControlApi, cli: Cli) -> None:
    api.journal = [entry(1, "failure", model="other"), entry(2, "statement"), entry(3, "failure")]
    shown = await cli("history", "chat", "--kind", "failure", "--kind", "file", "--json")
    assert (shown.code, [each["id"] for each in shown.json["entries"]]) == (ExitCode.DONE, [3])
    api.journal = []
    assert await cli("history", "chat") == Output(ExitCode.DONE, "nothing is recorded\n")
    line = "roundhouse: no model gone is declared\n"
    assert await cli("history", "gone") == Output(ExitCode.FAILED, err=line)
    assert await cli("history", "gone", "--json") == Output(ExitCode.FAILED, '{\n  "entries": []\n}\n', line)
    api.journal = [entry(1, "file", model="gone")]
    shown = await cli("history", "gone")
    assert (shown.code, shown.err) == (ExitCode.DONE, "")


@pytest.mark.parametrize(
    ("message", "details", "words"),
    [
        (
            "loaded by cli",
            {"action": "load", "params": {"gguf_n_ctx": 8192, "gguf_type_k": None}, "replicas": 2},
            "loaded by cli, with gguf_n_ctx=8192, gguf_type_k=null, replicas=2",
        ),
        ("loaded by cli: n_ctx=1", {"action": "load", "params": {"n_ctx": 1}}, "loaded by cli: n_ctx=1"),
        ("loaded by\ncli", {"action": "load", "params": {}}, "loaded by | cli"),
        ("unloaded by cli", {"action": "unload", "hold": True}, "unloaded by cli"),
    ],
)
def test_words_for_a_load_in_the_history(message: str, details: dict[str, JsonValue], words: str) -> None:
    assert entry_words(entry(1, "statement", message=message, details=details)) == words


async def test_gpus_are_shown_with_their_memory(api: FakeControlApi, cli: Cli) -> None:
    card = GpuMemory(
        index=0,
        name="NVIDIA H200",
        used_mib=40,
        total_mib=100,
        used_over_total="40MiB / 100MiB",
        uuid="GPU-1",
        claimed_mib=30,
        utilization_percent=97,
        processes=[
            GpuProcessView(pid=41, name="python3", used_mib=30, replica="rh-i-chat-0-h-1"),
            GpuProcessView(pid=7, name=None, used_mib=None, replica=None),
        ],
    )
    instance = GpuMemory(
        index=1, name="A30", used_mib=0, total_mib=9, used_over_total="0MiB / 9MiB", uuid="MIG-2", claimed_mib=0, mig=3
    )
    model = GpuModel(
        name="chat",
        runtime_state=ModelState.LOADED,
        is_loaded=True,
        configured_target_inflight=1,
        effective_target_inflight=1,
        vram_estimate_mib=12,
        vram_estimate_replica_count=2,
        vram_estimate_source="declared",
        vram_observed_mib=16,
        vram_warning="`vram_mib` declares 6 MiB of each GPU, and a replica was seen to take 8",
    )
    api.memory = GpuMemoryAnswer(
        gpus=[card, instance], models=[model], error=None, driver_version="570.195.03", cuda_version="12.8"
    )
    assert await cli("gpu") == Output(
        ExitCode.DONE,
        "GPU  NAME         USED            CLAIMED  BUSY  UUID\n"
        "0    NVIDIA H200  40MiB / 100MiB  30MiB    97%   GPU-1\n"
        "1:3  A30          0MiB / 9MiB     0MiB     -     MIG-2\n"
        "GPU  PID  PROCESS  USED   REPLICA\n"
        "0    41   python3  30MiB  rh-i-chat-0-h-1\n"
        "0    7    -        -      -\n"
        "MODEL  STATE   ESTIMATE  REPLICAS  FROM      MEASURED\n"
        "chat   loaded  12MiB     2         declared  16MiB\n"
        "chat: `vram_mib` declares 6 MiB of each GPU, and a replica was seen to take 8\n"
        "NVIDIA driver 570.195.03, which runs CUDA up to 12.8\n",
    )
    assert GpuMemoryAnswer.model_validate_json((await cli("gpu", "--json")).out) == api.memory


async def test_gpus_that_cannot_be_read(api: FakeControlApi, cli: Cli) -> None:
    assert await cli("gpu") == Output(ExitCode.DONE, "no GPUs: NVML is not installed\n")
    api.memory = GpuMemoryAnswer(gpus=[], models=[], error="all GPUs are in MIG mode", driver_version="390.48")
    out = "no GPUs: all GPUs are in MIG mode\nNVIDIA driver 390.48\n"
    assert await cli("gpu") == Output(ExitCode.DONE, out), "a driver that does not tell its CUDA"
    words = "GPU 1 (GPU-2, PCI 0000:0a:00.0) is left out: it has fallen off the bus"
    lost = UnreadGpuStatus(index=1, uuid="GPU-2", reason="it has fallen off the bus", description=words, claimed_mib=90)
    nameless = UnreadGpuStatus(index=2, reason="lost", description="GPU 2 is left out: lost")
    api.memory = GpuMemoryAnswer(gpus=[], unread_gpus=[lost, nameless], models=[], error="the GPUs cannot be read now")
    lines = f"{words}; 90 MiB claimed\nGPU 2 is left out: lost\n"
    assert await cli("gpu") == Output(ExitCode.DONE, f"no GPUs: the GPUs cannot be read now\n{lines}")
    shown = await cli("top", "--gateway", "http://127.0.0.1:9")
    assert (shown.code, shown.out.startswith(lines)) == (ExitCode.DONE, True)


async def test_logs_are_shown_as_they_come(api: FakeControlApi, cli: Cli) -> None:
    api.log = [b"first\nsec", "ö".encode()[:1], "ö".encode()[1:], b"nd\nwithout an end"]
    api.changed.set()
    shown = await cli("logs", "chat", "--replica", "chat-0", "--lines", "2")
    assert shown == Output(ExitCode.DONE, "first\nsecönd\nwithout an end")
    assert api.requests == [("logs", {"name": "chat", "replica": "chat-0", "lines": "2"})]
    lines = [json.loads(line) for line in (await cli("logs", "chat", "--json")).lines]
    assert lines == [{"line": "first"}, {"line": "secönd"}, {"line": "without an end"}]


@pytest.mark.parametrize(
    ("arguments", "err"),
    [
        ([], "roundhouse: no log: no engine of chat has written anything yet\n"),
        (["--json"], "roundhouse: no log: no engine of chat has written anything yet\n"),
        (["--replica", "chat-0"], "roundhouse: no log: chat-0 has not written anything yet\n"),
        (["--lines", "0"], ""),
    ],
)
async def test_logs_with_nothing_written(api: FakeControlApi, cli: Cli, arguments: list[str], err: str) -> None:
    api.log = []
    assert await cli("logs", "chat", *arguments) == Output(ExitCode.DONE, err=err)


async def test_logs_of_a_replica_that_is_not_there(api: FakeControlApi, cli: Cli) -> None:
    api.refusal = RoundhouseError("unknown_replica", "'chat' has no replica 'x'.", param="replica")
    assert await cli("logs", "chat", "--replica", "x") == Output(
        ExitCode.FAILED,
        err="roundhouse: the controller refused: 'chat' has no replica 'x'. "
        "roundhouse status --json names the replicas.\n",
    )


@pytest.mark.parametrize(
    ("arguments", "first", "rest"),
    [((), b"first\n", b"unfinished"), (("--json",), b'{"line": "first"}\n', b'{"line": "unfinished"}\n')],
)
async def test_followed_logs_come_at_once_and_end_with_ctrl_c(
    api: FakeControlApi, arguments: tuple[str, ...], first: bytes, rest: bytes
) -> None:
    api.log = [b"first\nunfinished", "then"]
    program = await started(api, "logs", "chat", "--follow", *arguments)
    assert program.stdout is not None
    async with asyncio.timeout(60):
        assert await program.stdout.readline() == first
    assert api.requests == [("logs", {"name": "chat", "lines": "100", "follow": "true"})]
    program.send_signal(signal.SIGINT)
    assert await program.communicate() == (rest, b"")
    assert program.returncode == ExitCode.DONE


async def test_logs_that_break_off_are_an_error(api: FakeControlApi) -> None:
    api.log = [b"first\n", "then"]
    program = await started(api, "logs", "chat", "--follow")
    assert program.stdout is not None
    async with asyncio.timeout(60):
        await program.stdout.readline()
    await api.close()
    _, err = await program.communicate()
    assert program.returncode == ExitCode.NO_CONTROLLER
    assert err.decode() == (
        f"roundhouse: the controller at {api.url} went away before the end of its answer (the connection ended)\n"
    )


async def test_requests_name_the_command_line_as_their_actor(api: FakeControlApi, cli: Cli) -> None:
    await cli("gpu")
    await until("it was asked", lambda: api.actors)
    assert api.actors[0].startswith("command line")


def test_on_a_terminal_code_is_bold_and_has_no_backticks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_error("`roundhouse up` starts one")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    print_error("`roundhouse up` starts one")
    piped, shown = capsys.readouterr().err.splitlines()
    assert piped == "roundhouse: `roundhouse up` starts one"
    assert shown == "roundhouse: \x1b[1mroundhouse up\x1b[0m starts one"
