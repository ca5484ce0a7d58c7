"""The mutation campaign: a sample of it, what it chooses, what it keeps, and how it judges what it finds."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.campaign_mutation import (
    COLUMNS,
    NOT_AGAIN,
    NOT_MEASURED,
    PACKAGES,
    PINS,
    Package,
    Pin,
    Survey,
    choose_sample,
    estimate,
    is_wording,
    judge,
    key_of,
    list_modules,
    list_survivors,
    raise_pins,
    read_equivalents,
    read_pins,
    write_pins,
)
from tests.campaigns.mutation_driver import Driver
from tests.campaigns.mutation_learning import Lessons
from tests.campaigns.mutation_processes import FAILED, Ended, Job
from tests.campaigns.mutation_store import MutationStore, Result
from tests.campaigns.mutation_tests import TestFiles
from tests.campaigns.mutmut_run import Batch, Mutant, compare, mutate, read_functions, run_driver
from tests.campaigns.record import PAGES, REPOSITORY, Outcome

HOSTS = "gateway/ingress/access_rules.py"
EXAMPLE = "assistant/streams/example.py"
TESTS_OF_IT = "tests/unit/assistant/streams/test_example.py"
SOURCE = """
import asyncio

async def double(n):
    await asyncio.sleep(0)
    return n * 2

async def count(end):
    number = 0
    while number < end:
        yield number
        number += 1

async def wait(event, *, at_once):
    task = asyncio.create_task(announce(event, at_once))
    await event.wait()
    await task

async def announce(event, at_once):
    if at_once == True:
        event.set()

def unused(a):
    return a + 1
"""
TESTS = """
import asyncio
from assistant.streams.example import count, double, wait

async def test_it_doubles():
    assert await double(1) == 2

async def test_it_counts():
    assert [number async for number in count(3)] == [0, 1, 2]

async def test_it_waits():
    await wait(asyncio.Event(), at_once=True)

def test_what_fails_without_a_mutant():
    assert asyncio.run(double(1)) == 3
"""
EXPECTED = {
    ("double", "return n * 3"): "killed",
    ("double", "return n / 2"): "killed",
    ("double", "await asyncio.sleep(1)"): "survived",
    ("count", "while number <= end:"): "killed",
    ("count", "number -= 1"): "timed out",  # it never ends
    ("announce", "if at_once == False:"): "timed out",  # nobody sets the event
    ("unused", "return a - 1"): "untested",
}
"""By the function and the line that is changed."""


def judge_all(folder: Path, batch: Batch) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """What the driver says of each mutant, by its name, and of the rest."""
    events: list[dict[str, Any]] = []
    folder.mkdir(exist_ok=True)
    run_driver(folder, batch, time.time() + 240, events.append)
    judged = {event["name"]: event for event in events if event["event"] == "judged"}
    return judged, [event for event in events if event["event"] != "judged"]


# Mutants are judged


@pytest.mark.slow
def test_a_sample_of_mutants_is_judged_as_in_the_campaign(tmp_path: Path) -> None:
    """The same code as the campaign's, over two functions and one file of tests: one of them has a mutant that no test
    can tell from the original."""
    code, mutants = mutate(HOSTS, (REPOSITORY / HOSTS).read_text())
    chosen = [mutant for mutant in mutants if mutant.function in ("_is_port", "HostCheck._check_host")][:7]
    names = [mutant.name for mutant in chosen]
    batch = Batch({HOSTS: code}, {HOSTS: ["tests/unit/gateway/ingress/test_host_check.py"]}, names)
    found, _ = judge_all(tmp_path, batch)
    equivalents = read_equivalents()
    for mutant in chosen:
        is_excused = is_wording(mutant) or key_of(mutant) in equivalents
        assert found[mutant.name]["verdict"] == "killed" or is_excused, mutant
        line = (REPOSITORY / HOSTS).read_text().splitlines()[mutant.line - 1]
        assert line.strip() == mutant.before != mutant.after
    assert {each["verdict"] for each in found.values()} == {"survived", "killed"}


@pytest.mark.slow
def test_coroutines_and_generators_are_mutated_and_what_hangs_ends(tmp_path: Path) -> None:
    code, mutants = mutate(EXAMPLE, SOURCE)
    chosen = {each.name: EXPECTED[change] for each in mutants if (change := (each.function, each.after)) in EXPECTED}
    assert len(chosen) == len(EXPECTED), "mutmut makes each of them"
    batch = Batch({EXAMPLE: code, TESTS_OF_IT: TESTS}, {EXAMPLE: [TESTS_OF_IT]}, list(chosen))
    found, (learned, started) = judge_all(tmp_path / "first", batch)
    assert {name: event["verdict"] for name, event in found.items()} == chosen
    killed = next(each.name for each in mutants if each.after == "return n * 3")
    assert found[killed]["by"] == f"{TESTS_OF_IT}::test_it_doubles"
    assert started == {"event": "started"}
    assert learned["lessons"]["left_out"] == {
        f"{TESTS_OF_IT}::test_what_fails_without_a_mutant": "it fails without a mutant"
    }
    assert learned["complete"]
    again, _ = judge_all(tmp_path / "again", Batch(batch.sources, batch.tests, [killed], learned["lessons"]))
    assert again[killed]["verdict"] == "killed", "what was learned once need not be learned again"


def test_what_differs_is_found_whatever_mutmut_calls_the_function() -> None:
    original = ["def x_f__mutmut_orig(a=1):", "    b = a", "    return a"]
    changed = ["def x_f__mutmut_2(a=1):", "    b = a", "    return -a"]
    assert compare(original, changed) == (2, "return a", "return -a")
    assert compare(original, ["def x_f__mutmut_3(a=2):", *original[1:]]) == (0, "def (a=1):", "def (a=2):")
    assert compare(original, [original[0], original[2]]) == (1, "b = a", "")


# Which tests


@pytest.mark.slow
def test_the_tests_of_every_module_are_found() -> None:
    files = TestFiles()
    for package in PACKAGES:
        for folder in package.more:
            assert (REPOSITORY / folder).is_dir(), folder
        for path in list_modules(package):
            assert files.choose(path, package.more), path


def test_what_imports_a_module_is_nearer_than_what_mirrors_its_folder(tmp_path: Path) -> None:
    def write(file: str, text: str) -> str:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
        return file

    mirrors = write("tests/unit/a/b/test_another.py", "import a.b.other")
    imports = write("tests/unit/test_far.py", "from a.b import one")
    write("tests/unit/test_elsewhere.py", "import a.c")
    write("tests/unit/a/b/test_engine.py", "import pytest\npytestmark = [pytest.mark.slow, pytest.mark.engines]")
    further = write("tests/integration/test_all.py", "")
    files = TestFiles(tmp_path)
    assert files.choose("a/b/one.py") == [imports, mirrors]
    assert files.choose("a/b/one.py", ["tests/integration"]) == [imports, mirrors, further]


def test_learning_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def end(lessons: Lessons, status: int, *lines: dict[str, Any]) -> list[str]:
        [job, *_] = lessons.jobs(["a/test.py"], tmp_path)
        record = tmp_path / f"{job.name.replace('/', '.')}.jsonl"
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return [job.name for job in lessons.on_end(Ended(job, status, "", 1.0), tmp_path)]

    begun = {"test": "a/test.py::one"}
    lessons, later = Lessons(), Lessons()
    assert end(lessons, -14, begun) == ["a/test.py 0"], "the others run again"
    assert lessons.left_out == {"a/test.py::one": "it hangs or ends its process without a mutant"}
    assert not end(lessons, 0, {"test": "a/test.py::two", "seconds": 1.0, "failed": False, "functions": ["m.x_f"]})
    later.take_up(lessons.to_json())
    assert later == lessons
    assert [job.name for job in later.jobs(["a/test.py", "b.py"], tmp_path)] == ["a/test.py 1", "b.py 0", "b.py 1"]
    assert not end(later, 0, {"test": "a/test.py::three", "seconds": 6.0, "failed": False, "functions": ["m.x_f"]})
    assert later.left_out["a/test.py::three"] == "it takes more than 5 s"
    assert later.tests == {"m.x_f": ["a/test.py::two", "a/test.py::three"]}


def test_the_tests_of_a_mutant_are_the_nearest_and_quickest_that_fit() -> None:
    said: list[dict[str, Any]] = []
    driver = Driver({"a.b": ["near.py", "far.py"]}, 0.0, 1, said.append, Path())
    driver.lessons.seconds.update({"near.py::slow": 29, "near.py::quick": 1, "far.py::one": 4, "far.py::broken": 0.1})
    driver.lessons.seconds["other.py::none_of_its"] = 0.1
    driver.lessons.left_out["far.py::broken"] = "it fails"
    driver.lessons.tests["a.b.x_f"] = list(driver.lessons.seconds)
    assert driver.choose_tests("a.b.x_f__mutmut_1") == ["near.py::quick", "far.py::one", "near.py::slow"]
    driver.lessons.seconds["far.py::one"] = 59.5
    assert driver.choose_tests("a.b.x_f__mutmut_1") == ["near.py::quick"]
    assert driver.choose_tests("a.b.x_g__mutmut_1") == []


# What is chosen and kept


def mutant(after: str, before: str = "return a < b", name: str = "") -> Mutant:
    return Mutant(HOSTS, 7, "f", before, after, name or after)


def test_a_sample_stays_when_something_else_changes() -> None:
    mutants = [mutant(f"return {n}") for n in range(40)]
    chosen = choose_sample(mutants, 1, 10)
    assert len(chosen) == 10
    assert choose_sample(list(reversed(mutants)), 1, 10) == chosen
    assert choose_sample(mutants, 2, 10) != chosen
    assert choose_sample(mutants, 1, 20)[:10] == chosen, "a larger sample goes on where a smaller one stopped"
    fewer = [each for each in mutants if each != chosen[3]]
    assert choose_sample(fewer, 1, 9) == [each for each in chosen if each != chosen[3]]


def test_what_is_known_holds_for_the_same_content(tmp_path: Path) -> None:
    for file in ("test_one.py", "test_two.py"):
        (tmp_path / file).write_text("1")
    (tmp_path / "a.py").write_text("def f(a):\n    return a + 1\n")

    def store() -> MutationStore:
        return MutationStore(tmp_path / "kept", tmp_path)

    def known() -> dict[str, Result]:
        return store().read_results("a.py", store().digest_files(["test_one.py", "test_two.py"]))

    first, second = store().read_mutated("a.py")[1]
    tests = store().digest_files(["test_one.py", "test_two.py"])
    for each, verdict, by in ((first, "killed", "test_one.py::test"), (second, "survived", None)):
        store().add_result("a.py", tests, {"name": each.name, "verdict": verdict, "seconds": 1.0, "by": by})
    assert set(known()) == {first.name, second.name}
    (tmp_path / "test_two.py").write_text("2")
    assert set(known()) == {first.name}, "the test that killed it is as it was"
    (tmp_path / "test_one.py").write_text("2")
    assert not known()
    (tmp_path / "test_one.py").write_text("1")
    (tmp_path / "test_two.py").write_text("1")
    assert len(known()) == 2
    (tmp_path / "a.py").write_text("def f(a):\n    return a + 1  # more\n")
    assert not known(), "the module has changed"


def surveyed(verdicts: Mapping[Mutant, str], left: Sequence[Mutant] = (), seconds: float = 1.0) -> Survey:
    results = {each.name: Result(each.name, verdict, seconds, None, None, "") for each, verdict in verdicts.items()}
    mutants = [*verdicts, *left]
    return Survey(Package("gateway/ingress"), {}, mutants, mutants, results)


def test_the_estimate_says_how_long_what_is_left_takes() -> None:
    survey = surveyed({mutant("a"): "killed", mutant("b"): "killed"}, [mutant(f"{n}") for n in range(60)], seconds=2.0)
    assert estimate([survey], survey, 2) == (
        "gateway/ingress: 62 mutants, 2 of 62 judged, 60 left: about 1 min, at 60 a minute"
    )
    unknown = surveyed({}, [mutant("a")])
    assert estimate([unknown], unknown, 2) == "gateway/ingress: 1 mutants, 0 of 1 judged, 1 left"
    assert estimate([survey, unknown], unknown, 2).endswith("at 60 a minute (of all packages)")


# What it comes to


def row_of(outcome: Outcome) -> dict[str, object]:
    [table] = outcome.tables
    [row] = table.rows
    return dict(zip(table.columns, row, strict=True))


def test_the_score_and_the_list_of_survivors_leave_the_excused_out() -> None:
    survivor, other = mutant("return a <= b"), mutant("return a | b")
    wording = mutant('say("XXone two threeXX")', 'say("one two three")')
    verdicts = {survivor: "survived", other: "survived", wording: "survived", mutant("x"): "killed"}
    survey = surveyed({**verdicts, mutant("y"): "timed out", mutant("z"): "untested"})
    excused = {key_of(survivor): "they are never equal"}
    listed = [
        f"{HOSTS}:7: survived: `return a < b` as `return a | b`",
        f"{HOSTS}:7: untested: `return a < b` as `z`",
    ]
    assert list_survivors(survey, excused) == listed
    row = row_of(judge([survey], excused, {}))
    assert tuple(row.values()) == ("gateway/ingress", 6, 6, 6, 1, 1, 3, 1, 1, 1, 1, "50.0%", "none", "")


@pytest.mark.parametrize(
    ("status", "told", "expected"),
    [
        (0, "", "survived"),
        (1, "a.py::test\n", "killed"),
        (-14, "", "timed out"),
        (-14, "a.py::test\n", "killed"),
        (-11, "", "killed"),
        (3, "", "unclear"),
        (FAILED, "", "unclear"),
    ],
)
def test_an_error_of_pytests_own_kills_nothing(status: int, told: str, expected: str) -> None:
    said: list[dict[str, Any]] = []
    driver = Driver({}, 0.0, 1, said.append, Path())
    list(driver.judge_end(Ended(Job("a", lambda folder, told: 0, 1.0), status, told, 1.0)))
    assert [event["verdict"] for event in said] == [expected]


def test_a_package_that_is_not_judged_or_not_wholly_says_so() -> None:
    assert row_of(judge([surveyed({}, [mutant("a")])], {}, {}))["score"] == NOT_MEASURED
    partly = surveyed({mutant("a"): "killed"}, [mutant("b")])
    pins = {"gateway/ingress": Pin("gateway/ingress", 100.0, 2, "abc")}
    outcome = judge([surveyed({mutant("a"): "survived"}, [mutant("b")])], {}, pins)
    assert row_of(judge([surveyed({}, [mutant("a")])], {}, pins))["score"] == NOT_AGAIN
    assert row_of(judge([partly], {}, {}))["score"] == "100.0% so far"
    assert not outcome.failures, "the rest may be killed"


def test_a_score_below_its_pin_is_a_failure() -> None:
    survey = surveyed({mutant("a"): "killed", mutant("b"): "killed", mutant("c"): "survived"})
    at, above = (Pin("gateway/ingress", score, 3, "abc") for score in (66.6, 66.7))
    assert not judge([survey], {}, {at.package: at}).failures
    assert judge([survey], {}, {above.package: above}).failures == ["gateway/ingress: 66.6 %, below its pin of 66.7 %"]


def test_a_reason_must_be_needed() -> None:
    listed = mutant("return a <= b")
    reasons = {
        key_of(listed): "they are never equal",
        ("controller/x.py", "f", "", ""): "of a package that is not there",
    }
    stale = [f"{HOSTS}: f: listed as equivalent, but killed or gone: return a <= b"]
    assert judge([surveyed({listed: "killed"})], reasons, {}).failures == stale
    assert judge([surveyed({mutant("another"): "killed"})], reasons, {}).failures == stale
    assert not judge([surveyed({listed: "survived"})], reasons, {}).failures
    assert not judge([surveyed({}, [listed])], reasons, {}).failures
    twin = mutant("return a <= b", name="twin")
    assert not judge([surveyed({listed: "killed", twin: "survived"})], reasons, {}).failures


def test_every_package_is_in_the_repository() -> None:
    paths = [REPOSITORY / path for package in PACKAGES for path in list_modules(package)]
    assert [path for path in paths if not path.is_file()] == []
    assert len(set(paths)) == len(paths), "a mutant belongs to one package"


def test_every_equivalent_has_a_reason_and_stands_in_its_module() -> None:
    for (path, function, before, _), reason in read_equivalents().items():
        lines = read_functions((REPOSITORY / path).read_text())[function][1]
        text = " ".join(line.strip() for line in lines)
        assert before in text or before.startswith("def ("), (path, function, before)
        assert len(reason) > 10


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('raise _invalid("It carries two keys.")', 'raise _invalid("XXIt carries two keys.XX")', True),
        ('raise _invalid("It carries two keys.")', 'raise _invalid("IT CARRIES TWO KEYS.")', True),
        ('raise _invalid("It carries two keys.")', "raise _invalid(None)", False),
        ('raise _invalid("code", "It carries two keys.")', 'raise _invalid("CODE", "It carries two keys.")', False),
        ('(b"access-control-max-age", x)', '(b"ACCESS-CONTROL-MAX-AGE", x)', False),
        ('if a > b: say("It carries two keys.")', 'if a >= b: say("It carries two keys.")', False),
    ],
)
def test_what_is_only_wording(before: str, after: str, expected: bool) -> None:
    assert is_wording(mutant(after, before)) is expected


# Pins


def test_pins_are_only_raised(tmp_path: Path) -> None:
    half = surveyed({mutant("a"): "killed", mutant("b"): "survived"})
    name = half.package.name
    first = raise_pins([half], {}, {}, "abc")
    assert first == {name: Pin(name, 50.0, 2, "abc")}
    assert raise_pins([half], {name: Pin(name, 60.0, 9, "old")}, {}, "abc") == {name: Pin(name, 60.0, 9, "old")}
    assert raise_pins([half], {name: Pin(name, 40.0, 9, "old")}, {}, "abc") == first
    assert raise_pins([surveyed({mutant("a"): "killed"}, [mutant("b")])], {}, {}, "abc") == {}, "it is not complete"
    file = tmp_path / "pins.toml"
    file.write_text("# What it is.\n")
    write_pins(first, file)
    assert read_pins(file.read_text()) == first
    assert file.read_text().startswith("# What it is.\n\n[[pin]]\n")


def test_the_page_has_every_package_with_its_pin() -> None:
    page, pins = (PAGES / "mutation.md").read_text(), read_pins()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    [head] = [row for row in rows if row[0] == "package"]
    assert tuple(head) == COLUMNS
    cells = [[cell.strip() for cell in row] for row in rows if "/" in row[0] and not row[0].endswith(".py")]
    by_name = {row[0]: dict(zip(COLUMNS, [*row, ""], strict=False)) for row in cells}
    assert set(by_name) >= {package.name for package in PACKAGES}
    for package in PACKAGES:
        row, pin = by_name[package.name], pins.get(package.name)
        assert row["pin"] == ("none" if pin is None else f"{pin.score}%")
        score = re.fullmatch(r"([\d.]+)%", row["score"])
        assert score is not None or pin is None, "what is pinned was measured"
        assert score is None or pin is None or float(score[1]) >= pin.score
        if pin is not None:
            assert row["commit of the pin"] == f"`{pin.commit}`"


def test_no_pin_was_lowered_or_taken_away() -> None:
    """In any commit that is known here, against what the file says now."""
    pins, file = read_pins(), str(PINS.relative_to(REPOSITORY))
    assert set(pins) <= {package.name for package in PACKAGES}
    for commit in _git("log", "--format=%H", "--diff-filter=AM", "--", file).split():
        for name, pin in read_pins(_git("show", f"{commit}:{file}")).items():
            assert name in pins, f"{name} had a pin in {commit}"
            assert pins[name].score >= pin.score, f"{name} was higher in {commit}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
