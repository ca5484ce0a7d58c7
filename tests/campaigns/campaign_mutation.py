"""Mutants of what decides: how many of them make a test fail, per package."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.mutation_store import MutationStore, Result, cache_folder
from tests.campaigns.mutation_tests import TestFiles
from tests.campaigns.mutmut_run import Batch, Mutant, MutmutMissingError, run_driver
from tests.campaigns.record import REPOSITORY, Outcome, Table, current_commit

ABOUT = """
mutmut changes the packages that decide, one expression at a time: a comparison's bound, an operator, a constant, an
argument, a value that is assigned or returned. A test must fail for each such mutant. Of each package at most so many
mutants are judged as `sample` says, chosen by the seed: 300, or 100 where the tests start whole programs.

The tests of a module are those that import it and those in the folder that mirrors its own, in tests/unit and
tests/properties; for gateway/exchange, assistant/streams, retrieval and transfers also those in tests/integration. Of
them, those run that call the mutated function, for at most 60 s. Tests with marks (engines, slow, docker, embedded,
vllm), of more than 5 s, or that fail in the copy of the repository without a mutant judge nothing. Properties run with
12 derandomized examples each.

`score`: killed and timed out, of those judged but for the excused. A test that takes 8 s and five times its usual time
counts as failed (timed out). Untested: no test calls the function. Excused are survivors that change only the words of
a message (`wording`), and those for which [mutation_equivalents_*.toml](../../tests/campaigns) gives the reason why no
test can or should tell them from the original (`equivalent`; it has `listed` of them). Functions with decorators, and
what is outside of functions, are not mutated. `pin`: a score that was reached
([mutation_pins.toml](../../tests/campaigns/mutation_pins.toml)); a lower one is a failure.

A run judges for `--minutes` (38) and goes on where the last one stopped. `--part PACKAGE` judges that package alone,
`--next` the first that has mutants left, `--minutes 0` none. `--pin` raises the pins of complete packages. What is
known is kept by content in `~/.cache/roundhouse/mutation`; `survivors/` there lists what no test noticed. On another
machine, a package that was judged before has its pin alone.
"""


SAMPLE = 300
DEAR_SAMPLE = 100
"""Of packages whose tests start a program each: a mutant takes ten times as long there."""


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    """Its folder, or its module without the ending: a package keeps its name, and so its pin, when it becomes one."""
    more: tuple[str, ...] = ()
    """Folders of tests that no import leads to: they reach the package through a whole program in their process."""
    modules: tuple[str, ...] = ()
    """The modules that were this package; empty: the folder or module of its name."""
    sample: int = SAMPLE
    """How many of its mutants are judged."""


PACKAGES = (
    Package("controller/planning"),
    Package("controller/desired"),
    Package("controller/config"),
    Package(
        "controller/status",
        modules=(
            "controller/model_status",
            "controller/rollout",
            "controller/routing_table",
            "controller/state_machine",
        ),
    ),
    Package("controller/sizing", modules=("controller/memory_estimator", "controller/memory_history")),
    Package("controller/redaction"),
    Package("gateway/admission"),
    Package("gateway/exchange", ("tests/integration/gateway", "tests/integration/assistant"), sample=DEAR_SAMPLE),
    Package("gateway/protocols"),
    Package("gateway/tenancy"),
    Package("gateway/routing"),
    Package("gateway/sessions"),
    Package("assistant/streams", ("tests/integration/assistant",), sample=DEAR_SAMPLE),
    Package("gateway/ingress"),
    Package("retrieval/ingestion", ("tests/unit/retrieval", "tests/integration/retrieval"), sample=DEAR_SAMPLE),
    Package(
        "retrieval/search",
        ("tests/unit/retrieval", "tests/integration/retrieval"),
        ("retrieval/fusion", "retrieval/search"),
        sample=DEAR_SAMPLE,
    ),
    Package("retrieval/catalog", ("tests/unit/retrieval", "tests/integration/retrieval"), sample=DEAR_SAMPLE),
    Package("transfers/fetch", ("tests/unit/transfers", "tests/integration/transfers"), sample=DEAR_SAMPLE),
)
MINUTES = 38.0
WAYS_TO_GO_ON = ("part", "next_part", "minutes", "pin")
"""Options that decide what is judged when, and not what."""

EQUIVALENTS = tuple(sorted(Path(__file__).parent.glob("mutation_equivalents_*.toml")))
PINS = Path(__file__).with_name("mutation_pins.toml")
MutantKey = tuple[str, str, str, str]
FOUND = ("killed", "timed out")
NOT_MEASURED = "not measured yet"
NOT_AGAIN = "not judged again"
COLUMNS = (
    *("package", "mutants", "sample", "judged", "killed", "timed out", "survived", "untested"),
    *("wording", "equivalent", "listed", "score", "pin", "commit of the pin"),
)


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    names = [package.name for package in PACKAGES]
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--part", choices=names, metavar="PACKAGE", help="this package alone, as assistant/streams")
    which.add_argument("--next", dest="next_part", action="store_true", help="the first package with mutants left")
    parser.add_argument("--minutes", type=float, help=f"how long; 0: only write the page (default: {MINUTES:g})")
    parser.add_argument("--sample", type=int, help="mutants of a package that are judged (default: its own number)")
    parser.add_argument("--pin", action="store_true", help="raise the pins of complete packages")


# What may survive


def read_equivalents() -> dict[MutantKey, str]:
    """The reasons why mutants may survive, by path, function, and the lines before and after."""
    entries = [entry for path in EQUIVALENTS for entry in tomllib.loads(path.read_text())["equivalent"]]
    return {
        (*entry["at"].split(": "), entry["before"], after): entry["reason"]
        for entry in entries
        for after in entry["after"]
    }


def key_of(mutant: Mutant) -> MutantKey:
    """What a mutant is known by in the list of equivalents: its content, as lines move."""
    return mutant.path, mutant.function, mutant.before, mutant.after


_LITERAL = re.compile(r'"[^"]*"')


def is_wording(mutant: Mutant) -> bool:
    """Whether nothing but a sentence's letters differ: mutmut writes them large or small, or puts XX around them."""
    before, after = _LITERAL.findall(mutant.before), _LITERAL.findall(mutant.after)
    if _LITERAL.sub("", mutant.before) != _LITERAL.sub("", mutant.after) or len(before) != len(after):
        return False
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    return all(
        old.count(" ") >= 2 and old.lower() == new.lower().replace('"xx', '"').replace('xx"', '"')
        for old, new in changed
    )


# Pins


@dataclass(frozen=True, slots=True)
class Pin:
    """A package's score that must not be lowered."""

    package: str
    score: float
    """Per cent."""
    mutants: int
    """How many were judged for it."""
    commit: str


def read_pins(text: str | None = None) -> dict[str, Pin]:
    """By package. `text`: another text than the file's."""
    entries = tomllib.loads(PINS.read_text() if text is None else text).get("pin", [])
    return {entry["package"]: Pin(**entry) for entry in entries}


def write_pins(pins: Mapping[str, Pin], path: Path = PINS) -> None:
    """Replace what the file says below its heading."""
    heading = [line for line in path.read_text().splitlines() if line.startswith("#")]
    lines = [
        f'\n[[pin]]\npackage = "{pin.package}"\nscore = {pin.score}\nmutants = {pin.mutants}\ncommit = "{pin.commit}"'
        for pin in sorted(pins.values(), key=lambda pin: pin.package)
    ]
    path.write_text("\n".join([*heading, *lines]) + "\n")


# What is known


@dataclass(slots=True)
class Survey:
    """A package: its mutants, those that are to be judged, and what is known of them."""

    package: Package
    tests: dict[str, list[str]]
    """By module's path: the files of its tests."""
    mutants: list[Mutant]
    sample: list[Mutant]
    """In the order in which they are judged."""
    results: dict[str, Result]
    """By mutants' names: those of the sample that are judged."""

    @property
    def left(self) -> list[Mutant]:
        """Those of the sample that are not judged yet."""
        return [mutant for mutant in self.sample if mutant.name not in self.results]

    @property
    def modules(self) -> list[str]:
        """The paths of the modules that have mutants in the sample."""
        return sorted({mutant.path for mutant in self.sample})

    @property
    def judged(self) -> list[tuple[Mutant, str]]:
        known = self.results
        return [(mutant, known[mutant.name].verdict) for mutant in self.sample if mutant.name in known]


def list_modules(package: Package) -> list[str]:
    """Paths in the repository, sorted."""
    places = [REPOSITORY / name for name in package.modules or (package.name,)]
    paths = [
        path for place in places for path in (place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")])
    ]
    return sorted(str(path.relative_to(REPOSITORY)) for path in paths)


def survey_package(package: Package, files: TestFiles, store: MutationStore, seed: int, sample: int | None) -> Survey:
    paths = list_modules(package)
    by_path = {path: store.read_mutated(path)[1] for path in paths}
    tests = {path: files.choose(path, package.more) for path, found in by_path.items() if found}
    mutants = [mutant for found in by_path.values() for mutant in found]
    chosen = choose_sample(mutants, seed, package.sample if sample is None else sample)
    results: dict[str, Result] = {}
    for path in sorted({mutant.path for mutant in chosen}):
        results |= store.read_results(path, store.digest_files(tests[path]))
    names = {mutant.name for mutant in chosen}
    known = {name: result for name, result in results.items() if name in names}
    return Survey(package, tests, mutants, chosen, known)


def choose_sample(mutants: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """By a number that a mutant gets from its content and the seed: a change elsewhere leaves it in, or out."""
    twins: Counter[MutantKey] = Counter()
    ranked: list[tuple[str, Mutant]] = []
    for mutant in mutants:
        key = key_of(mutant)
        ranked.append((hashlib.sha256(repr((seed, key, twins[key])).encode()).hexdigest(), mutant))
        twins[key] += 1
    return [mutant for _, mutant in sorted(ranked)[:count]]


def estimate(surveys: Sequence[Survey], survey: Survey, workers: int) -> str:
    """How many mutants of a package there are, are judged, are left, and how long these take: as long as its others
    took, else as those of all packages."""
    own = [result.seconds for result in survey.results.values()]
    seconds = own or [result.seconds for each in surveys for result in each.results.values()]
    judged, left = len(survey.results), len(survey.left)
    words = (
        f"{survey.package.name}: {len(survey.mutants)} mutants, {judged} of {len(survey.sample)} judged, {left} left"
    )
    if not left or not sum(seconds):
        return words
    rate = len(seconds) / sum(seconds) * 60 * workers
    return f"{words}: about {left / rate:.0f} min, at {rate:.0f} a minute{'' if own else ' (of all packages)'}"


# A run


def run(
    seed: int,
    *,
    part: str | None = None,
    next_part: bool = False,
    minutes: float = MINUTES,
    sample: int | None = None,
    pin: bool = False,
) -> Outcome:
    """Judge for so many minutes, and say what is known then."""
    stop_at = time.time() + minutes * 60
    try:
        store = MutationStore(cache_folder())
    except MutmutMissingError as missing:
        return Outcome((), (str(missing),))
    surveys = _survey_all(store, seed, sample)
    failures: list[str] = []
    if minutes:
        for survey in _choose_parts(surveys, part, next_part):
            failures += _judge_part(survey, store, stop_at)
            print(estimate(surveys, survey, os.cpu_count() or 1), flush=True)
            if time.time() >= stop_at:
                break
    pins, equivalents = read_pins(), read_equivalents()
    if pin and sample is None:
        pins = raise_pins(surveys, pins, equivalents, current_commit())
        write_pins(pins)
    for survey in surveys:
        path = store.folder / "survivors" / f"{survey.package.name.replace('/', '.')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in list_survivors(survey, equivalents)))
    outcome = judge(surveys, equivalents, pins if sample is None else {})
    return Outcome(outcome.tables, [*failures, *outcome.failures], outcome.duration_s)


def _survey_all(store: MutationStore, seed: int, sample: int | None) -> list[Survey]:
    files = TestFiles()
    surveys: list[Survey] = []
    for package in PACKAGES:
        surveys.append(survey_package(package, files, store, seed, sample))
        print(estimate(surveys, surveys[-1], os.cpu_count() or 1), flush=True)
    return surveys


def _choose_parts(surveys: Sequence[Survey], part: str | None, next_part: bool) -> list[Survey]:
    waiting = [survey for survey in surveys if survey.left and part in (None, survey.package.name)]
    return waiting[:1] if next_part else waiting


def _judge_part(survey: Survey, store: MutationStore, stop_at: float) -> list[str]:
    """Judge what is left of a package, as far as the time goes. Gives what went wrong."""
    digests = {path: store.digest_files(survey.tests[path]) for path in survey.modules}
    tests = sorted({file for path in survey.modules for file in survey.tests[path]})
    paths = {mutant.name: mutant.path for mutant in survey.left}
    began, done = time.time(), 0
    known = store.read_lessons(survey.modules, tests)

    def on_event(event: dict[str, Any]) -> None:
        nonlocal began, done
        if event["event"] == "learned":
            lessons = event["lessons"]
            store.keep_lessons(survey.modules, tests, lessons)
            count_of_tests = f"{len(lessons['seconds'])} tests{'' if event['complete'] else ' so far'}"
            print(f"{survey.package.name}: {count_of_tests}, {len(lessons['left_out'])} left out", flush=True)
            for test in sorted(set(lessons["left_out"]) - set(known["left_out"] if known else ())):
                print(f"  {test}: {lessons['left_out'][test]}", flush=True)
        elif event["event"] == "started":
            print(f"{survey.package.name}: ready after {time.time() - began:.0f} s", flush=True)
            began = time.time()
        elif event["event"] == "judged":
            path = paths[event["name"]]
            survey.results[event["name"]] = store.add_result(path, digests[path], event)
            done += 1

    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        sources = {path: store.read_mutated(path)[0] for path in survey.modules}
        batch = Batch(
            sources,
            {path: survey.tests[path] for path in survey.modules},
            [mutant.name for mutant in survey.left],
            known,
        )
        try:
            run_driver(Path(folder), batch, stop_at, on_event)
        except RuntimeError as error:
            return [f"{survey.package.name}: {error}"]
    if done:
        spent_min = (time.time() - began) / 60
        rate = f"{done / spent_min:.0f} a minute"
        print(f"{survey.package.name}: {done} judged in {spent_min:.1f} min, {rate}", flush=True)
    return []


def list_survivors(survey: Survey, equivalents: Mapping[MutantKey, str]) -> list[str]:
    """A line for each that is not excused: for who writes tests for them."""
    return [
        f"{mutant.path}:{mutant.line}: {verdict}: `{mutant.before}` as `{mutant.after}`"
        for mutant, verdict in sorted(survey.judged)
        if verdict not in FOUND and not is_wording(mutant) and key_of(mutant) not in equivalents
    ]


# The page


def judge(surveys: Sequence[Survey], equivalents: Mapping[MutantKey, str], pins: Mapping[str, Pin]) -> Outcome:
    """The score per package. Failures: a score below its pin, and a reason for a mutant that is killed or gone."""
    failures = [
        f"{survey.package.name}: {scores.per_cent} %, below its pin of {pin.score} %"
        for survey in surveys
        if (pin := pins.get(survey.package.name)) is not None and not survey.left
        if (scores := count(survey, equivalents)).per_cent is not None and scores.per_cent < pin.score
    ]
    failures += find_stale(surveys, equivalents)
    rows = [_row(survey, equivalents, pins.get(survey.package.name)) for survey in surveys]
    spent_s = sum(result.seconds for survey in surveys for result in survey.results.values())
    return Outcome((Table("Packages", COLUMNS, rows),), failures, spent_s / (os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Scores:
    verdicts: Counter[str]
    wording: int
    equivalent: int

    @property
    def per_cent(self) -> float | None:
        """The score, to a tenth, rounded down; None: there is nothing to count."""
        counted = self.verdicts.total() - self.wording - self.equivalent
        return sum(self.verdicts[verdict] for verdict in FOUND) * 1000 // counted / 10 if counted else None


def count(survey: Survey, equivalents: Mapping[MutantKey, str]) -> Scores:
    """One package's figures."""
    survivors = [mutant for mutant, verdict in survey.judged if verdict not in FOUND]
    wording = sum(map(is_wording, survivors))
    equivalent = sum(key_of(mutant) in equivalents and not is_wording(mutant) for mutant in survivors)
    return Scores(Counter(verdict for _, verdict in survey.judged), wording, equivalent)


def _row(survey: Survey, equivalents: Mapping[MutantKey, str], pin: Pin | None) -> tuple[object, ...]:
    scores = count(survey, equivalents)
    pinned = (f"{pin.score}%", f"`{pin.commit}`") if pin is not None else ("none", "")
    name, judged = survey.package.name, len(survey.results)
    listed = sum(path.startswith(f"{name}/") for path, *_ in equivalents)
    if not judged:
        return (
            name,
            len(survey.mutants),
            len(survey.sample),
            0,
            *[""] * 6,
            listed,
            NOT_AGAIN if pin else NOT_MEASURED,
            *pinned,
        )
    so_far = " so far" if survey.left else ""
    survived = scores.verdicts["survived"] + scores.verdicts["unclear"]
    verdicts = [*(scores.verdicts[verdict] for verdict in FOUND), survived, scores.verdicts["untested"]]
    share = "none" if scores.per_cent is None else f"{scores.per_cent}%{so_far}"
    return (
        *(name, len(survey.mutants), len(survey.sample), judged, *verdicts),
        *(scores.wording, scores.equivalent, listed, share, *pinned),
    )


def find_stale(surveys: Sequence[Survey], equivalents: Mapping[MutantKey, str]) -> list[str]:
    """Reasons that no mutant needs: it is gone, or each that is like it was judged and is killed."""
    alive: set[MutantKey] = set()
    for survey in surveys:
        killed = {mutant.name for mutant, verdict in survey.judged if verdict in FOUND}
        alive |= {key_of(mutant) for mutant in survey.mutants if mutant.name not in killed}
    covered = {path for survey in surveys for path in list_modules(survey.package)}
    return [
        f"{path}: {function}: listed as equivalent, but killed or gone: {after}"
        for path, function, before, after in sorted(equivalents)
        if path in covered and (path, function, before, after) not in alive
    ]


def raise_pins(
    surveys: Sequence[Survey], pins: Mapping[str, Pin], equivalents: Mapping[MutantKey, str], commit: str
) -> dict[str, Pin]:
    """The pins, with those of complete packages that have none or reached more."""
    raised = dict(pins)
    for survey in surveys:
        score, old = count(survey, equivalents).per_cent, pins.get(survey.package.name)
        if not survey.left and score is not None and (old is None or score > old.score):
            raised[survey.package.name] = Pin(survey.package.name, score, len(survey.results), commit)
    return raised
