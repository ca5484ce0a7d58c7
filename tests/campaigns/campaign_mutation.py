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
        (
            "controller/planning/plan.py",
            "controller/planning/model_turn.py",
            "controller/planning/rolling.py",
            "controller/planning/starting.py",
        ),
        (
            "tests/unit/controller/planning/test_plan_rules.py",
            "tests/unit/controller/status/test_model_status.py",
            "tests/unit/controller/planning/test_eviction_rules.py",
            "tests/properties/controller/planning/test_plan.py",
        ),
    ),
    Subject(
        "placement",
        ("controller/planning/placement.py",),
        (
            "tests/unit/controller/planning/test_gpu_holders.py",
            "tests/unit/controller/planning/test_placement_rules.py",
            "tests/unit/controller/planning/test_placement_mig.py",
            "tests/properties/controller/planning/test_placement.py",
            "tests/properties/controller/planning/test_plan.py",
        ),
    ),
    Subject(
        "eviction",
        ("controller/planning/eviction.py", "controller/planning/eviction_candidates.py"),
        (
            "tests/unit/controller/planning/test_eviction_candidates.py",
            "tests/unit/controller/planning/test_eviction_decisions.py",
            "tests/unit/controller/planning/test_eviction_rules.py",
            "tests/properties/controller/planning/test_eviction.py",
        ),
    ),
    Subject(
        "admission",
        ("gateway/admission/admission.py", "gateway/admission/model_queue.py", "gateway/admission/ticket.py"),
        (
            "tests/unit/gateway/admission/test_admission.py",
            "tests/unit/gateway/admission/test_admission_failures.py",
            "tests/unit/gateway/admission/test_fair_queue.py",
            "tests/properties/gateway/admission/test_admission.py",
            "tests/properties/gateway/admission/test_fair_queue.py",
        ),
    ),
    Subject(
        "fairness",
        ("gateway/admission/fair_queue.py",),
        (
            "tests/unit/gateway/admission/test_fair_queue.py",
            "tests/unit/gateway/admission/test_admission.py",
            "tests/properties/gateway/admission/test_fair_queue.py",
        ),
    ),
    Subject(
        "limits",
        ("gateway/tenancy/rate_limits.py",),
        (
            "tests/unit/gateway/tenancy/test_rate_limits.py",
            "tests/unit/gateway/tenancy/test_estimated_tokens.py",
            "tests/properties/gateway/tenancy/test_rate_limits.py",
        ),
    ),
    Subject(
        "openness",
        (
            "gateway/ingress/admin_gate.py",
            "gateway/ingress/host_check.py",
            "gateway/tenancy/api_keys.py",
            "gateway/ingress/cors.py",
        ),
        (
            "tests/unit/gateway/ingress/test_admin_gate.py",
            "tests/unit/gateway/ingress/test_host_check.py",
            "tests/unit/gateway/tenancy/test_api_keys.py",
            "tests/unit/gateway/ingress/test_cors.py",
        ),
    ),
    Subject(
        "redaction",
        ("controller/redaction/patterns.py", "controller/redaction/redactor.py"),
        (
            "tests/unit/controller/redaction/test_patterns.py",
            "tests/unit/controller/redaction/test_redactor.py",
            "tests/properties/controller/redaction/test_patterns.py",
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
