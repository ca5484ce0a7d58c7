"""`plan --diff`, `drift`, `history`, `gpu` and `logs` against the admin API on a real unix socket."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from controller.cli.exit_codes import ExitCode
from controller.cli.history import entry_words
from controller.cli.output import time_words
from controller.schema.admin import (
    MASKED,
    Drift,
    DriftItem,
    DryRun,
    FieldChange,
    GpuMemory,
    GpuMemoryAnswer,
    GpuModel,
    ModelChange,
)
from controller.schema.errors import RoundhouseError
from controller.schema.status import BlockedView, GpuProcessView, ModelState, PlanView, Problem, UnreadGpuStatus
from tests.fakes.fake_control_api import FakeControlApi, entry
from tests.support.cli import roundhouse, started
from tests.support.wait import until


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[FakeControlApi]:
    async with FakeControlApi(folder / "controller.sock") as fake:
        yield fake


async def test_what_proposed_files_would_change(
    api: FakeControlApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.yaml").write_text("models: {}\n")
    (tmp_path / "local.yaml").write_text("models: {chat: {replicas: 2}}\n")
    blocked = [BlockedView(model=name, index=0, reason="no GPU") for name in ("chat", "untouched")]
    plan = PlanView(generation=4, blocked=blocked)
    chat = ModelChange(
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
    gone = ModelChange(model="old", change="removed", fields=[], effect="stop", restarts=[], ends=[])
    api.dry_run = DryRun(ok=True, problems=[], changes=[chat, gone], plan=plan)
    arguments = ("--diff", str(tmp_path / "models.yaml"), "--diff", str(tmp_path / "local.yaml"))
    assert await roundhouse(api, "plan", *arguments) == ExitCode.PENDING
    files = {"models.yaml": "models: {}\n", "local.yaml": "models: {chat: {replicas: 2}}\n"}
    assert api.requests == [("dry_run", {"files": files})]
    assert capsys.readouterr().out == (
        "chat: edited, restarts chat/0, chat/1\n"
        "  llama_server_n_ctx: 4096 -> 8192\n"
        '  aliases: null -> ["ä"]\n'
        "  env.TOKEN: changed (secret)\n"
        "  ends what an operator set: llama_server_n_ctx\n"
        "old: removed, stops\n"
        "BLOCKED      REASON\n"
        "chat/0       no GPU\n"
        "untouched/0  no GPU\n"
    )
    assert await roundhouse(api, "plan", *arguments, "--json") == ExitCode.PENDING
    assert DryRun.model_validate_json(capsys.readouterr().out) == api.dry_run


async def test_proposed_files_that_change_nothing(
    api: FakeControlApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.yaml").write_text("models: {}\n")
    assert await roundhouse(api, "plan", "--diff", str(tmp_path / "models.yaml")) == ExitCode.DONE
    assert capsys.readouterr().out == "nothing would change\n"


async def test_proposed_files_that_change_nothing_of_what_is_blocked(
    api: FakeControlApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.yaml").write_text("models: {}\n")
    blocked = [BlockedView(model="chat", index=1, reason="model_path: gone.gguf is missing")]
    api.dry_run = DryRun(ok=True, problems=[], changes=[], plan=PlanView(generation=4, blocked=blocked))
    assert await roundhouse(api, "plan", "--diff", str(tmp_path / "models.yaml")) == ExitCode.DONE
    assert capsys.readouterr().out == (
        "nothing would change, and this would stay blocked:\n"
        "BLOCKED  REASON\n"
        "chat/1   model_path: gone.gguf is missing\n"
    )


async def test_proposed_files_with_problems(
    api: FakeControlApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.yaml").write_text("models: [\n")
    problem = Problem(file="/srv/desired/models.yaml", line=1, message="not YAML 1.2")
    other = Problem(file="/srv/desired/other.yaml", line=2, message="bad")
    api.dry_run = DryRun(ok=False, problems=[problem, other], changes=[], plan=None)
    given = str(tmp_path / "models.yaml")
    assert await roundhouse(api, "plan", "--diff", given) == ExitCode.FAILED
    assert capsys.readouterr().out == (
        f"{given}:1: not YAML 1.2\n/srv/desired/other.yaml:2: bad\nwith these problems what is in force would stay\n"
    )
    assert await roundhouse(api, "plan", "--diff", given, "--json") == ExitCode.FAILED
    assert [each["file"] for each in json.loads(capsys.readouterr().out)["problems"]] == [given, other.file]


async def test_files_that_cannot_be_proposed(
    api: FakeControlApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    (tmp_path / "b.yaml").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").touch()
    assert await roundhouse(api, "plan", "--diff", str(tmp_path / "none.yaml")) == ExitCode.FAILED
    assert await roundhouse(api, "plan", "--diff", str(tmp_path / "a.yaml")) == ExitCode.FAILED
    for name in ("notes.txt", ".b.yaml", "schema.json"):
        assert await roundhouse(api, "plan", "--diff", str(tmp_path / name)) == ExitCode.USAGE
    twice = ("--diff", str(tmp_path / "b.yaml"), "--diff", str(tmp_path / "sub" / "b.yaml"))
    assert await roundhouse(api, "plan", *twice) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"roundhouse: {tmp_path}/none.yaml cannot be read: No such file or directory\n"
        f"roundhouse: {tmp_path}/a.yaml is not UTF-8: invalid start byte at byte 0\n"
        f"roundhouse: --diff {tmp_path}/notes.txt: no desired-state file has such a name (*.yaml, *.yml, *.json)\n"
        f"roundhouse: --diff {tmp_path}/.b.yaml: no desired-state file has such a name (*.yaml, *.yml, *.json)\n"
        f"roundhouse: --diff {tmp_path}/schema.json: no desired-state file has such a name (*.yaml, *.yml, *.json)\n"
        f"roundhouse: --diff {tmp_path}/sub/b.yaml: there is another file b.yaml\n"
    )
    assert api.requests == []


async def test_no_drift(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "drift") == ExitCode.DONE
    assert capsys.readouterr().out == "no drift: what runs is what is declared\n"


async def test_drift(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
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
    gone = DriftItem(
        model="old",
        replica=None,
        kind="arguments",
        declared=None,
        running=["--ctx", 8, True, {"a": "b"}],
        since=2000.0,
        message="m" * 200,
    )
    api.drift = Drift(items=[item, gone], checked_at=1000.0)
    assert await roundhouse(api, "drift") == ExitCode.PENDING
    header, line, other = capsys.readouterr().out.splitlines()
    assert header.split() == ["MODEL", "REPLICA", "KIND", "FIELD", "DECLARED", "RUNNING", "SINCE", "MESSAGE"]
    since = time_words(2000.0)
    cells = ["chat", "chat/0", "override", "gguf_n_ctx", "4096", "x" * 57 + "...", since, "a load sets it. ..."]
    assert re.split(r" {2,}", line) == cells
    cells = ["old", "-", "arguments", "-", "-", "--ctx 8 true a=b", since, "m" * 117 + "..."]
    assert re.split(r" {2,}", other) == cells
    assert await roundhouse(api, "drift", "--json") == ExitCode.PENDING
    assert Drift.model_validate_json(capsys.readouterr().out) == api.drift


async def test_history_is_read_page_by_page(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.journal = [entry(n, "statement", actor="cli") for n in range(1, 6)]
    assert await roundhouse(api, "history", "--limit", "3") == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ID", "TIME", "KIND", "MODEL", "WHO", "WHAT"]
    assert lines[1] == f"5   {time_words(1005.0)}  statement  chat   cli  thing 5"
    assert [line.split()[0] for line in lines[1:]] == ["5", "4", "3"]
    assert [query for what, query in api.requests if what == "history"] == [
        {"limit": "3"},
        {"limit": "1", "before": "4"},
    ]


async def test_history_of_one_model_and_kind(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.journal = [entry(1, "failure", model="other"), entry(2, "statement"), entry(3, "failure")]
    assert await roundhouse(api, "history", "chat", "--kind", "failure", "--kind", "file", "--json") == ExitCode.DONE
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["entries"]] == [3]
    api.journal = []
    assert await roundhouse(api, "history", "chat") == ExitCode.DONE
    assert capsys.readouterr() == ("nothing is recorded\n", "")


@pytest.mark.parametrize(("arguments", "out"), [([], ""), (["--json"], '{\n  "entries": []\n}\n')])
async def test_history_of_a_model_that_there_is_not(
    api: FakeControlApi, arguments: list[str], out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await roundhouse(api, "history", "gone", *arguments) == ExitCode.FAILED
    assert capsys.readouterr() == (out, "roundhouse: no model gone is declared\n")
    api.journal = [entry(1, "file", model="gone")]
    assert await roundhouse(api, "history", "gone") == ExitCode.DONE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("said", "details", "words"),
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
def test_what_a_load_set_is_told(said: str, details: dict[str, JsonValue], words: str) -> None:
    assert entry_words(entry(1, "statement", message=said, details=details)) == words


async def test_gpus(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert await roundhouse(api, "gpu") == ExitCode.DONE
    assert capsys.readouterr().out == (
        "GPU  NAME         USED            CLAIMED  BUSY  UUID\n"
        "0    NVIDIA H200  40MiB / 100MiB  30MiB    97%   GPU-1\n"
        "1:3  A30          0MiB / 9MiB     0MiB     -     MIG-2\n"
        "GPU  PID  PROCESS  USED   REPLICA\n"
        "0    41   python3  30MiB  rh-i-chat-0-h-1\n"
        "0    7    -        -      -\n"
        "MODEL  STATE   ESTIMATE  REPLICAS  FROM      MEASURED\n"
        "chat   loaded  12MiB     2         declared  16MiB\n"
        "chat: `vram_mib` declares 6 MiB of each GPU, and a replica was seen to take 8\n"
        "NVIDIA driver 570.195.03, which runs CUDA up to 12.8\n"
    )
    assert await roundhouse(api, "gpu", "--json") == ExitCode.DONE
    assert GpuMemoryAnswer.model_validate_json(capsys.readouterr().out) == api.memory


async def test_a_driver_that_does_not_tell_its_cuda(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.memory = GpuMemoryAnswer(gpus=[], models=[], error="all GPUs are in MIG mode", driver_version="390.48")
    assert await roundhouse(api, "gpu") == ExitCode.DONE
    assert capsys.readouterr().out == "no GPUs: all GPUs are in MIG mode\nNVIDIA driver 390.48\n"


async def test_gpus_that_cannot_be_read(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    words = "GPU 1 (GPU-2, PCI 0000:0a:00.0) is left out: it has fallen off the bus"
    lost = UnreadGpuStatus(index=1, uuid="GPU-2", reason="it has fallen off the bus", description=words, claimed_mib=90)
    nameless = UnreadGpuStatus(index=2, reason="lost", description="GPU 2 is left out: lost")
    api.memory = GpuMemoryAnswer(gpus=[], unread_gpus=[lost, nameless], models=[], error="the GPUs cannot be read now")
    assert await roundhouse(api, "gpu") == ExitCode.DONE
    assert capsys.readouterr().out == (
        f"no GPUs: the GPUs cannot be read now\n{words}; 90 MiB claimed\nGPU 2 is left out: lost\n"
    )
    assert await roundhouse(api, "top", "--gateway", "http://127.0.0.1:9") == ExitCode.DONE
    assert capsys.readouterr().out.startswith(f"{words}; 90 MiB claimed\nGPU 2 is left out: lost\n")


async def test_no_gpus(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "gpu") == ExitCode.DONE
    assert capsys.readouterr().out == "no GPUs: NVML is not installed\n"


async def test_logs(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.log = [b"first\nsec", "ö".encode()[:1], "ö".encode()[1:], b"nd\nwithout an end"]
    api.changed.set()
    assert await roundhouse(api, "logs", "chat", "--replica", "chat-0", "--lines", "2") == ExitCode.DONE
    assert api.requests == [("logs", {"name": "chat", "replica": "chat-0", "lines": "2"})]
    assert capsys.readouterr().out == "first\nsecönd\nwithout an end"
    assert await roundhouse(api, "logs", "chat", "--json") == ExitCode.DONE
    assert [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()] == [
        "first",
        "secönd",
        "without an end",
    ]


@pytest.mark.parametrize(
    ("arguments", "err"),
    [
        ([], "roundhouse: no log: no engine of chat has written anything yet\n"),
        (["--json"], "roundhouse: no log: no engine of chat has written anything yet\n"),
        (["--replica", "chat-0"], "roundhouse: no log: chat-0 has not written anything yet\n"),
        (["--lines", "0"], ""),
    ],
)
async def test_logs_with_nothing_written(
    api: FakeControlApi, arguments: list[str], err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.log = []
    assert await roundhouse(api, "logs", "chat", *arguments) == ExitCode.DONE
    assert capsys.readouterr() == ("", err)


async def test_logs_of_what_is_not_there(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.refusal = RoundhouseError("unknown_replica", "'chat' has no replica 'x'.", param="replica")
    assert await roundhouse(api, "logs", "chat", "--replica", "x") == ExitCode.FAILED
    assert capsys.readouterr() == (
        "",
        "roundhouse: the controller refused: 'chat' has no replica 'x'. "
        "`roundhouse status --json` names the replicas.\n",
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


async def test_the_controller_is_told_who_asks(api: FakeControlApi) -> None:
    await roundhouse(api, "gpu")
    await until("it was asked", lambda: api.actors)
    assert api.actors[0].startswith("command line")
