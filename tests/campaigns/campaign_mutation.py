"""Mutants of what decides: each must make a test fail, or be known to change nothing of substance."""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.mutmut_run import KILLED, TIMED_OUT, Mutant, MutmutMissingError, run_mutmut
from tests.campaigns.record import Outcome, Table

ABOUT = """
mutmut changes the modules that decide, one expression at a time: a comparison's bound, an operator, a constant, an
argument, a value that is assigned or returned. The module's own tests must fail for each. A mutant that survives is a
failure of this campaign, unless it changes only the words of a message, or is listed with its reason in
tests/campaigns/mutation_equivalents_*.toml: no test can or should tell it from the original. The score is of the
rest. A mutant that runs into the limit of time counts as killed. Properties run with 12 derandomized examples each,
so the seed changes nothing. Functions with decorators, and what is outside of functions, are not mutated.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """Modules that decide one thing, and the tests that judge their mutants."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


SUBJECTS = (
    Subject(
        "plan",
        ("controller/plan.py",),
        (
            "tests/unit/test_plan_rules.py",
            "tests/unit/test_assess.py",
            "tests/unit/test_residency_rules.py",
            "tests/properties/test_plan.py",
        ),
    ),
    Subject(
        "placement",
        ("controller/placement.py",),
        (
            "tests/unit/test_placement_rules.py",
            "tests/unit/test_placement_mig.py",
            "tests/properties/test_placement.py",
            "tests/properties/test_plan.py",
        ),
    ),
    Subject(
        "eviction",
        ("controller/residency.py", "controller/residents.py"),
        (
            "tests/unit/test_residents.py",
            "tests/unit/test_residency_settle.py",
            "tests/unit/test_residency_rules.py",
            "tests/properties/test_residency.py",
        ),
    ),
    Subject(
        "admission",
        ("gateway/admission.py", "gateway/line.py", "gateway/tickets.py"),
        (
            "tests/unit/test_admission.py",
            "tests/unit/test_admission_failures.py",
            "tests/unit/test_fairness.py",
            "tests/properties/test_admission.py",
            "tests/properties/test_admission_fairness.py",
        ),
    ),
    Subject(
        "fairness",
        ("gateway/fairness.py",),
        (
            "tests/unit/test_fairness.py",
            "tests/unit/test_admission.py",
            "tests/properties/test_admission_fairness.py",
        ),
    ),
    Subject("limits", ("gateway/limits.py",), ("tests/unit/test_gateway_limits.py", "tests/properties/test_limits.py")),
    Subject(
        "openness",
        ("gateway/hosts.py", "gateway/keys.py", "gateway/cors.py"),
        (
            "tests/unit/test_gateway_hosts.py",
            "tests/unit/test_gateway_keys.py",
            "tests/unit/test_gateway_cors.py",
        ),
    ),
    Subject(
        "redaction",
        ("controller/masking.py", "controller/conceal.py"),
        (
            "tests/unit/test_masking.py",
            "tests/unit/test_conceal.py",
            "tests/properties/test_masking.py",
        ),
    ),
)

EQUIVALENTS = tuple(sorted(Path(__file__).parent.glob("mutation_equivalents_*.toml")))
MutantKey = tuple[str, str, str, str]


def read_equivalents(paths: Sequence[Path] = EQUIVALENTS) -> dict[MutantKey, str]:
    """The reasons why mutants may survive, by path, function, and the lines before and after."""
    entries = [entry for path in paths for entry in tomllib.loads(path.read_text())["equivalent"]]
    return {
        (*entry["at"].split(": "), entry["before"], after): entry["reason"]
        for entry in entries
        for after in entry["after"]
    }


def key_of(mutant: Mutant) -> MutantKey:
    """What a mutant is known by in the list of equivalents: its content, as lines move."""
    return mutant.path, mutant.function, mutant.before, mutant.after


WORDING = "only the words of a message"
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


def run(seed: int) -> Outcome:
    """All subjects."""
    del seed
    mutants: list[Mutant] = []
    for subject in SUBJECTS:
        with tempfile.TemporaryDirectory(prefix="rh") as folder:
            try:
                mutants += run_mutmut(Path(folder), subject.modules, subject.tests)
            except MutmutMissingError as missing:
                return Outcome((), (str(missing),))
    return judge(mutants, read_equivalents())


def judge(mutants: Sequence[Mutant], equivalents: Mapping[MutantKey, str]) -> Outcome:
    """The score per module. Failures: mutants that survived without a reason, reasons that no survivor has any more,
    and a module without mutants."""
    survivors = [mutant for mutant in mutants if mutant.verdict not in (KILLED, TIMED_OUT)]
    reasons = {
        mutant: WORDING if is_wording(mutant) else equivalents[key_of(mutant)]
        for mutant in survivors
        if is_wording(mutant) or key_of(mutant) in equivalents
    }
    failures = [
        f"{mutant.path}:{mutant.line}: {mutant.verdict}: {_code(mutant.before)} as {_code(mutant.after)}"
        for mutant in survivors
        if mutant not in reasons
    ]
    stale = set(equivalents) - {key_of(mutant) for mutant in survivors}
    failures += [
        f"{path}: {function}: listed as equivalent, but killed or gone: {_code(after)}"
        for path, function, _, after in sorted(stale)
    ]
    modules = [module for subject in SUBJECTS for module in subject.modules]
    failures += [f"{module}: no mutant" for module in modules if not any(each.path == module for each in mutants)]
    columns = ("module", "mutants", "killed", "timed out", "survived", "of these wording", "equivalent", "score")
    listed = [
        (f"{each.path}:{each.line}", each.function, _code(each.before), _code(each.after), reason)
        for each, reason in reasons.items()
        if reason is not WORDING
    ]
    return Outcome(
        (
            Table("Score", columns, [score(module, mutants, reasons) for module in modules]),
            Table("Equivalent mutants", ("where", "function", "before", "after", "reason"), listed),
        ),
        failures,
    )


def score(module: str, mutants: Sequence[Mutant], reasons: Mapping[Mutant, str]) -> tuple[object, ...]:
    """One module's row."""
    verdicts = Counter(mutant.verdict for mutant in mutants if mutant.path == module)
    excused = [reason for mutant, reason in reasons.items() if mutant.path == module]
    wording = excused.count(WORDING)
    total, found = verdicts.total(), verdicts[KILLED] + verdicts[TIMED_OUT]
    counted = total - len(excused)
    share = f"{found / counted:.1%}" if counted else "none"
    return (
        *(module, total, verdicts[KILLED], verdicts[TIMED_OUT], total - found, wording),
        *(len(excused) - wording, share),
    )


def _code(text: str) -> str:
    """Code in a table's cell."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else "nothing"
