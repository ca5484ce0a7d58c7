"""What is known of memory comes beside the rounds, and only the first look at a file is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from controller.sizing import requirements as module
from controller.sizing.requirements import Requirements
from controller.state import DesiredModel, Gpu, Requirement
from tests.support.traffic_simulator import autoload
from tests.support.wait import until


@dataclass
class Files:
    """Files whose look takes until it is let go."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    seen: set[str] = field(default_factory=set)
    changed: bool = True
    fails: bool = False
    begun: int = 0

    def has_seen(self, want: DesiredModel) -> bool:
        """As looked at."""
        return want.name in self.seen

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        """Look, when let go."""
        self.begun += 1
        await self.done.wait()
        if self.fails:
            raise OSError("no such disk")
        self.seen |= {want.name for want in models}
        return self.changed

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        """Of what was seen."""
        return {
            want.name: Requirement(host_mib=100, gpu_share=0.5 if want.name == "b" else None)
            for want in models
            if want.name in self.seen
        }


class Seen:
    """One model was seen to take something."""

    def observed_requirements(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Of that one."""
        return {"b": Requirement(host_mib=200)}


async def test_the_first_look_is_waited_for_and_what_was_observed_rules() -> None:
    files, woken = Files(), []
    needs = Requirements(files, Seen(), lambda: woken.append(True))
    models = [autoload(name, 0) for name in "ab"]
    asked = asyncio.create_task(needs.requirements_of(models, ()))
    await until("the look is under way", lambda: files.begun)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asked.done()
    files.done.set()
    assert await asked == {"a": Requirement(host_mib=100), "b": Requirement(host_mib=200, gpu_share=0.5)}
    assert woken == [True]
    files.done.clear()
    assert (await needs.requirements_of(models, ()))["a"] == Requirement(host_mib=100), (
        "a look that goes on holds up nothing"
    )
    await needs.close()


async def test_a_disk_that_does_not_answer_or_fails_holds_up_no_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.02)
    files = Files()
    needs = Requirements(files, Seen(), lambda: None)
    models = [autoload("a", 0), replace(autoload("remote", 0), runs=False)]
    assert await needs.requirements_of(models, ()) == {"b": Requirement(host_mib=200)}
    monkeypatch.setattr(module, "FIRST_LOOK_S", 3600.0)
    async with asyncio.timeout(60):
        assert await needs.requirements_of(models, ()) == {"b": Requirement(host_mib=200)}, (
            "one round has waited for this look"
        )
    files.fails = True
    files.done.set()
    await until("it is told", lambda: "no such disk" in caplog.text)
    assert await needs.requirements_of(models, ()) == {"b": Requirement(host_mib=200)}
    await needs.close()
