"""The mutation campaign: a sample of it, and how it judges what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign_mutation import SUBJECTS, is_wording, judge, key_of, read_equivalents
from tests.campaigns.mutmut_run import KILLED, SURVIVED, TIMED_OUT, Mutant, compare, read_functions, run_mutmut
from tests.campaigns.record import REPOSITORY

HOSTS = "gateway/ingress/host_check.py"


@pytest.mark.slow
def test_a_sample(tmp_path: Path) -> None:
    """The same code as the campaign's, over two functions and one file of tests: one of them has a mutant that no test
    can tell from the original."""
    names = [f"gateway.ingress.host_check.x__is_port__mutmut_{n}" for n in (1, 2)]
    names += [f"gateway.ingress.host_check.xǁHostCheckǁ_check_host__mutmut_{n}" for n in range(1, 6)]
    found = run_mutmut(tmp_path, [HOSTS], ["tests/unit/gateway/ingress/test_host_check.py"], names)
    assert {mutant.function for mutant in found} == {"_is_port", "HostCheck._check_host"}
    equivalents = read_equivalents()
    for mutant in found:
        is_excused = is_wording(mutant) or key_of(mutant) in equivalents
        assert mutant.verdict == KILLED or is_excused, mutant
        line = (REPOSITORY / HOSTS).read_text().splitlines()[mutant.line - 1]
        assert line.strip() == mutant.before != mutant.after
    assert {mutant.verdict for mutant in found} == {SURVIVED, KILLED}


def test_every_subject_is_there() -> None:
    for subject in SUBJECTS:
        for path in (*subject.modules, *subject.tests):
            assert (REPOSITORY / path).is_file(), path


def test_every_equivalent_has_a_reason_and_stands_in_its_module() -> None:
    for (path, function, before, _), reason in read_equivalents().items():
        lines = read_functions((REPOSITORY / path).read_text())[function][1]
        text = " ".join(line.strip() for line in lines)
        assert before in text or before.startswith("def ("), (path, function, before)
        assert len(reason) > 10


def mutant(after: str, verdict: str = SURVIVED, before: str = "return a < b") -> Mutant:
    return Mutant(HOSTS, 7, "f", before, after, verdict)


def test_what_survives_without_a_reason_is_a_failure() -> None:
    found = [mutant("return a <= b"), mutant("return b < a", KILLED), mutant("return a", TIMED_OUT)]
    scores, listed = judge(found, {}).tables
    assert next(row for row in scores.rows if row[0] == HOSTS) == (HOSTS, 3, 1, 1, 1, 0, 0, "66.7%")
    assert not listed.rows
    assert f"{HOSTS}:7: survived: `return a < b` as `return a <= b`" in judge(found, {}).failures


def test_a_reason_excuses_one_mutant_and_must_be_needed() -> None:
    survivor, other = mutant("return a <= b"), mutant("return a | b")
    outcome = judge([survivor, other], {key_of(survivor): "they are never equal"})
    scores, listed = outcome.tables
    assert next(row for row in scores.rows if row[0] == HOSTS) == (HOSTS, 2, 0, 0, 2, 0, 1, "0.0%")
    assert [row[-1] for row in listed.rows] == ["they are never equal"]
    ours = [failure for failure in outcome.failures if failure.startswith(f"{HOSTS}:")]
    assert ours == [f"{HOSTS}:7: survived: `return a < b` as `return a \\| b`"]
    stale = judge([mutant("return a <= b", KILLED)], {key_of(survivor): "they are never equal"})
    assert f"{HOSTS}: f: listed as equivalent, but killed or gone: `return a <= b`" in stale.failures


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
    assert is_wording(mutant(after, before=before)) is expected


def test_what_differs_is_found_whatever_mutmut_calls_the_function() -> None:
    original = ["def x_f__mutmut_orig(a=1):", "    b = a", "    return a"]
    changed = ["def x_f__mutmut_2(a=1):", "    b = a", "    return -a"]
    assert compare(original, changed) == (2, "return a", "return -a")
    assert compare(original, ["def x_f__mutmut_3(a=2):", *original[1:]]) == (0, "def (a=1):", "def (a=2):")
    assert compare(original, [original[0], original[2]]) == (1, "b = a", "")
