"""The walk of the first hour: what is tried, what is kept, and where the next run goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.gpu.__main__ import choose_steps, default_images
from tests.gpu.report import print_report
from tests.gpu.results import FILE, OtherHostError, Results
from tests.gpu.step import (
    Available,
    Figures,
    Needs,
    NotTriedError,
    Outcome,
    Step,
    StepFailedError,
    find_missing,
)
from tests.gpu.steps import STEPS
from tests.gpu.walk import walk_steps

HOST = {"device": "gpu", "runtime": "process", "small": False, "gpus": ["GPU-1"]}
ON_GPU = Available(gpus=1)
ON_CPU = Available(gpus=0, on_cpu=True, no_docker="no Docker Engine answers", no_toolkit="no toolkit")


@dataclass
class Place:
    """Where steps run: notes what it is asked for."""

    available: Available = ON_GPU
    prepared: list[str | None] = field(default_factory=list)
    settled: int = 0
    leftover: str | None = None

    async def prepare(self, model: str | None) -> None:
        self.prepared.append(model)

    async def settle(self) -> None:
        self.settled += 1
        if self.leftover:
            raise AssertionError(self.leftover)


def step(name: str, does: Callable[[], Figures] = dict, needs: Needs | None = None, limit_s: float = 600) -> Step:
    """A step that does this."""

    async def run(place: Place) -> Figures:
        return does()

    return Step(name, f"what {name} is about", needs or Needs(), run, limit_s)


def raising(error: BaseException) -> Callable[[], Figures]:
    """What raises it."""

    def does() -> Figures:
        raise error

    return does


async def wait_for_ever(place: Place) -> Figures:
    """Never ends by itself."""
    await asyncio.Event().wait()
    return {}


async def walk(steps: list[Step], folder: Path, place: Place | None = None) -> list[Outcome]:
    """One run over a folder."""
    results = Results.open_folder(folder, HOST, "0123456789ab")
    return [outcome for _, outcome in await walk_steps(steps, place or Place(), results, lambda *_: None)]


async def test_every_end_of_a_step_is_a_result(tmp_path: Path) -> None:
    endless = Step("e", "never ends", Needs(), wait_for_ever, limit_s=0)
    steps = [
        step("a", lambda: {"mib": 3}),
        step("b", raising(StepFailedError("takes too much", {"mib": 9}))),
        step("c", raising(NotTriedError("there is no room"))),
        step("d", raising(KeyError("nobody foresaw it"))),
        endless,
        step("f", needs=Needs(gpus=2)),
    ]
    place = Place()
    outcomes = await walk(steps, tmp_path, place)
    assert [(each.status, each.reason) for each in outcomes] == [
        ("passed", None),
        ("failed", "takes too much"),
        ("not tried", "there is no room"),
        ("failed", "KeyError: 'nobody foresaw it'"),
        ("failed", "took longer than 0 s"),
        ("not tried", "needs 2 GPUs, this host has 1"),
    ]
    assert (outcomes[0].figures, outcomes[1].figures) == ({"mib": 3}, {"mib": 9})
    assert place.settled == 5, "what is not tried has started nothing"
    kept = json.loads((tmp_path / FILE).read_text())
    assert kept["host"] == HOST
    assert list(kept["steps"]) == list("abcdef")
    assert kept["steps"]["b"] == {
        "title": "what b is about",
        "status": "failed",
        "reason": "takes too much",
        "figures": {"mib": 9},
        "seconds": kept["steps"]["b"]["seconds"],
        "commit": "0123456789ab",
    }


async def test_what_does_not_end_is_told_and_costs_the_step(tmp_path: Path) -> None:
    [outcome] = await walk([step("a")], tmp_path, Place(leftover="m still runs"))
    assert outcome.status == "failed"
    assert outcome.reason == "passed; and what it started does not end: m still runs"


async def test_the_next_run_tries_only_what_has_no_result(tmp_path: Path) -> None:
    tried: list[str] = []

    def noted(name: str, end: BaseException | None = None) -> Step:
        def does() -> Figures:
            tried.append(name)
            if end is not None:
                raise end
            return {"run": len(tried)}

        return step(name, does)

    steps = [noted("a"), noted("b", StepFailedError("no")), noted("c", NotTriedError("no room")), noted("d.x")]
    first = await walk(steps, tmp_path)
    again = await walk([*steps, noted("e")], tmp_path)
    assert tried == ["a", "b", "c", "d.x", "c", "e"], "what was not tried has no result"
    assert again[:2] == first[:2], "as it was kept"

    results = Results.open_folder(tmp_path, HOST, "0123456789ab")
    results.forget(["b", "d"])
    tried.clear()
    await walk(steps, tmp_path)
    assert tried == ["b", "c", "d.x"]


async def test_a_step_that_is_interrupted_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(asyncio.CancelledError):
        await walk([step("a"), step("b", raising(asyncio.CancelledError()))], tmp_path)
    assert list(json.loads((tmp_path / FILE).read_text())["steps"]) == ["a"]
    assert [each.status for each in await walk([step("a"), step("b")], tmp_path)] == ["passed", "passed"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps({"schema": 1, "host": HOST | {"gpus": ["GPU-2"]}, "steps": {}}), "another host"),
        (json.dumps({"schema": 1, "host": HOST | {"device": "cpu"}, "steps": {}}), "another way to run"),
        (json.dumps({"schema": 2, "host": HOST, "steps": {}}), "another"),
        ("{}", "no file of results"),
        ("half a fi", "no file of results"),
    ],
)
def test_results_of_another_host_are_not_mixed_with_these(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(OtherHostError, match=f"{words}.*--folder"):
        Results.open_folder(tmp_path, HOST, "0123456789ab")


@pytest.mark.parametrize(
    ("needs", "available", "reason"),
    [
        (Needs(), ON_GPU, None),
        (Needs(), Available(gpus=0), "no GPU"),
        (Needs(gpus=2), ON_GPU, "needs 2 GPUs, this host has 1"),
        (Needs(gpus=0), ON_CPU, None),
        (Needs(), ON_CPU, "no GPU"),
        (Needs(gpus=2, on_cpu=True), ON_CPU, None),
        (Needs(on_cpu=True), Available(gpus=0), "no GPU"),
        (Needs(docker=True, toolkit=True), ON_CPU, "no GPU"),
        (Needs(gpus=0, docker=True), ON_CPU, "no Docker Engine answers"),
        (Needs(docker=True, toolkit=True), Available(gpus=1, no_toolkit="no NVIDIA runtime"), "no NVIDIA runtime"),
        (Needs(root=True), ON_GPU, "needs root"),
        (Needs(root=True), Available(gpus=1, is_root=True), None),
        (Needs(image="vllm"), Available(gpus=1, images=["worker"]), "image vllm is not here"),
        (Needs(engine="vllm"), Available(gpus=1, no_engine={"vllm": "vLLM is not installed"}), "vLLM is not installed"),
        (Needs(processes=True), Available(gpus=1, runtime="docker"), "needs engines as processes: --runtime process"),
        (Needs(on_cpu=True, is_long=True), Available(gpus=0, on_cpu=True, is_small=True), "left out by --small"),
    ],
)
def test_what_a_host_lacks_is_the_reason(needs: Needs, available: Available, reason: str | None) -> None:
    assert find_missing(needs, available) == reason


def test_without_a_gpu_no_step_about_gpus_is_tried() -> None:
    """A step that runs without a GPU measures main memory; any other has to say that there is none."""
    untried = {each.name for each in STEPS if find_missing(each.needs, ON_CPU) is None}
    assert {name.split(".")[0] for name in untried} == {"host", "llama", "forecast", "swap", "oom", "vllm", "kill"}
    assert not {each.name for each in STEPS if each.needs.gpus > 1} & untried
    about_gpus = [each for each in STEPS if each.needs.gpus and not each.needs.on_cpu]
    assert {find_missing(each.needs, ON_CPU) for each in about_gpus} == {"no GPU"}


def test_steps_are_named_once_and_chosen_by_their_beginning() -> None:
    names = [each.name for each in STEPS]
    assert len(set(names)) == len(names)
    assert choose_steps(STEPS, None) == [*STEPS]
    assert [each.name for each in choose_steps(STEPS, ["swap", "vllm.tp2"])] == ["swap.pinned", "vllm.tp2"]
    assert choose_steps(STEPS, ["swa"]) == []


def test_every_image_that_a_step_needs_has_a_name() -> None:
    assert {each.needs.image for each in STEPS} - {None} <= set(default_images())


def test_the_table_has_a_row_for_each_step_and_escapes_what_engines_say() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    rows: list[tuple[Step, Outcome]] = [
        (step("a"), Outcome("passed", None, {"mib": 3, "links": {"GPU0-GPU1": "NV12"}, "s": 1.234, "none": None})),
        (step("b"), Outcome("failed", "seen [red]this\nand [/] that", {"list": ["x"]})),
        (step("c"), Outcome("not tried", "no GPU")),
    ]
    print_report("one GPU", rows, console)
    text = console.export_text()
    for words in ("mib 3, links {GPU0-GPU1: NV12}, s 1.23", "seen [red]this and [/] that; list [x]", "no GPU"):
        assert words in text
    assert "1 passed, 1 failed, 1 not tried" in text


def test_figures_that_json_does_not_know_are_kept_as_texts(tmp_path: Path) -> None:
    results = Results(tmp_path, HOST, "c")
    figures: dict[str, Any] = {"path": Path("/x")}
    results.add(step("a"), Outcome("passed", None, figures))
    assert json.loads(results.path.read_text())["steps"]["a"]["figures"] == {"path": "/x"}
