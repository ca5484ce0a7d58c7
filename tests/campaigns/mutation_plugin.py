"""pytest's plugin while mutants are judged: the same verdict each time, and no slower than a verdict needs."""

from __future__ import annotations

import sys

import hypothesis
import pytest
from mutmut.mutation.trampoline import get_mutant_under_test
from mutmut.state import state

EXAMPLES = 12
"""Per property. A mutant is judged by a few hundred tests, thousands of times."""
TESTS = ("tests.unit.", "tests.properties.", "tests.integration.", "tests.support.", "tests.fakes.")
MODULES = (
    "assistant.",
    "cli.",
    "common.",
    "contract.",
    "controller.",
    "gateway.",
    "retrieval.",
    "transfers.",
    "worker.",
)

called_on_import: set[str] = set()
"""Functions, by mutmut's names. Any test may use what they made. This is state of a process, as mutmut's own is, and
what is forked has it."""


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """After tests/conftest.py has chosen a profile, choose this one: derandomized, and no search for a smaller example
    of what only has to fail.

    A mutant's process is forked with everything imported, and so with what was made on import, before there was a
    mutant. Tests are imported again; and all of ours, where a test's or a module's import called what is mutated.
    """
    function = get_mutant_under_test().rpartition("__mutmut_")[0]
    again = (*TESTS, *MODULES) if function in called_on_import else TESTS
    for name in [name for name in sys.modules if name.startswith(again)]:
        del sys.modules[name]
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=EXAMPLES,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutation")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests before properties, and no property with more examples than EXAMPLES."""
    items.sort(key=lambda item: "properties" in item.nodeid)
    for item in items:
        function = getattr(item, "obj", None)
        # What a method's name gives is bound, and takes no attribute.
        _lessen(getattr(function, "__func__", function), "_hypothesis_internal_use_settings")
        _lessen(getattr(item, "cls", None), "settings")


def _lessen(target: object, name: str) -> None:
    """Hypothesis lets nobody decorate a test twice, so its settings are put where its decorator puts them; those of a
    state machine are an attribute of the test's class."""
    declared = getattr(target, name, None)
    if isinstance(declared, hypothesis.settings) and declared.max_examples > EXAMPLES:
        setattr(target, name, hypothesis.settings(declared, max_examples=EXAMPLES))


def pytest_collection_finish() -> None:
    """While it is learned which tests call which functions, take what was called by importing the tests."""
    if get_mutant_under_test() == "stats":
        called_on_import.update(state()._stats)
        state()._stats.clear()
