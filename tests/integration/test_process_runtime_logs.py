"""What operators look at while engines are processes: logs as they grow, what runs differently, how far a load is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.engines import ENGINES
from controller.engines.stub import StubDefinition
from controller.progress import LoadProgress
from controller.runtimes.base import SeenReplica
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process import ProcessRuntime
from controller.state import Phase
from tests.fakes.fake_nvml import FakeNvml
from tests.support.process_engines import RUN, Place, end_all, exited, only, request_for
from tests.support.wait import until

COUNT = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); sleep 0.01; done"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    end_all(place)


class Follower:
    """Reads a replica's log as a client does."""

    def __init__(self, runtime: ProcessRuntime, name: str, first: int = 50) -> None:
        self.runtime = runtime
        self.name = name
        self.first = first
        self.cursor: str | None = None
        self.lines: list[str] = []
        self.running = True

    async def read(self) -> list[str]:
        part = await self.runtime.log_after(self.name, self.cursor, self.first)
        assert part is not None
        self.cursor, self.running = part.cursor, part.running
        self.lines += part.lines
        return self.lines

    async def finish(self) -> list[str]:
        async def look() -> bool:
            await self.runtime.list()  # as the controller does: it sees the end, and cuts long logs
            await self.read()
            return not self.running

        await until("the end of the log", look)
        return self.lines


async def test_a_log_is_followed_to_its_end_and_beyond_the_replica_s(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(place.definition(f"{COUNT}; printf 'last words'; exit 3"))
    await runtime.start(request)
    follower = Follower(runtime, request.name)
    await until("the first lines", follower.read)
    assert await follower.finish() == [*(f"line {number}" for number in range(60)), "last words"]
    assert await runtime.logged("m") == [], "it is not gone yet"

    await runtime.remove(request.name)
    assert await runtime.logged("m") == [request.name]
    assert await runtime.logged("other") == []
    assert (await follower.read())[-1:] == ["last words"], "nothing is repeated"
    assert len(follower.lines) == 61
    again = Follower(place.runtime(), request.name, 2)
    assert await again.read() == ["line 59", "last words"]
    assert not again.running


async def test_a_stop_in_the_middle_loses_no_line(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(place.definition(f"trap 'echo leaving; exit 0' TERM; echo here; {RUN.removeprefix('exec ')}"))
    await runtime.start(request)
    follower = Follower(runtime, request.name)
    await until("its first line", follower.read)
    await runtime.stop(request.name, 30)
    assert (await follower.finish())[0] == "here"
    # The shell says that its child was ended, in words of its own.
    assert follower.lines[-1] == "leaving"


async def test_another_controller_goes_on_where_one_was(place: Place) -> None:
    runtime = place.runtime()
    request = request_for(
        place.definition(f"echo one; while [ ! -e {place.root}/go ]; do sleep 0.01; done; echo two; {RUN}")
    )
    await runtime.start(request)
    follower = Follower(runtime, request.name)
    await until("one", follower.read)
    await runtime.close()
    follower.runtime = place.runtime()
    (place.root / "go").touch()

    async def both() -> bool:
        return await follower.read() == ["one", "two"]

    await until("two", both)
    assert follower.running


async def test_a_log_that_is_cut_while_it_is_followed_repeats_nothing(place: Place) -> None:
    runtime = place.runtime(log_mib=1)
    body = f'i=0; while [ $i -lt 40 ]; do i=$((i+1)); seq -f "$i %05g {"x" * 60}" 1 1000; sleep 0.01; done'
    request = request_for(place.definition(body))
    await runtime.start(request)
    lines = await Follower(runtime, request.name).finish()
    seen = [tuple(int(word) for word in line.split()[:2]) for line in lines if line.endswith("x" * 60)]
    assert seen == sorted(set(seen))
    assert seen[-1] == (40, 1000)
    assert (place.state / "logs" / f"{request.name}.log.1").exists()


@pytest.mark.parametrize(
    "name",
    ["", "..", "../replicas/x", "rh-test1-../../../etc/passwd", "rh-test1-x/../y", "rh-other-m-0-12345678-1", "a"],
)
async def test_only_names_of_replicas_have_logs(place: Place, name: str) -> None:
    assert await place.runtime().log_after(name, None) is None


async def test_a_name_that_nobody_knows_has_no_log(place: Place) -> None:
    assert await place.runtime().log_after("rh-test1-m-0-12345678-1", None) is None


async def test_what_was_not_edited_renders_as_it_runs(place: Place) -> None:
    runtime = place.runtime()
    definition = StubDefinition(backend="stub", stub_text="hello")
    await runtime.start(request_for(definition))
    seen = await only(runtime)
    later = place.runtime()
    rendered = await later.rendered(seen, definition, None)
    assert rendered is not None
    assert (rendered.argv, rendered.image_id) == (seen.argv, seen.image_id)
    edited = await later.rendered(seen, definition.model_copy(update={"stub_text": "bye"}), None)
    assert edited is not None
    assert set(edited.argv) ^ set(seen.argv) == {"--text=hello", "--text=bye"}

    await runtime.stop(seen.name, 0)
    assert await runtime.rendered(seen, definition, None) is None


async def test_a_load_s_progress_is_read_from_the_log(place: Place) -> None:
    runtime = place.runtime()
    definition = StubDefinition(backend="stub", stub_load_s=1.0)
    await runtime.start(request_for(definition))
    seen = await only(runtime)
    told: set[float] = set()
    progress = LoadProgress(runtime, wake=lambda: told.update(progress.fractions.values()), interval_s=0.01)
    progress.track({seen.name: ENGINES["stub"]})
    await until("the end of the load", lambda: 1.0 in told)
    assert len(told) > 1
    await progress.close()


async def test_a_load_that_fails_still_says_why_in_its_last_line(place: Place) -> None:
    runtime = place.runtime()
    await runtime.start(request_for(StubDefinition(backend="stub", stub_load_s=0.1, stub_fail="no luck")))
    seen: SeenReplica = await exited(runtime)
    assert seen.phase is Phase.EXITED
    assert seen.exit is not None
    assert seen.exit.log_tail.splitlines()[-2:] == ["loading: 100 %", "no luck"]


async def test_why_there_are_no_gpus_is_said(place: Place) -> None:
    fake = FakeNvml()
    fake.fail("LibraryNotFound")
    runtime = place.runtime(nvml=NvmlReader(fake))
    assert await runtime.gpus() == ()
    assert runtime.gpu_error() == "no NVIDIA driver: libnvidia-ml.so.1 was not found"
