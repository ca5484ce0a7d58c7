"""What is known of memory comes beside the rounds, and only the first look at a file is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from controller import memory_estimator as module
from controller.engines.exllamav3 import ExLlamaV3Definition
from controller.hosts import Gpu
from controller.memory_estimator import Requirements, combine_requirements
from controller.state import DesiredModel, Requirement
from tests.support.wait import until
from tests.support.world import autoload


@dataclass
class Files:
    """Files whose look takes until it is let go."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    seen: set[str] = field(default_factory=set)
    changed: bool = True
    fails: bool = False
    begun: int = 0

    def has_seen(self, want: DesiredModel) -> bool:
        return want.name in self.seen

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        self.begun += 1
        await self.done.wait()
        if self.fails:
            raise OSError("no such disk")
        self.seen |= {want.name for want in models}
        return self.changed

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        return {
            want.name: Requirement(host_mib=100, gpu_share=0.5 if want.name == "b" else None)
            for want in models
            if want.name in self.seen
        }


@dataclass
class Seen:
    """Models that were seen to take something."""

    requirements: Mapping[str, Requirement] = field(default_factory=lambda: {"b": Requirement(host_mib=200)})

    def observed_requirements(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        return self.requirements


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
    again = await needs.requirements_of(models, ())
    assert again["a"] == Requirement(host_mib=100), "a look that goes on holds up nothing"
    await needs.close()


@pytest.mark.parametrize(("seen_mib", "counted_mib"), [(200, 300), (400, 400), (None, 300)])
def test_what_fills_only_as_it_serves_is_not_taken_for_seen(seen_mib: int | None, counted_mib: int) -> None:
    prediction = Requirement(10, 300, host_grows=True)
    combined = combine_requirements(Requirement(20, seen_mib), prediction, is_held_to_claim=False)
    assert combined == Requirement(20, counted_mib, host_grows=True)


async def test_a_disk_that_does_not_answer_or_fails_holds_up_no_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.02)
    files = Files()
    needs = Requirements(files, Seen(), lambda: None)
    models = [autoload("a", 0), replace(autoload("remote", 0), runs=False)]
    assert await needs.requirements_of(models, ()) == {"b": Requirement(host_mib=200)}
    monkeypatch.setattr(module, "FIRST_LOOK_S", 3600.0)
    async with asyncio.timeout(60):  # one round has waited for this look
        assert await needs.requirements_of(models, ()) == {"b": Requirement(host_mib=200)}
    files.fails = True
    files.done.set()
    await until("it is told", lambda: "no such disk" in caplog.text)
    assert await needs.requirements_of(models, ()) == {"b": Requirement(host_mib=200)}
    await needs.close()


@dataclass
class PredictedOnGpus(Files):
    """Files that say what their model takes of each GPU, where there is a figure for it."""

    per_gpu_mib: int | None = None

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        return {} if self.per_gpu_mib is None else {"m": Requirement(per_gpu_mib=self.per_gpu_mib)}


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "predicted_mib", "required_mib"),
    [(2, False, 1000, 1000), (2, False, 600, 700), (2, False, None, None), (2, True, 1000, 700), (1, False, 1000, 700)],
    ids=[
        "an engine that is held to its claim took less because of that claim",
        "what it took beyond its claim is claimed the next time",
        "without a prediction it gets whole GPUs each time",
        "tensor parallelism holds it to nothing",
        "one GPU is not divided",
    ],
)
async def test_what_an_engine_took_that_is_held_to_its_claim_never_lessens_the_claim(
    gpus: int, tensor_parallel: bool, predicted_mib: int | None, required_mib: int | None
) -> None:
    files = PredictedOnGpus(per_gpu_mib=predicted_mib)
    files.done.set()
    needs = Requirements(files, Seen({"m": Requirement(per_gpu_mib=700, host_mib=5)}), lambda: None)
    definition = ExLlamaV3Definition(
        backend="exllamav3", model_path="m", gpus=gpus, exllama_tensor_parallel=tensor_parallel
    )
    model = replace(autoload("m", 0), definition=definition, backend="exllamav3", gpu_count=gpus)
    assert await needs.requirements_of([model], ()) == {"m": Requirement(per_gpu_mib=required_mib, host_mib=5)}
    await needs.close()
