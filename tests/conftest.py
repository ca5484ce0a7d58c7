"""Fixtures of the tests that need a whole Roundhouse."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.campaign import CAMPAIGN_VARIABLE, MOST_QUICK_TRIES, QUICK_VARIABLE
from tests.support.ci_cache import add_llama_server_to_path
from tests.support.require import require
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import DockerRuntimeFixture, ProcessRuntimeFixture, RuntimeFixture
from worker.clockwork import make_model

pytest_plugins = ["tests.support.report"]

# A gate must say the same of the same commit, so CI derives its examples from the tests themselves. A campaign draws
# them from its seed, and a developer's run draws new ones each time. No test asserts a time.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("campaign", deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("developer", deadline=None, print_blob=True)
hypothesis.settings.register_profile("quick", deadline=None, print_blob=True, max_examples=MOST_QUICK_TRIES)


def pytest_configure() -> None:
    """Choose Hypothesis's profile, find llama-server where it is built, and take Ctrl-C's signal back."""
    variables = {CAMPAIGN_VARIABLE: "campaign", QUICK_VARIABLE: "quick", "CI": "ci"}
    chosen = next((profile for name, profile in variables.items() if os.environ.get(name)), "developer")
    hypothesis.settings.load_profile(chosen)
    # A shell without job control starts `make test &` with SIGINT ignored, and every program of a test inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    add_llama_server_to_path()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and take what stays until the end (modules, test items) out of its sight:
    a full collection would walk through all of it again and again, in every process that runs tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def patient_sdks() -> None:
    """Give connections of the SDKs 60 s in place of 5: on a busy machine, an event loop that is the test's and the
    gateway's may not get to them sooner."""
    for sdk in (sys.modules.get(name) for name in ("anthropic", "openai")):
        if sdk is not None:
            sdk.DEFAULT_TIMEOUT.connect = 60.0


@pytest.fixture(scope="session")
def clockwork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's file."""
    path = tmp_path_factory.mktemp("models") / "clockwork.gguf"
    make_model(path)
    path.chmod(0o644)
    return path


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime_fixture(request: pytest.FixtureRequest) -> Iterator[RuntimeFixture]:
    """Each kind of place where engines run."""
    if request.param == "process":
        yield ProcessRuntimeFixture()
        return
    docker_runtime = open_docker_runtime()
    try:
        yield docker_runtime
    finally:
        docker_runtime.close()


def open_docker_runtime() -> DockerRuntimeFixture:
    """A Docker runtime_fixture with an instance name of its own, on locally built images."""
    from tests.support.docker_engine import engine_answers
    from tests.support.docker_images import ensure_images

    available, reason = engine_answers()
    require("docker", available, reason)
    instance = f"t{secrets.token_hex(4)}"
    return DockerRuntimeFixture(instance, ensure_images(), f"rhtest_{instance}")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short-named folder that other users may pass through: containers read models in it, sockets fit in it."""
    path = Path(tempfile.mkdtemp(prefix="rh"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def stack(runtime_fixture: RuntimeFixture, folder: Path, clockwork: Path) -> AsyncIterator[RoundhouseStack]:
    """A Roundhouse that is not started yet, with the clockwork model in its models folder."""
    made = RoundhouseStack(folder, runtime_fixture.runtime, runtime_fixture.env())
    shutil.copy(clockwork, made.models / "clockwork.gguf")
    try:
        yield made
    finally:
        await made.close()
    assert runtime_fixture.left(made) == [], "engines were left behind"
