"""Downloads of sources as the executor carries them out, and as a whole controller does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from controller.engines.stub import StubDefinition
from controller.planning.actions import DownloadSource
from controller.reconcile.executor import Executor
from controller.reconcile.operation_state import OperationState
from controller.redaction.redactor import Redactor
from controller.state import DesiredModel, DesiredState, Statement
from tests.fakes.fake_downloader import FakeDownloader
from tests.fakes.fake_runtime import FakeRuntime
from tests.support.wait import until

SOURCE = "hf:a/b:Q4"
MODEL = DesiredModel(
    "m", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"), missing_source=SOURCE
)
DESIRED = DesiredState(0, {"m": MODEL, "other": replace(MODEL, name="other")})


class Harness:
    """An executor whose downloads a test ends."""

    def __init__(self) -> None:
        self.woken = 0
        self.redactor = Redactor(str)
        self.memory, self.downloader = OperationState(), FakeDownloader()
        self.executor = Executor(
            FakeRuntime(lambda: 1_000.0), self.memory, self.downloader, instance="i", secret=b"s", stop_timeout_s=1.0,
            wake=self.wake, clock=lambda: 1_000.0, redact=self.redactor.redact_text,
        )  # fmt: skip

    def wake(self) -> None:
        """Count it."""
        self.woken += 1

    async def order(self, model: str = "m") -> None:
        """As the plan asks for it."""
        self.executor.issue_action(DownloadSource(model, SOURCE, "it is not here"), DESIRED, {})
        await asyncio.sleep(0)


async def test_two_models_of_one_source_download_it_once() -> None:
    harness = Harness()
    await harness.order()
    await harness.order("other")
    assert (harness.downloader.ordered, harness.memory.downloads) == ([SOURCE], {SOURCE: None})
    harness.downloader.finish(SOURCE)
    await harness.executor.wait_until_idle()
    assert (harness.memory.downloads, harness.woken) == ({}, 1)


async def test_a_failure_is_kept_without_secrets_and_backs_off() -> None:
    harness = Harness()
    harness.redactor.learn_secrets({"m": {"env": {"HUB_TOKEN": "hunter2-hunter2"}}})
    for count, wait_s in ((1, 1.0), (2, 2.0)):
        await harness.order()
        harness.downloader.fail(SOURCE, "the hub refuses hunter2-hunter2")
        await harness.executor.wait_until_idle()
        failure = harness.memory.downloads[SOURCE]
        assert failure is not None
        assert (failure.count, failure.retry_at) == (count, 1_000.0 + wait_s)
        assert failure.error == f"{SOURCE} cannot be downloaded: the hub refuses ***"


async def test_a_download_that_no_model_waits_for_is_cancelled() -> None:
    harness = Harness()
    await harness.order()
    harness.executor.cancel_unused_downloads(DESIRED)
    assert harness.downloader.cancelled == []
    harness.executor.cancel_unused_downloads(DesiredState(1, {"m": replace(MODEL, missing_source=None)}))
    await harness.executor.wait_until_idle()
    assert (harness.downloader.cancelled, harness.memory.downloads) == ([SOURCE], {})
    await harness.order()
    assert harness.downloader.ordered == [SOURCE, SOURCE], "the same may be asked for again"
    harness.downloader.finish(SOURCE)
    await harness.executor.wait_until_idle()


async def test_the_end_of_the_controller_waits_for_no_download() -> None:
    harness = Harness()
    await harness.order()
    harness.executor.cancel_pulls()
    await asyncio.wait_for(harness.executor.wait_until_idle(), 10)
    assert harness.downloader.cancelled == [], "it goes on in `transfers`, and the next controller waits for it"


async def test_a_failed_download_is_forgotten_with_its_last_model() -> None:
    harness = Harness()
    await harness.order()
    harness.downloader.fail(SOURCE, "no")
    await until("it has failed", lambda: harness.memory.downloads[SOURCE] is not None)
    harness.memory.prune_state(DESIRED, (), 1_000.0)
    assert SOURCE in harness.memory.downloads
    harness.memory.forget_failures(MODEL)
    assert harness.memory.downloads == {}
    await harness.order()
    harness.memory.prune_state(DesiredState(1, {}), (), 1_000.0)
    assert harness.memory.downloads == {SOURCE: None}, "one that is under way stays known"
    harness.downloader.fail(SOURCE, "no")
    await harness.executor.wait_until_idle()
    harness.memory.prune_state(DesiredState(1, {}), (), 1_000.0)
    assert harness.memory.downloads == {}
