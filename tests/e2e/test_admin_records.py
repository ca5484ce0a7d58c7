"""What the admin API tells beside rows: events, history, logs, plans, drift. And what it never tells."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

SECRET = "hf_Wq81mTz0PlKx93Rr"
STUB: dict[str, Any] = {"backend": "stub", "enabled": False, "stub_text": "one two three"}
HIDDEN = STUB | {"env": {"HF_TOKEN": SECRET}, "stub_fail": f"cannot log in with {SECRET} to the hub"}


class Events:
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.last_id: str | None = None

    async def next(self, kind: str | None = None) -> dict[str, Any]:
        event, fields = "", {}
        async for raw in self._answer.content:
            line = raw.decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                event, entry = fields["event"], json.loads(fields["data"])
                self.last_id = fields.get("id", self.last_id)
                fields = {}
                if kind in (None, event):
                    return {"event": event, **entry}
        raise AssertionError(f"the stream ended; the last event was {event!r}")


@asynccontextmanager
async def following(stack: RoundhouseStack, after: str | None = None, **query: str) -> AsyncIterator[Events]:
    headers = {} if after is None else {"last-event-id": after}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{stack.url}/v1/admin/events", params=query, headers=headers) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


@pytest.mark.parametrize("runtime_fixture", ["process"], indirect=True)
async def test_events_are_told_as_they_happen_and_resumed_over_a_restart(stack: RoundhouseStack) -> None:
    stack.declare({"m": STUB, "other": STUB})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        async with following(stack, model="m") as events:
            assert (await admin.load("other")).status == (await admin.load("m")).status == 200
            said = await events.next("statement")
            assert (said["model"], said["details"]["action"]) == ("m", "load")
            assert said["actor"].startswith("api 127.0.0.1")
            assert (await events.next("state"))["details"]["to"] == "loading"
            started = await events.next("action")
            assert (started["details"]["action"], started["details"]["replica"]) == ("start", "m/0")
            loaded = await events.next("state")
            assert (loaded["details"]["from"], loaded["details"]["to"]) == ("loading", "loaded")
            last = events.last_id
        stack.kill("controller", signal.SIGKILL)
        stack.start("controller")
        await until("the controller is back", lambda: _answers(admin))
        assert (await admin.unload("m")).status == 200
        async with following(stack, after=last, model="m") as events:
            seen = [await events.next("state") for _ in range(2)]
            assert [each["details"]["to"] for each in seen] == ["unloading", "unloaded"]
        async with following(stack, after="17") as events:
            assert (await events.next())["event"] == "gap"
            assert (await events.next())["kind"] == "controller"


async def _answers(admin: AdminApi) -> bool:
    return (await admin.request("GET", "models")).status == 200


async def test_history_says_who_changed_what(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> None:
    stack.declare({"m": STUB | {"enabled": True}})
    await stack.open()
    replica = (await stack.loaded("m"))["m"].replicas[0].name
    runtime_fixture.kill(stack, replica)
    await stack.model_where("m", lambda model: replica not in {each.name for each in model.replicas}, "is replaced")
    await stack.loaded("m")
    async with AdminApi(stack.url) as admin:
        assert (await admin.unload("m")).status == 200
        stack.declare({"m": STUB | {"enabled": True, "replicas": 2}})
        await admin.state("m", "loaded")
        entries = (await admin.request("GET", "history", model="m")).body["entries"]
        assert [entry["kind"] for entry in entries] == ["file", "statement", "failure"]
        edit, unload, crash = entries
        assert edit["details"]["fields"] == [{"field": "replicas", "before": None, "after": 2}]
        assert edit["details"]["ended_statement"] is True
        assert (unload["details"]["action"], crash["actor"], crash["details"]["was_ready"]) == (
            "unload",
            "engine",
            True,
        )
        page = (await admin.request("GET", "history", model="m", limit=1)).body
        assert page["entries"] == entries[:1]
        rest = (await admin.request("GET", "history", model="m", before=page["next_before"])).body
        assert rest == {"entries": entries[1:], "next_before": None}


async def test_logs_are_those_of_running_engines_and_of_the_last_one_that_ended(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare({"m": STUB | {"replicas": 2, "stub_load_s": 0.1}, "broken": HIDDEN})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        assert (await admin.request("GET", "models/m/logs")).body == ""
        row = (await admin.load("m")).body
        names = [each["name"] for each in row["replica_details"]]
        both = (await admin.request("GET", "models/m/logs", lines=5)).body
        assert {line.split(" | ")[0] for line in both.splitlines()} == set(names)
        one = (await admin.request("GET", "models/m/logs", replica=names[0], lines=1)).body
        assert len(one.splitlines()) == 1
        assert " | " not in one
        foreign = await admin.request("GET", "models/broken/logs", replica=names[0])
        assert (foreign.status, foreign.code) == (404, "unknown_replica")
        async with admin.session.get(
            f"{stack.url}/v1/admin/models/broken/logs", params={"follow": "true"}
        ) as following_logs:
            assert (await admin.load("broken")).code == "model_failed"
            read = b""
            async for chunk in following_logs.content.iter_any():
                read += chunk
                if b"to the hub" in read:
                    break
        assert b"cannot log in with *** to the hub" in read
        assert (await admin.unload("broken")).status == 200
        kept = (await admin.request("GET", "models/broken/logs")).body
        assert "cannot log in with *** to the hub" in kept


@pytest.mark.parametrize("runtime_fixture", ["process"], indirect=True)
async def test_logs_are_followed_over_an_unload_and_a_load(stack: RoundhouseStack) -> None:
    stack.declare({"m": STUB | {"stub_load_s": 0.1}})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        first = (await admin.load("m")).body["replica_details"][0]["name"]
        url = f"{stack.url}/v1/admin/models/m/logs?follow=true"
        async with admin.session.get(url) as followed, asyncio.timeout(60):
            lines = (await admin.request("GET", "models/m/logs")).body
            read = await followed.content.readexactly(len(lines))
            assert (await admin.unload("m")).status == 200
            again = (await admin.load("m")).body["replica_details"][0]["name"]
            assert again != first
            # From the second engine on, lines say whose they are.
            more_lines = "".join(f"{again} | {line}\n" for line in lines.splitlines())
            read += await followed.content.readexactly(len(more_lines))
            assert read.decode() == lines + more_lines


@pytest.mark.parametrize("runtime_fixture", ["process"], indirect=True)
async def test_a_dry_run_tells_what_an_edit_does_and_does_nothing(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    models = {"m": STUB | {"enabled": True}, "gone": STUB, "same": STUB | {"enabled": True}}
    stack.declare(models)
    await stack.open()
    replica = (await stack.loaded("m", "same"))["m"].replicas[0].name
    proposed = {
        "m": models["m"] | {"stub_text": "four", "env": {"HF_TOKEN": SECRET}},
        "same": models["same"] | {"aliases": ["also"]},
        "new": {"model_path": "clockwrok.gguf"},
    }
    async with AdminApi(stack.url) as admin:
        run = (await admin.request("POST", "plan", {"files": {"models.yaml": json.dumps({"models": proposed})}})).body
        assert (run["ok"], run["problems"]) == (True, [])
        changes = {change["model"]: change for change in run["changes"]}
        assert {name: (each["change"], each["effect"]) for name, each in changes.items()} == {
            "m": ("edited", "restart"),
            "gone": ("removed", "none"),
            "new": ("added", "start"),
            "same": ("edited", "none"),
        }
        assert changes["m"]["restarts"] == [replica]
        assert {each["field"]: each["after"] for each in changes["m"]["fields"]} == {
            "stub_text": "four",
            "env.HF_TOKEN": "***",
        }
        [blocked] = run["plan"]["blocked"]
        assert blocked["model"] == "new"
        assert "did you mean `clockwork.gguf`?" in blocked["reason"]
        broken = (
            await admin.request("POST", "plan", {"files": {"models.yaml": "models:\n  m:\n    replica: 2\n"}})
        ).body
        assert (broken["ok"], broken["changes"], broken["plan"]) == (False, [], None)
        assert {(each["line"], each["field"]) for each in broken["problems"]} == {
            (2, "models.m"),
            (3, "models.m.replica"),
        }
        assert {row["name"] for row in (await admin.request("GET", "models")).body["models"]} == models.keys()
        assert (await admin.request("GET", "plan")).body["actions"] == []
        wrong = await admin.request("POST", "plan", {"files": {"../etc/passwd": "x"}})
        assert (wrong.status, wrong.code) == (400, "invalid_request")
    assert (await stack.loaded("m"))["m"].replicas[0].name == replica


async def test_drift_is_what_runs_differently_and_nothing_else(stack: RoundhouseStack) -> None:
    # A stub serves 64 requests at a time, whatever is declared.
    stack.declare({"m": STUB | {"enabled": True}, "other": STUB, "wide": STUB | {"target_inflight": 100}})
    await stack.open("m")
    async with AdminApi(stack.url) as admin, following(stack, kind="drift") as events:
        assert (await admin.request("GET", "drift")).body["items"] == []
        before = (await admin.load("other")).body["statement"]["since"]
        [stated] = (await admin.request("GET", "drift")).body["items"]
        assert (stated["model"], stated["kind"], stated["since"]) == ("other", "statement", before)
        assert (await admin.request("DELETE", "models/other/override")).status == 200
        await admin.state("other", "unloaded")
        assert (await admin.request("GET", "drift")).body["items"] == []

        await admin.load("wide")
        told = await events.next()
        details = {"field": "target_inflight", "declared": 100, "applied": 64}
        assert (told["model"], told["details"]) == ("wide", details | {"replica": told["details"]["replica"]})
        assert (await admin.row("wide"))["drift"] == [told["message"]]
        items = (await admin.request("GET", "drift")).body["items"]
        [item] = [each for each in items if each["kind"] == "applied"]
        assert (item["replica"], item["field"]) == (told["details"]["replica"], "target_inflight")
        assert (item["declared"], item["running"]) == (100, 64)


@pytest.mark.parametrize("runtime_fixture", ["process"], indirect=True)
async def test_secrets_are_told_to_nobody(stack: RoundhouseStack) -> None:
    arguments = ["--api-key", "sk-55aa77cc99", "--token=tok-12345678"]
    stack.declare(
        {
            "m": HIDDEN | {"extra_args": arguments, "enabled": True},
            "remote": {"backend": "openai_remote", "base_url": "http://user:pa55word@127.0.0.1:9/v1"},
        }
    )
    await stack.open()
    await stack.model_where("m", lambda model: model.state == "failed", "fails")
    await stack.model_where("remote", lambda model: model.state == "failed", "fails")
    stack.declare({"m": {"env": {"HF_TOKEN": "hf_another1secret"}, "stub_fail": "again"}}, "local.yaml")
    proposed = json.dumps({"models": {"m": {"env": {"HF_TOKEN": "hf_third2secret99"}}}})
    async with AdminApi(stack.url) as admin:
        await until("the edit is known", lambda: _has_edit(admin))
        told = [
            *[
                (await admin.request("GET", path)).body
                for path in ("models", "plan", "drift", "gpu-memory", "models/m/logs")
            ],
            (await admin.request("GET", "history", limit=500)).body,
            (await admin.request("GET", "events", after=0, for_s=0.5)).body,
            (await admin.request("POST", "plan", {"files": {"zz.yaml": proposed}})).body,
            (await admin.chat("m")).body,
            (await admin.chat("remote")).body,
            await stack.get("/internal/status"),
            (await stack.status()).model_dump_json(),
        ]
    text = json.dumps(told)
    assert "***" in text
    secrets = (SECRET, "sk-55aa77cc99", "tok-12345678", "pa55word", "hf_another1secret", "hf_third2secret99")
    assert [secret for secret in secrets if secret in text] == []


async def _has_edit(admin: AdminApi) -> bool:
    return bool((await admin.request("GET", "history", model="m", kind="file")).body["entries"])
