"""What operators look at while engines are containers: logs as they grow, and what runs differently."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.conceal import nothing_secret
from controller.drift import drift
from controller.engines import spec_hash
from controller.runtimes.docker import DockerRuntime
from controller.runtimes.docker_client import Daemon
from controller.runtimes.docker_gpus import GpuProbe
from controller.schema.desired import Definition
from controller.state import DesiredModel, DesiredState, Health, ObservedReplica, ObservedState, Statement
from tests.support.docker_engine import RUN, Yard, exited, only, open_yard, said, shell, shell_image, stub
from tests.support.docker_images import ensure_base
from tests.support.wait import until

pytestmark = pytest.mark.docker


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


class Follower:
    """Reads a replica's log as a client does."""

    def __init__(self, runtime: DockerRuntime, name: str, first: int = 50) -> None:
        self.runtime = runtime
        self.name = name
        self.first = first
        self.cursor: str | None = None
        self.lines: list[str] = []
        self.parts = 0
        self.running = True

    async def read(self) -> list[str]:
        part = await self.runtime.log_after(self.name, self.cursor, self.first)
        assert part is not None
        self.cursor, self.running = part.cursor, part.running
        self.parts += bool(part.lines)
        self.lines += part.lines
        return self.lines

    async def finish(self) -> list[str]:
        async def look() -> bool:
            await self.read()
            return not self.running

        await until("the end of the log", look)
        return self.lines


async def test_a_log_is_followed_to_its_end_and_beyond_the_container_s(yard: Yard) -> None:
    runtime = yard.runtime()
    body = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; printf 'last words'; exit 3"
    request = yard.request(shell(body))
    await runtime.start(request)
    follower = Follower(runtime, request.name)
    expected = [*(f"line {number}" for number in range(100)), "last words"]
    assert await follower.finish() == expected
    assert follower.parts > 1
    assert await runtime.logged("m") == [], "it is not gone yet"

    await runtime.remove(request.name)
    assert await runtime.logged("m") == [request.name]
    assert await follower.read() == expected, "nothing is repeated"
    again = Follower(yard.runtime(), request.name, 2)
    assert await again.read() == ["line 99", "last words"]
    assert not again.running


async def test_a_container_that_is_gone_goes_on_in_what_was_kept(yard: Yard) -> None:
    runtime = yard.runtime()
    body = "trap 'echo leaving; echo left; exit 0' TERM; echo one; echo same; echo same; while :; do sleep 0.1; done"
    request = yard.request(shell(body))
    await runtime.start(request)
    await said(runtime, request.name, "same\nsame")
    follower = Follower(runtime, request.name)
    assert await follower.read() == ["one", "same", "same"]
    await runtime.stop(request.name, 30)
    assert await follower.read() == ["one", "same", "same", "leaving", "left"]
    assert not follower.running


async def test_a_burst_comes_in_bounded_parts_with_long_lines_whole(yard: Yard) -> None:
    runtime = yard.runtime()
    long = "python3 -c \"print('begin' + 'x' * 40000 + 'end')\""
    request = yard.request(shell(f"echo first; sleep 0.5; {long}; seq -f '%06g {'y' * 90}' 1 6000; {RUN}"))
    await runtime.start(request)
    follower = Follower(runtime, request.name)
    await until("the first line", follower.read)
    await said(runtime, request.name, "006000")

    async def all_of_it() -> bool:
        return (await follower.read())[-1].startswith("006000")

    await until("the last line", all_of_it)
    assert follower.parts > 2
    assert follower.lines[:2] == ["first", f"begin{'x' * 40000}end"]
    assert [int(line[:6]) for line in follower.lines[2:]] == list(range(1, 6001))
    assert follower.running


async def test_only_replicas_of_ours_have_logs(yard: Yard) -> None:
    runtime = yard.runtime()
    name = f"rh-{yard.instance}-m-0-12345678-1"
    assert await runtime.log_after(name, None) is None
    yard.foreign(name)
    assert await runtime.log_after(name, None) is None
    for bad in ("", "..", f"rh-{yard.instance}-../json", f"{name}/../x", "rh-other-m-0-12345678-1"):
        assert await runtime.log_after(bad, None) is None


async def test_a_container_that_was_not_edited_renders_as_it_runs(yard: Yard) -> None:
    runtime = yard.runtime(images={"worker": "roundhouse/none"})
    definition = stub(stub_text="hello", stub_load_s=1.0)
    request = yard.request(definition)
    await runtime.start(request)
    seen = await only(runtime)
    rendered = await yard.runtime().rendered(seen, definition, definition.image)
    assert rendered is not None
    assert seen.image_id is not None
    assert (rendered.argv, rendered.image_id) == (seen.argv, seen.image_id)
    absent = await runtime.rendered(seen, definition, "roundhouse/none:at-all")
    assert absent is not None
    assert absent.image_id is None
    await said(runtime, request.name, "loading: 100 %")


async def test_an_image_s_name_that_moved_is_drift(yard: Yard) -> None:
    tag = f"roundhouse-test-moving:{yard.instance}"
    name, _, version = tag.partition(":")
    yard.client.images.get(shell_image()).tag(name, version)
    try:
        runtime = yard.runtime()
        definition = shell(RUN).model_copy(update={"image": tag})
        request = yard.request(definition)
        await runtime.start(request)
        assert await _drift(runtime, definition) == []
        yard.client.images.get(ensure_base()).tag(name, version, force=True)
        running = (await only(runtime)).image_id
        assert await _drift(runtime, definition) == [("image", yard.client.images.get(tag).id, running)]
    finally:
        yard.client.images.remove(tag)


async def _drift(runtime: DockerRuntime, definition: Definition) -> list[tuple[str, object, object]]:
    seen = await only(runtime)
    want = DesiredModel(
        "m",
        definition,
        "llama_server",
        spec_hash(definition, definition.image, "m"),
        1,
        Statement("file", 1.0, "enabled in the files"),
        image=definition.image,
    )
    replica = ObservedReplica(seen.id, seen.name, seen.phase, seen.created_at, health=Health.READY)
    replica = replace(replica, argv=seen.argv, image_id=seen.image_id)
    rendered = await runtime.rendered(seen, definition, definition.image)
    assert rendered is not None
    desired, observed = DesiredState(1, {"m": want}), ObservedState(2.0, (replica,))
    found = drift(desired, observed, {seen.name: rendered}, file_since={}, conceal=nothing_secret, now=2.0)
    return [(item.kind, item.declared, item.running) for item in found]


async def test_an_end_is_followed_from_another_runtime_s_cursor(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell("echo one; sleep 0.5; echo two; exit 1"))
    await runtime.start(request)
    follower = Follower(runtime, request.name)
    await until("one", follower.read)
    await exited(runtime)
    follower.runtime = yard.runtime()
    assert await follower.finish() == ["one", "two"]


async def test_why_there_are_no_gpus_is_said(yard: Yard) -> None:
    runtime = yard.runtime()
    if await runtime.gpus():
        pytest.skip("this host has GPUs")
    assert runtime.gpu_error() == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
    probe = GpuProbe(Daemon(None, timeout_s=30, threads=2), yard.instance, ensure_base())
    assert await probe.read() == ()
    assert (probe.reason or "").startswith("this Docker Engine has no NVIDIA support: could not select device driver")
