"""Mutants of what decides: each must make a test fail, or be known to change nothing of substance."""

from __future__ import annotations

import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.mutmut_run import KILLED, SURVIVED, TIMED_OUT, Mutant, MutmutMissingError, run_mutmut
from tests.campaigns.record import Outcome, Table

ABOUT = """
mutmut changes the modules that decide, one expression at a time: a comparison's bound, an operator, a constant, an
argument, a value that is assigned or returned. The module's own tests must fail for each. A mutant that survives is
either listed in tests/campaigns/mutation_equivalents.toml with the reason why no test can or should tell it from the
original, or a failure of this campaign. A mutant that runs into the limit of time counts as found. Properties run
with 12 derandomized examples each, so the seed changes nothing.
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
            "tests/unit/test_assess.py",
            "tests/unit/test_residency_rules.py",
            "tests/unit/test_dry_run.py",
            "tests/properties/test_plan.py",
        ),
    ),
    Subject(
        "placement",
        ("controller/placement.py",),
        (
            "tests/unit/test_assess.py",
            "tests/unit/test_placement_mig.py",
            "tests/properties/test_placement.py",
            "tests/properties/test_plan.py",
        ),
    ),
    Subject(
        "eviction",
        ("controller/residency.py", "controller/residents.py"),
        ("tests/unit/test_residency_rules.py", "tests/properties/test_residency.py"),
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
        ("tests/unit/test_gateway_hosts.py", "tests/unit/test_gateway_keys.py"),
    ),
    Subject(
        "redaction",
        ("controller/masking.py", "controller/conceal.py"),
        (
            "tests/unit/test_masking.py",
            "tests/unit/test_operations.py",
            "tests/unit/test_keys_controller.py",
            "tests/properties/test_masking.py",
        ),
    ),
)

EQUIVALENTS = Path(__file__).with_name("mutation_equivalents.toml")
MutantKey = tuple[str, str, str, str]


def read_equivalents(path: Path = EQUIVALENTS) -> dict[MutantKey, str]:
    """The reasons why mutants may survive, by path, function, and the lines before and after."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["equivalent"]
    return {key_of(Mutant(line=0, verdict="", **_mutation(entry))): entry["reason"] for entry in entries}


def _mutation(entry: Mapping[str, str]) -> dict[str, str]:
    return {name: entry[name] for name in ("path", "function", "before", "after")}


def key_of(mutant: Mutant) -> MutantKey:
    """What a mutant is known by in the list of equivalents: its content, as lines move."""
    return mutant.path, mutant.function, mutant.before, mutant.after


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
    excused = [(mutant, equivalents[key_of(mutant)]) for mutant in survivors if key_of(mutant) in equivalents]
    failures = [
        f"{mutant.path}:{mutant.line}: {mutant.verdict}: `{mutant.before}` as `{mutant.after}`"
        for mutant in survivors
        if key_of(mutant) not in equivalents
    ]
    stale = set(equivalents) - {key_of(mutant) for mutant in survivors}
    failures += [f"{path}: {function}: listed as equivalent, but found or gone: `{after}`"
                 for path, function, _, after in sorted(stale)]
    modules = [module for subject in SUBJECTS for module in subject.modules]
    failures += [f"{module}: no mutant" for module in modules if not any(each.path == module for each in mutants)]
    columns = ("module", "mutants", "killed", "timed out", "survived", "of these equivalent", "score")
    scores = Table("Score", columns, [score(module, mutants, excused) for module in modules])
    reasons = Table(
        "Survivors that change nothing of substance",
        ("where", "function", "before", "after", "reason"),
        [(f"{m.path}:{m.line}", m.function, _code(m.before), _code(m.after), reason) for m, reason in excused],
    )
    return Outcome((scores, reasons), failures)


def score(module: str, mutants: Sequence[Mutant], excused: Sequence[tuple[Mutant, str]]) -> tuple[object, ...]:
    """One module's row. The score is of the mutants that are not equivalent."""
    verdicts = Counter(mutant.verdict for mutant in mutants if mutant.path == module)
    equivalent = sum(mutant.path == module for mutant, _ in excused)
    total, found = verdicts.total(), verdicts[KILLED] + verdicts[TIMED_OUT]
    share = found / (total - equivalent) if total > equivalent else 0.0
    return module, total, verdicts[KILLED], verdicts[TIMED_OUT], total - found, equivalent, f"{share:.1%}"


def _code(text: str) -> str:
    """Code in a table's cell."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else "(nothing)"
