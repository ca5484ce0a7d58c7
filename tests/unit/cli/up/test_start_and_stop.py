"""`up` before anything is started, the lines that it writes, and how long its programs get to end."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from cli.output import CommandError, ExitCode
from cli.up.command import check_models
from cli.up.run import (
    DEMO_MODELS,
    REAL_MODEL_LINE,
    choose_first_model,
    commands_line,
    has_only_demo,
    program_specs,
    try_line,
    without_servers,
)
from cli.up.supervisor import (
    GATEWAY_S,
    MARGIN_S,
    UP_GATEWAY_S,
    ProcessRecord,
    UpRecord,
    gateway_stop_timeout_s,
    listen_at,
    read_record,
    up_gateway_timeout_s,
    write_record,
)
from common.settings import KNOWN_VARIABLES, RETRIEVAL_VARIABLES, TRANSFERS_VARIABLES
from contract.model_reference import HubReference, parse_reference
from contract.status import ControllerStatus, ModelState, ModelStatus, StatementView
from controller.artifacts.model_roots import ModelRoots, split_folders
from controller.config.parse import parse_folder, read_folder
from controller.settings import ControllerSettings, url_of
from tests.support.cli import Output, Roundhouse
from tests.support.ports import free_port


def test_every_address_must_be_free() -> None:
    port = free_port()
    hosts = ["127.0.0.2", "127.0.0.3"]
    for wanted in (port, 0):
        listeners = listen_at(hosts, wanted)
        assert [each.getsockname()[0] for each in listeners] == hosts
        [bound] = {each.getsockname()[1] for each in listeners}
        assert bound == (wanted or bound)
        with socket.create_connection(("127.0.0.3", bound)):
            pass  # it waits to be accepted, and is not refused
        for each in listeners:
            each.close()
    with socket.create_server(("127.0.0.3", port)), pytest.raises(CommandError) as raised:
        listen_at(hosts, port)
    line = f"cannot listen on 127.0.0.3:{port}: Address already in use; choose another with --host or --port"
    assert (raised.value.args[0], raised.value.code) == (line, ExitCode.ADDRESS_TAKEN)


def test_a_name_that_is_none_is_a_matter_of_the_option() -> None:
    with pytest.raises(CommandError) as raised:
        listen_at(["127.0.0.1", "no-such-host.invalid"], 0)
    assert raised.value.args[0].startswith("cannot listen on no-such-host.invalid: ")
    assert raised.value.args[0].endswith("; --host names the address")
    assert raised.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("value", "grace_s"),
    [("7.5", 7.5), ("0", 0), *((value, GATEWAY_S) for value in ("", "x", "inf", "nan", "-1"))],
)
def test_the_gateways_time_is_its_grace_and_a_margin(
    value: str, grace_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_SHUTDOWN_GRACE_S", value)
    assert gateway_stop_timeout_s() == grace_s + MARGIN_S
    assert up_gateway_timeout_s() == grace_s + UP_GATEWAY_S


# Before anything is started.


def test_a_side_program_gets_the_settings_of_no_other_program() -> None:
    settings = ControllerSettings(retrieval=True, downloads="on")
    of_programs = {"retrieval": RETRIEVAL_VARIABLES, "transfers": TRANSFERS_VARIABLES}
    started = {each.name: set(each.env) for each in program_specs(settings, dict.fromkeys(KNOWN_VARIABLES, "x"))}
    assert {name: started[name] & KNOWN_VARIABLES for name in of_programs} == of_programs


def test_a_taken_port_is_one_line_and_nothing_is_started(folder: Path, roundhouse: Roundhouse) -> None:
    (folder / "models.yaml").write_text("models: {}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = roundhouse("up", "--desired", str(folder), "--state", str(folder / "state"), "--port", str(port))
    line = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --host or --port"
    assert refused == Output(ExitCode.ADDRESS_TAKEN, err=f"roundhouse: {line}\n")
    assert not (folder / "state" / "up.json").exists()


def test_folders_that_are_missing_or_cannot_be_made_are_one_line(folder: Path, roundhouse: Roundhouse) -> None:
    state = folder / "state"
    line = (
        f"roundhouse: there is no folder {folder}/none; --desired or ROUNDHOUSE_DESIRED names the folder of the "
        "desired-state files\n"
    )
    assert roundhouse("up", "--desired", str(folder / "none"), "--state", str(state)) == (ExitCode.USAGE, "", line)
    models = roundhouse("up", "--desired", str(folder), "--state", str(state), "--models", f"{folder}/none,{folder}")
    hint = "--models or ROUNDHOUSE_MODELS names the folders of model files"
    line = f"roundhouse: there is no folder {folder}/none; {hint}\n"
    assert models == (ExitCode.USAGE, "", line)
    assert not state.exists()
    state.touch()
    line = f"roundhouse: state folder {state}/below cannot be used: Not a directory\n"
    assert roundhouse("up", "--desired", str(folder), "--state", str(state / "below")) == (ExitCode.FAILED, "", line)


# The parts.


def test_the_home_folder_is_known_in_every_place_and_only_the_first_folder_must_exist(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "hub").mkdir()
    check_models(split_folders("~/hub,~"))
    check_models(split_folders("models,~/hub"))
    assert capsys.readouterr().err == ""
    check_models(split_folders("models,~/away"))
    assert capsys.readouterr().err == (
        f"roundhouse: there is no folder {folder}/away: the models in it cannot start until there is\n"
    )
    with pytest.raises(CommandError, match=f"there is no folder {folder}/away; --models"):
        check_models(split_folders("~/away,models"))


def test_the_model_to_try_is_the_one_with_the_best_api() -> None:
    embed = {"id": "e", "state": "loaded", "apis": ["/v1/embeddings"]}
    chat = {"id": "c", "state": "loaded", "apis": ["/v1/chat/completions", "/v1/completions"]}
    assert choose_first_model([embed, chat]) == ("c", "/v1/chat/completions")
    assert choose_first_model([embed, {**chat, "state": "loading"}]) is None, "the better one is coming"
    assert choose_first_model([embed, {**chat, "state": "failed"}]) == ("e", "/v1/embeddings")
    assert choose_first_model([chat, {**embed, "state": "loading"}]) == ("c", "/v1/chat/completions")
    assert (
        choose_first_model([{**chat, "state": "failed"}, {"id": "r", "state": "loaded", "apis": ["/v1/rerank"]}])
        is None
    )


def test_an_mcp_server_is_no_model_to_try() -> None:
    rows = [
        ModelStatus(
            name=name, backend=backend, state=ModelState.LOADED, wanted_replicas=1, loaded_replicas=1,
            statement=StatementView(kind="file", since=1.0, reason="enabled in the files"),
        )
        for name, backend in (("mcp:time", "mcp"), ("m", "stub"))
    ]  # fmt: skip
    status = ControllerStatus(instance="i", version="1", runtime="process", generation=1, models=rows)
    assert [model.name for model in without_servers(status).models] == ["m"]


def test_the_line_to_try_is_a_shell_command_with_json() -> None:
    line = try_line("org/chat:1", "/v1/chat/completions", "http://127.0.0.1:8080")
    command = line.partition("Try: ")[2]
    done = subprocess.run(
        ["bash", "-c", command.replace("curl ", "printf '%s\\n' ", 1)], capture_output=True, text=True, check=True
    )
    url, *_, body = done.stdout.splitlines()
    assert url == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(body)["model"] == "org/chat:1"


def test_only_who_has_the_demo_of_the_checkout_alone_is_led_to_a_real_model() -> None:
    folder = Path(__file__).parents[4] / "desired-state"
    assert set(parse_folder(read_folder(folder), ModelRoots((folder,))).definitions) == DEMO_MODELS
    declared = (["clockwork", "clockwork-embed"], ["clockwork"], ["clockwork", "gemma"], ["gemma"])
    assert [has_only_demo(names) for names in declared] == [True, True, False, False]


@pytest.mark.parametrize(
    ("program", "in_checkout", "line"),
    [
        ("/srv/r/.venv/bin/roundhouse", False, "Other commands: `.venv/bin/roundhouse status` and so on."),
        ("/opt/bin/roundhouse", False, "Other commands: `/opt/bin/roundhouse status` and so on."),
        (
            "/srv/a b/.venv/bin/roundhouse",
            True,
            "Other commands: `'/srv/a b/.venv/bin/roundhouse' status` and so on; `make install-launcher` puts"
            " `roundhouse` on PATH.",
        ),
    ],
)
def test_the_line_on_other_commands_names_the_program(program: str, in_checkout: bool, line: str) -> None:
    assert commands_line(Path(program), Path("/srv/r"), in_checkout=in_checkout) == line


def test_the_line_that_leads_to_a_real_model_is_a_command_that_is_understood(
    tmp_path: Path, roundhouse: Roundhouse
) -> None:
    written = re.search(r"`roundhouse (pull (\S+) .*)`", REAL_MODEL_LINE)
    assert written is not None
    reference = parse_reference(written.group(2))
    assert (isinstance(reference, HubReference) and reference.quantisation) == "Q4_K_M"
    unanswered = roundhouse(*written.group(1).split(), "--controller", f"unix:{tmp_path}/none.sock")
    assert unanswered.code == ExitCode.NO_CONTROLLER


def test_addresses_to_listen_on_become_urls_to_ask() -> None:
    assert url_of("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert url_of("::", 80) == "http://[::1]:80"
    assert url_of("house", 80) == "http://house:80"


def test_a_record_of_another_boot_names_nobody(folder: Path) -> None:
    myself = ProcessRecord.of(os.getpid())
    assert myself is not None
    write_record(folder, UpRecord(boot_id="another", up=myself, children={"gateway": myself}))
    assert read_record(folder).up is None
    write_record(folder, UpRecord(up=myself))
    assert read_record(folder).up == myself
    assert not ProcessRecord(pid=myself.pid, start_ticks=myself.start_ticks - 1).is_alive()
