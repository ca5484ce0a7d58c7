"""`make campaign`: what a module has, what its page says, which counts it raises; and the tree of sources."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.campaigns import campaign_page_matrix
from tests.campaigns.__main__ import PREFIX, campaign_names, page_names, read_command, run_campaign
from tests.campaigns.campaign_rooms import SEARCHES, Search, find_first, list_files
from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import PAGES, REPOSITORY, Outcome, Run, Table, current_commit
from tests.support.campaign import CAMPAIGN_VARIABLE, SEED_VARIABLE, campaign_count, campaign_seed, campaign_seeds

NAMES = campaign_names()
COUNTS = re.compile(r"\b(campaign_count|campaign_seeds)\(")
TESTS = """
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.campaign import campaign_count, campaign_seed, record_figure

@settings(max_examples=campaign_count(2, 7), database=None)
@given(st.integers())
def test_property(n):
    pass

@pytest.mark.parametrize("name", ["a|b", "c"])
def test_cases(name, record_property):
    record_figure(record_property, "seed", campaign_seed())

def test_wrong():
    assert "this" == "that"

@pytest.mark.skip(reason="no such machine")
def test_left_out():
    pass

@pytest.fixture
def broken():
    raise OSError("no fixture")

def test_on_nothing(broken):
    pass
"""


def _module(name: str) -> ModuleType:
    return import_module(f"tests.campaigns.{PREFIX}{name}")


def _run(outcome: Outcome) -> Run:
    return Run("many", "What it tries.\n", "make campaign", "abc", "2026-01-02", 7, 90.0, "a machine", outcome)


def _write(folder: Path, text: str) -> str:
    path = folder / "test_some.py"
    path.write_text(text)
    return str(path)


@pytest.fixture
def in_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAMPAIGN_VARIABLE, "some")
    monkeypatch.setenv(SEED_VARIABLE, "5")


# The campaigns that there are


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_says_what_it_is_and_can_be_run(name: str) -> None:
    campaign = _module(name)
    assert len(campaign.ABOUT.split()) > 10
    assert callable(campaign.run)
    for path in getattr(campaign, "TESTS", ()):
        assert (REPOSITORY / path).is_file(), path


def test_every_raised_count_belongs_to_a_campaign() -> None:
    raised = {path for path in _test_files() if COUNTS.search((REPOSITORY / path).read_text())}
    in_campaigns = {path for name in NAMES for path in getattr(_module(name), "TESTS", ())}
    assert raised - in_campaigns == set(), "no campaign runs them in full"


def _test_files() -> list[str]:
    found = (path.relative_to(REPOSITORY) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    return [str(path) for path in found if path.name != Path(__file__).name]


def test_every_campaign_is_in_the_index() -> None:
    listed = re.findall(r"^\| (\S+) \|", (PAGES / "README.md").read_text(), re.MULTILINE)
    rows = [f"[{name}]({name}.md)" if (PAGES / f"{name}.md").exists() else name for name in page_names()]
    assert listed == ["campaign", "---", *rows], "a campaign that was never run has no page to link to"


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md") if path.name != "README.md"))
def test_a_page_is_a_campaigns_and_tells_how_it_was_made(page: str) -> None:
    name = page.removesuffix(".md")
    text = (PAGES / page).read_text()
    assert text.startswith(f"# Campaign: {name}\n")
    [commit] = re.findall(r"^\| commit \| `([0-9a-f]{12})` \|$", text, re.MULTILINE)  # none: of a tree with changes
    assert f"| [{name}]({page}) | `{commit}` |" in (PAGES / "README.md").read_text()
    shallow = _git("rev-parse", "--is-shallow-repository").stdout.strip()
    if shallow == "false":
        assert _git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, f"{commit} is not in the history"
    command = rf'^\| command \| `make campaign ARGS="{page_names()[name]} --seed \d+( --\w+ [\w.]+)*"` \|$'
    assert re.search(command, text, re.MULTILINE)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


# Counts


def test_counts_are_small_unless_a_campaign_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CAMPAIGN_VARIABLE, SEED_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert (campaign_count(2, 7), campaign_seed(), campaign_seeds(2, 7)) == (2, 0, [0, 1])


def test_counts_are_full_in_a_campaign_with_its_own_seeds(in_campaign: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (campaign_count(2, 7), campaign_seed(), len(campaign_seeds(2, 7))) == (7, 5, 7)
    tries = set(campaign_seeds(2, 7))
    monkeypatch.setenv(SEED_VARIABLE, "6")
    assert tries.isdisjoint(campaign_seeds(2, 7))


# What is run


@pytest.mark.slow
def test_the_page_tells_what_ran_and_whatever_did_not_pass_is_a_failure(folder: Path, in_campaign: None) -> None:
    assert run_tests([_write(folder, "")], 1).failures == ["no test ran"]
    outcome = run_tests([_write(folder, TESTS)], 5)
    tests, figures = outcome.tables
    assert [(*row[:3], row[4]) for row in tests.rows] == [
        ("test_some::test_property", 1, 7, "1 passed"),
        ("test_some::test_cases", 2, "", "2 passed"),
        ("test_some::test_wrong", 1, "", "1 failed"),
        ("test_some::test_left_out", 1, "", "1 skipped"),
        ("test_some::test_on_nothing", 1, "", "1 error"),
    ]
    expected = [("test_some::test_cases[a|b]", "seed", "5"), ("test_some::test_cases[c]", "seed", "5")]
    assert list(figures.rows) == expected
    assert [failure.partition("\n")[0] for failure in outcome.failures] == [
        "test_some::test_wrong: failed",
        "test_some::test_left_out: skipped",
        "test_some::test_on_nothing: error",
    ]
    page = _run(outcome).to_markdown()
    assert "| outcome | 3 failures |" in page
    assert "| test_some::test_cases[a\\|b] | seed | 5 |" in page
    for words in ("AssertionError: assert 'this' == 'that'", "no such machine", "no fixture"):
        assert words in page


# The page


def test_the_form_of_a_page(tmp_path: Path) -> None:
    table = Table("Kills", ("what", "times"), [("engine", 3)])
    (tmp_path / "pages").mkdir()
    index = tmp_path / "pages" / "README.md"
    index.write_text("| few | `00` | Else. |\n| many | not run since | What. |\n")
    page = _run(Outcome((table,))).write_page(tmp_path / "pages")
    assert index.read_text() == "| few | `00` | Else. |\n| [many](many.md) | `abc` | What. |\n"
    assert page == tmp_path / "pages" / "many.md"
    assert page.read_text() == (
        "# Campaign: many\n\nWhat it tries.\n\n"
        "| | |\n| --- | --- |\n| command | `make campaign` |\n| commit | `abc` |\n| day | 2026-01-02 |\n| seed | 7 |\n"
        "| machine | a machine |\n| time | 1.5 min |\n| outcome | no failure |\n\n"
        "## Kills\n\n| what | times |\n| --- | --- |\n| engine | 3 |\n"
    )
    failed = _run(Outcome((), ("one::test: failed\nthis\n| that |", "no test ran"))).to_markdown()
    assert failed.endswith("## Failures\n\n`one::test: failed`\n\n````text\nthis\n| that |\n````\n\n`no test ran`\n")


def test_a_run_sees_its_name_and_seed_and_has_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CAMPAIGN_VARIABLE, "")
    monkeypatch.setenv(SEED_VARIABLE, "")
    seen = []

    def run(seed: int) -> Outcome:
        seen.append((seed, os.environ[CAMPAIGN_VARIABLE], os.environ[SEED_VARIABLE]))
        return Outcome(())

    monkeypatch.setattr(_module("plan"), "run", run)
    made = run_campaign("plan", 42)
    assert seen == [(42, "plan", "42")]
    assert (made.seed, made.command) == (42, 'make campaign ARGS="plan --seed 42"')
    assert made.commit == current_commit()


def test_a_campaign_s_own_options_that_count_are_in_its_command(
    monkeypatch: pytest.MonkeyPatch, in_campaign: None
) -> None:
    own_words = ["--minutes", "0.5", "--data", "d.jsonl", "--beside", "before=b.jsonl", "--rate", "9"]
    name, seed, options = read_command(["memory_creep", "--seed", "3", *own_words])
    beside = [("before", Path("b.jsonl"))]
    assert (name, seed) == ("memory_creep", 3)
    assert options == {"minutes": 0.5, "rate": 9, "data": Path("d.jsonl"), "beside": beside}
    assert (os.environ[CAMPAIGN_VARIABLE], os.environ[SEED_VARIABLE]) == ("memory_creep", "3"), "before it is imported"
    monkeypatch.setattr(_module("memory_creep"), "run", lambda seed, **_: Outcome(()))
    made = run_campaign(name, seed, options)
    assert made.command == 'make campaign ARGS="memory_creep --seed 3 --minutes 0.5 --rate 9"'
    monkeypatch.setattr(_module("mutation"), "run", lambda seed, **_: Outcome((), (), 90.0))
    partly = run_campaign(*read_command(["mutation", "--part", "assistant/streams", "--minutes", "3", "--sample", "9"]))
    # Nor is it said in which part it was made.
    assert (partly.command, partly.duration_s) == ('make campaign ARGS="mutation --seed 1 --sample 9"', 90.0)
    assert read_command(["plan"]) == ("plan", 1, {})
    assert read_command(["first-hour"]) == ("first_hour", 1, {}), "a hyphen stands for an underscore"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["plan", "--minutes", "1"], ["unrecognized arguments: --minutes 1"]),
        (["chaos", "--runtime", "moon"], ["docker"]),
        (["no_such"], NAMES),
    ],
)
def test_a_command_that_is_not_known_is_refused_with_what_is(
    in_campaign: None, capsys: pytest.CaptureFixture[str], command: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        read_command(command)
    error = capsys.readouterr().err
    assert (raised.value.code, [each for each in words if each not in error]) == (2, [])


def test_a_run_on_a_runtime_has_a_page_of_its_own(monkeypatch: pytest.MonkeyPatch, in_campaign: None) -> None:
    monkeypatch.setattr(_module("chaos"), "run", lambda seed, runtime: Outcome(()))
    made = run_campaign(*read_command(["chaos", "--seed", "3", "--runtime", "docker"]))
    assert (made.name, made.command) == ("chaos_docker", 'make campaign ARGS="chaos --seed 3 --runtime docker"')
    assert run_campaign(*read_command(["chaos"])).name == "chaos_process"
    assert {page: name for page, name in page_names().items() if page != name} == {
        "chaos_process": "chaos", "chaos_docker": "chaos", "chaos_compose": "chaos",
        "first-hour": "first_hour"
    }  # fmt: skip


def test_the_matrix_of_the_page_has_every_walk() -> None:
    walks = {path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob("tests/e2e/page/test_*.py")}
    assert set(campaign_page_matrix.TESTS) == walks


PACKAGES = ("common/", "controller/", "gateway/", "retrieval/", "worker/")
LONGEST = 800
"""Lines of a file."""


def sources() -> list[str]:
    return [name for name in list_files() if name.startswith(PACKAGES) and name.endswith(".py")]


def pure_modules() -> list[str]:
    """Modules and packages that a contract keeps pure."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [pure] = [contract for contract in contracts if "pure" in contract["name"]]
    modules: list[str] = pure["source_modules"]
    return modules


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.subject)
def test_a_subject_is_found_by_its_name_in_the_field(search: Search) -> None:
    assert find_first(search.words, list_files()) == search.file


def test_the_first_file_is_told() -> None:
    files = ["a/Circuit_Breaker.py", "b/circuit_breaker.py"]
    assert find_first("circuit", files) == files[0]
    assert find_first("eviction", files) is None


def test_no_file_is_longer_than_a_reader_takes() -> None:
    lengths = {name: (REPOSITORY / name).read_text().count("\n") for name in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_a_module_that_says_it_is_pure_is_kept_pure() -> None:
    kept = tuple(f"{module.replace('.', '/')}{end}" for module in pure_modules() for end in (".py", "/"))
    said = [
        name for name in sources() if "Pure" in (ast.get_docstring(ast.parse((REPOSITORY / name).read_text())) or "")
    ]
    assert [name for name in said if not name.startswith(kept)] == []
    assert len(said) > 50, "the words of the docstrings are those that are looked for"
