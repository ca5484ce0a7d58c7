"""The kinds of faults of a chaos campaign. Each says what may be lost because of it; what it does not say may not.

Each returns the names of the engines that had to be started again because of it; None: any of them, or none.
"""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any

import psutil

from tests.support.chaos.play import FILE, MODELS, WANTED, Chaos, Kind
from tests.support.chaos.stage import Engine, age_of
from tests.support.chaos.verdict import RESTARTING, STOPPED, UNLOADED, Fault
from tests.support.fake_hub import Fault as HubFault
from tests.support.fake_hub import HubRepository
from tests.support.http_client import Reply
from tests.support.wait import until

LONGEST_STOP_S = 2.5
"""Most seconds of a SIGSTOP."""
ALIAS = "alias-of-one"
JUMPS_S = (40 * 86_400, -3600)
SWEEP_S = 11.0
"""Longer than the pause between two sweeps of what has expired."""
DOWNLOAD_BYTES = 2_000_000
SIDE = ("retrieval", "vector store", "transfers")


# Engines.


async def kill_engine(chaos: Chaos, fault: Fault) -> set[str]:
    await chaos.wait_for_stable_engine()
    fault.began = chaos.now()
    engine = chaos.choose_engine()
    await chaos.kill_engine_and_wait(fault, engine, is_alone=True)
    return {engine.name}


async def kill_two_engines(chaos: Chaos, fault: Fault) -> set[str]:
    """Of two models, at once."""
    models = chaos.dice.sample(sorted(MODELS), 2)
    chosen = [
        chaos.dice.choice(
            sorted((each for each in chaos.engines.values() if each.model == model), key=lambda e: e.name)
        )
        for model in models
    ]
    for engine in chosen:
        at = chaos.now()
        ended = await chaos.kill_engine(fault, engine)
        chaos.allow_for_engine(fault, engine, at, ended, ended)
    began = fault.kills[-2].at
    for engine in chosen:
        chaos.allow_for_engine(fault, engine, began, began, await chaos.back(engine.model, chaos.now()))
    return {engine.name for engine in chosen}


async def kill_engine_and_its_successor(chaos: Chaos, fault: Fault) -> set[str]:
    """The engine that is started in its place is killed too, at some moment of its start."""
    engine = chaos.choose_engine()
    at = chaos.now()
    ended = await chaos.kill_engine(fault, engine)
    successor = await until("another engine is started", lambda: chaos.find_successor(engine))
    await chaos.last(chaos.dice.uniform(0, 1))
    ended_again = await chaos.kill_engine(fault, successor)
    chaos.allow_for_engine(fault, engine, at, ended, ended)
    back = await chaos.back(engine.model, ended_again)
    chaos.allow_for_engine(fault, engine, fault.kills[-1].at, ended_again, back)
    if chaos.is_only(engine):
        chaos.allow_for_engine(fault, engine, at, ended, back)
    return {engine.name, successor.name}


async def stop_engine(chaos: Chaos, fault: Fault) -> set[str]:
    engine = chaos.choose_engine()
    chaos.stage.host.freeze(engine.name)
    try:
        await chaos.last(chaos.dice.uniform(0.3, LONGEST_STOP_S))
    finally:
        chaos.stage.host.thaw(engine.name)
    return set()


async def kill_engine_while_paused(chaos: Chaos, fault: Fault) -> set[str]:
    """A paused controller starts nothing: the model is away until it is told to go on."""
    engine = chaos.choose_engine()
    await chaos.stage.run_command("pause")
    at = chaos.now()
    ended = await chaos.kill_engine(fault, engine)
    await chaos.last(chaos.dice.uniform(0, 1))
    if chaos.find_successor(engine) is not None:
        fault.engine_troubles.append(f"{engine.name} was replaced while the controller was paused")
    await chaos.stage.run_command("resume")
    chaos.allow_for_engine(fault, engine, at, ended, await chaos.back(engine.model, ended))
    return {engine.name}


async def kill_engine_without_controller(chaos: Chaos, fault: Fault) -> set[str]:
    """Its end is seen by a controller that was not there."""
    engine = chaos.choose_engine()
    await chaos.kill_program(fault, "controller")
    await chaos.kill_engine_and_wait(fault, engine)
    return {engine.name}


# Gateway, controller, `up`, Docker Engine.


async def kill_gateway(chaos: Chaos, fault: Fault) -> set[str]:
    at, ended = await chaos.kill_program(fault, "gateway", is_alone=True)
    back = await chaos.wait_for_gateway(fault, at, ended)
    pid = chaos.stage.find_pid("gateway")  # it answers
    started = chaos.now() - age_of(pid) if pid is not None else None
    chaos.note_back(fault, back - at, None if started is None else back - started)
    return set()


async def kill_controller(chaos: Chaos, fault: Fault) -> set[str]:
    """Nobody's request may be lost."""
    at, _ = await chaos.kill_program(fault, "controller", is_alone=True)
    await chaos.wait_for_controller()
    chaos.note_back(fault, chaos.now() - at)
    return set()


async def kill_gateway_and_controller(chaos: Chaos, fault: Fault) -> set[str]:
    programs = ["gateway", "controller"]
    chaos.dice.shuffle(programs)
    ends = [await chaos.kill_program(fault, program) for program in programs]
    await chaos.wait_for_gateway(fault, min(at for at, _ in ends), max(ended for _, ended in ends))
    return set()


async def stop_gateway(chaos: Chaos, fault: Fault) -> set[str]:
    await _stop_program(chaos, "gateway")
    return set()


async def stop_controller(chaos: Chaos, fault: Fault) -> set[str]:
    await _stop_program(chaos, "controller")
    return set()


async def _stop_program(chaos: Chaos, program: str) -> None:
    pid = await until(f"the {program} runs", lambda: chaos.stage.find_pid(program))
    os.kill(pid, signal.SIGSTOP)
    try:
        await chaos.last(chaos.dice.uniform(0.3, LONGEST_STOP_S))
    finally:
        os.kill(pid, signal.SIGCONT)


async def kill_up(chaos: Chaos, fault: Fault) -> set[str]:
    """What it kept running goes on, and nobody notices; then the operator runs `down` and `up`."""
    await chaos.kill_program(fault, "up")
    await chaos.clients.answer_more(2)
    at = chaos.now()
    await chaos.stage.end()
    fault.engine_troubles += [f"left after `down`: {each}" for each in chaos.stage.find_left()]
    ended = chaos.now()
    await chaos.stage.start()
    fault.allow(None, STOPPED, at, await chaos.all_back(ended))
    return set(chaos.engines)


async def kill_dockerd(chaos: Chaos, fault: Fault) -> None:
    """It is started again, as an init system would. What it stops when it starts (without live-restore all of its
    containers) may be lost until it serves again."""
    at, ended = await chaos.kill_program(fault, "dockerd", is_alone=True)
    await chaos.last(chaos.dice.uniform(0, 2))
    await chaos.stage.restart_dockerd()
    restarted = chaos.now()
    await until("what stopped with it is seen", lambda: _is_settled(chaos), 60)
    back = await chaos.all_back(max(ended, restarted))
    chaos.note_back(fault, back - at)
    fault.allow(None, STOPPED, at, back)


async def _is_settled(chaos: Chaos) -> bool:
    return bool(await chaos.admin_list())


# The programs beside: retrieval and its vector store, transfers, an MCP server. No chat may be lost because of them.


async def kill_retrieval(chaos: Chaos, fault: Fault) -> set[str]:
    at, _ = await chaos.kill_program(fault, "retrieval", is_alone=True)
    chaos.note_back(fault, await chaos.keepers.next_answer("document") - at)
    return set()


async def kill_vector_store(chaos: Chaos, fault: Fault) -> set[str]:
    """The process that has the shard; retrieval starts it again."""
    at, _ = await chaos.kill_pid(fault, "vector store", await _find_vector_store(chaos), is_alone=True)
    chaos.note_back(fault, await chaos.keepers.next_answer("document") - at)
    return set()


async def _find_vector_store(chaos: Chaos) -> int:
    def find() -> int | None:
        pid = chaos.stage.find_pid("retrieval")
        try:
            children = [] if pid is None else psutil.Process(pid).children(recursive=True)
            found = [child.pid for child in children if any("shard_process" in word for word in child.cmdline())]
        except psutil.NoSuchProcess:
            return None
        return found[0] if found else None

    return int(await until("the process of the vector store runs", find))


async def kill_transfers(chaos: Chaos, fault: Fault) -> set[str]:
    """While it downloads, where it can reach a hub: the download goes on, and its bytes are right."""
    download = await _begin_download(chaos)
    at, ended = await chaos.kill_program(fault, "transfers", is_alone=True)
    back = await until("transfers is started again", lambda: _find_started(chaos, "transfers", ended))
    chaos.note_back(fault, back - at)
    if download is not None:
        fault.engine_troubles += await _finish_download(chaos, *download)
    return set()


def _find_started(chaos: Chaos, program: str, since: float) -> float | None:
    pid = chaos.stage.find_pid(program)
    try:
        is_new = pid is not None and chaos.now() - age_of(pid) >= since - 0.1
    except AssertionError:  # the killed one was still named, and is gone
        return None
    return chaos.now() if is_new else None


async def _begin_download(chaos: Chaos) -> tuple[str, bytes] | None:
    """A download that lasts some seconds: its id, and the bytes that it must have. None: there is no hub."""
    hub = chaos.stage.hub
    if hub is None:
        return None
    content = chaos.dice.randbytes(DOWNLOAD_BYTES)
    name = f"chaos/noise-{hashlib.sha256(content).hexdigest()[:12]}"
    hub.add(HubRepository(name, {"noise.bin": content}))
    hub.faults.add(HubFault("slow", bytes_per_s=DOWNLOAD_BYTES / 3, path="noise.bin"))
    reply = await _answered(chaos, "POST", "downloads", {"reference": f"hf:{name}/noise.bin"})
    assert reply.status in (200, 202), reply.body
    return str(reply.body["id"]), content


async def _finish_download(chaos: Chaos, download: str, content: bytes) -> list[str]:
    """Return what is wrong with the file; empty: its bytes are right."""
    rows: list[dict[str, Any]] = []

    async def has_ended() -> bool:
        nonlocal rows
        reply = await chaos.ask_admin("GET", "downloads")
        rows = [] if reply is None or reply.status != 200 else reply.body["downloads"]
        return any(row["id"] == download and row["state"] in ("finished", "failed", "cancelled") for row in rows)

    await until(f"the download {download} has ended", has_ended, 180)
    [row] = [row for row in rows if row["id"] == download]
    if row["state"] != "finished":
        return [f"a download came to {row['state']}: {row['error']}"]
    path = chaos.stage.models / row["main"]
    return [] if path.read_bytes() == content else [f"{path.name} has other bytes"]


async def kill_mcp_server(chaos: Chaos, fault: Fault) -> set[str]:
    [server] = [each for each in chaos.engines.values() if each.model not in MODELS]
    at = chaos.now()
    await chaos.kill_engine(fault, server, is_alone=True)
    chaos.note_back(fault, await chaos.keepers.next_answer("tool") - at)
    return {server.name}


# The disk, the port, files.


async def fill_disk(chaos: Chaos, fault: Fault) -> set[str]:
    """Nothing may be written, and somebody is killed then. The disk has room again soon."""
    disk = chaos.stage.disk
    assert disk is not None
    victim = chaos.dice.choice(("engine", "MCP server", "gateway", "controller", *SIDE))
    disk.fill()
    try:
        if victim in SIDE:
            pid = await _find_vector_store(chaos) if victim == "vector store" else None
            await (chaos.kill_program(fault, victim) if pid is None else chaos.kill_pid(fault, victim, pid))
            await chaos.clients.answer_more(2)
            return set()
        if victim == "MCP server":
            [server] = [each for each in chaos.engines.values() if each.model not in MODELS]
            await chaos.kill_engine(fault, server)
            await chaos.clients.answer_more(2)
            return {server.name}
        if victim == "gateway":
            at, ended = await chaos.kill_program(fault, "gateway")
            await chaos.wait_for_gateway(fault, at, ended)
            return set()
        if victim == "controller":
            await chaos.kill_program(fault, "controller")
            await chaos.wait_for_controller()
            return set()
        # A start is recorded before it is made, so there is none until there is room.
        engine, at = chaos.choose_engine(), chaos.now()
        ended = await chaos.kill_engine(fault, engine)
        await chaos.last(chaos.dice.uniform(0, 1))
    finally:
        disk.free()
    chaos.allow_for_engine(fault, engine, at, ended, await chaos.back(engine.model, ended))
    return {engine.name}


async def delete_file(chaos: Chaos, fault: Fault) -> set[str]:
    """A file is deleted under the programs, and its owner is killed: it is made anew. An engine that is killed then is
    followed by one that requests reach, so what the controller says is still believed."""
    name = chaos.dice.choice(sorted(chaos.stage.files))
    path = chaos.stage.files[name]
    for each in path.parent.glob(f"{name}*"):
        each.unlink(missing_ok=True)
    await chaos.clients.answer_more(2)
    if name in ("responses.db", "controller.sock"):  # the next gateway is the first that needs it
        at, ended = await chaos.kill_program(fault, "gateway")
        await chaos.wait_for_gateway(fault, at, ended)
        if name == "responses.db":
            chaos.keepers.forget_responses()
    else:
        await chaos.kill_program(fault, "controller")
        await chaos.wait_for_controller()
    await until(f"{name} is there again", path.exists)
    engine = chaos.choose_engine()
    await chaos.kill_engine_and_wait(fault, engine)
    return {engine.name}


async def move_clock(chaos: Chaos, fault: Fault) -> set[str]:
    """The wall clock of all programs jumps while what deletes runs twice, and one of them is killed between."""
    chaos.stage.clock.set_shift(chaos.dice.choice(JUMPS_S))
    try:
        await chaos.last(SWEEP_S)
        if (program := chaos.dice.choice(("gateway", "controller", "retrieval"))) == "gateway":
            at, ended = await chaos.kill_program(fault, program)
            await chaos.wait_for_gateway(fault, at, ended)
        else:
            await chaos.kill_program(fault, program)
        await chaos.last(SWEEP_S)
    finally:
        chaos.stage.clock.set_shift(0)
    return set()


# What operators do, and what becomes of it.


async def break_desired_file(chaos: Chaos, fault: Fault) -> set[str]:
    """What was last good rules."""
    (chaos.stage.desired / FILE).write_text("models:\n  one: {backend: [\n")
    await until("the problem is shown", lambda: _has_problem(chaos))
    await chaos.clients.answer_more(2)
    chaos.declare()
    return set()


async def _has_problem(chaos: Chaos) -> bool:
    return bool((await chaos.admin_list()).get("desired_problems"))


async def move_desired_folder(chaos: Chaos, fault: Fault) -> set[str]:
    """The folder is away for a while; when it is back, edits are seen."""
    desired = chaos.stage.desired
    away = desired.with_name(f"{desired.name}.away")
    desired.rename(away)
    try:
        await chaos.clients.answer_more(2)
        await chaos.last(chaos.dice.uniform(0, 2))
    finally:
        away.rename(desired)
    aliases = [] if chaos.declared["one"].get("aliases") else [ALIAS]
    chaos.declared["one"] = chaos.declared["one"] | {"aliases": aliases}
    chaos.declare()

    async def is_seen() -> bool:
        return (await chaos.model_row("one")).get("aliases") == aliases

    await until("the edit is seen", is_seen)
    return set()


async def edit_model(chaos: Chaos, fault: Fault) -> set[str]:
    """Its engines are replaced one after the other, and nobody's request is lost."""
    model = chaos.dice.choice(sorted(chaos.declared))
    old = chaos.edit(model)
    await _replaced(chaos, model, old)
    return old


async def edit_model_and_kill_controller(chaos: Chaos, fault: Fault) -> set[str]:
    """At some moment of the replacement."""
    model = chaos.dice.choice(sorted(chaos.declared))
    old = chaos.edit(model)
    await chaos.last(chaos.dice.uniform(0, 2))
    await chaos.kill_program(fault, "controller")
    await _replaced(chaos, model, old)
    return old


async def _replaced(chaos: Chaos, model: str, old: set[str]) -> None:
    async def look() -> bool:
        row = await chaos.model_row(model)
        return bool(row) and not old & {each["name"] for each in row["replica_details"]}

    await until(f"the engines of {model} are replaced", look, 180)


async def unload_and_load(chaos: Chaos, fault: Fault) -> set[str]:
    """By the admin API, at the public address: running requests finish, new ones are refused."""
    model = chaos.dice.choice(sorted(chaos.declared))
    at = chaos.now()
    await _answered(chaos, "POST", f"models/{model}/unload")
    await chaos.last(chaos.dice.uniform(0, 1))
    return await _load_again(chaos, fault, model, at)


async def unload_and_kill_controller(chaos: Chaos, fault: Fault) -> set[str]:
    """What it has said that it would do is done by the next one."""
    model = chaos.dice.choice(sorted(chaos.declared))
    at = chaos.now()
    await _answered(chaos, "POST", f"models/{model}/unload", wait=False)
    await chaos.last(chaos.dice.uniform(0, 0.5))
    await chaos.kill_program(fault, "controller")

    async def is_unloaded() -> bool:
        return (await chaos.model_row(model)).get("runtime_state") == "unloaded"

    await until(f"{model} is unloaded", is_unloaded, 120)
    return await _load_again(chaos, fault, model, at)


async def load_and_kill_engine(chaos: Chaos, fault: Fault) -> set[str]:
    model = chaos.dice.choice(sorted(chaos.declared))
    at = chaos.now()
    old = {each.name for each in chaos.engines.values() if each.model == model}
    await _answered(chaos, "POST", f"models/{model}/unload")
    await _answered(chaos, "POST", f"models/{model}/load", wait=False)

    def find_new() -> list[Engine]:
        found, _ = chaos.stage.host.look(WANTED)
        return sorted((each for each in found.values() if each.model == model), key=lambda each: each.name)

    new = (await until("an engine starts", find_new))[0]
    await chaos.last(chaos.dice.uniform(0, 1))
    await chaos.kill_engine(fault, new)
    # It may have served already.
    return await _load_again(chaos, fault, model, at, UNLOADED | RESTARTING) | old | {new.name}


async def _load_again(
    chaos: Chaos, fault: Fault, model: str, at: float, outcomes: frozenset[str] = UNLOADED
) -> set[str]:
    """Load a model that was unloaded since `at`, and take the statement back: only the files rule it again."""
    old = {each.name for each in chaos.engines.values() if each.model == model}
    loaded = await _answered(chaos, "POST", f"models/{model}/load")
    if loaded.status not in (200, 202):
        fault.engine_troubles.append(f"a load of {model} was answered with {loaded.status}: {loaded.body}")
    fault.allow({model}, outcomes, at, await chaos.back(model, chaos.now()))
    await _answered(chaos, "DELETE", f"models/{model}/override")
    return old


async def _answered(chaos: Chaos, method: str, path: str, body: object = None, **query: object) -> Reply:
    """The answer of the admin API, once there is one."""
    reply: Reply = await until(
        f"{method} {path} is answered", lambda: chaos.ask_admin(method, path, body, **query), 120
    )
    return reply


KINDS: tuple[Kind, ...] = (
    Kind("engine killed", kill_engine, 6),
    Kind("engine killed, and its successor while it started", kill_engine_and_its_successor),
    Kind("engines of two models killed", kill_two_engines),
    Kind("engine killed while the controller was paused", kill_engine_while_paused),
    Kind("controller and engine killed", kill_engine_without_controller),
    Kind("engine stopped for a while", stop_engine),
    Kind("gateway killed", kill_gateway, 2),
    Kind("gateway and controller killed", kill_gateway_and_controller),
    Kind("gateway stopped for a while", stop_gateway),
    Kind("controller killed", kill_controller, 2),
    Kind("controller stopped for a while", stop_controller),
    Kind("retrieval killed", kill_retrieval),
    Kind("vector store killed", kill_vector_store),
    Kind("transfers killed", kill_transfers),
    Kind("MCP server killed", kill_mcp_server),
    Kind("up killed, then down and up", kill_up, every=3),
    Kind("dockerd killed", kill_dockerd),
    Kind("disk full", fill_disk, 4),
    Kind("wall clock moved, and a program killed", move_clock, 2),
    Kind("file deleted, its owner and an engine killed", delete_file, 2),
    Kind("desired file broken and mended", break_desired_file),
    Kind("desired folder moved and back", move_desired_folder),
    Kind("model edited", edit_model),
    Kind("model edited and controller killed", edit_model_and_kill_controller),
    Kind("model unloaded and loaded", unload_and_load),
    Kind("model unloaded and controller killed", unload_and_kill_controller),
    Kind("engine killed while its model loaded", load_and_kill_engine),
)
