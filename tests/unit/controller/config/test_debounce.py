"""When what the files say comes into force."""

from __future__ import annotations

from controller.config.debounce import CONFIRM_S, DebouncedState, debounce
from controller.config.parse import ParsedFolder
from tests.support.definitions import parse_text

BROKEN = parse_text("models: [")


def declaring(*names: str, **aliases: str) -> ParsedFolder:
    models = ", ".join(f"{name}: {{backend: stub, aliases: [{aliases.get(name, '')}]}}" for name in names)
    parsed = parse_text(f"models: {{{models}}}")
    assert parsed.is_valid, parsed.problems
    return parsed


EMPTY = parse_text("models: {}")
A, BOTH = declaring("a"), declaring("a", "b")


def after(*reads: tuple[ParsedFolder, float]) -> DebouncedState:
    """What is in force after reads at these times."""
    settled: DebouncedState | None = None
    for parsed, now in reads:
        settled = debounce(settled, parsed, now)
    assert settled is not None
    return settled


def names(*reads: tuple[ParsedFolder, float]) -> list[str]:
    return sorted(after(*reads).definitions)


def test_a_first_good_read_is_in_force_at_once_also_when_it_declares_nothing() -> None:
    assert debounce(None, BROKEN, 0.0) is None
    assert names((A, 0.0)) == ["a"]
    assert names((EMPTY, 0.0)) == []


def test_a_new_model_and_an_edit_come_into_force_at_once() -> None:
    settled = after((A, 0.0), (declaring("a", "b", a="x"), 1.0))
    assert settled.definitions.keys() == {"a", "b"}
    assert (settled.definitions["a"].aliases, settled.wake_at) == (["x"], None)


def test_a_vanished_model_goes_after_two_agreeing_reads() -> None:
    vanished = ((BOTH, 0.0), (A, 10.0))
    settled = after(*vanished)
    assert settled.definitions.keys() == {"a", "b"}
    assert (settled.missing, settled.wake_at) == ({"b": 10.0}, 10.0 + CONFIRM_S)
    assert names(*vanished, (A, 11.9)) == ["a", "b"]
    assert after(*vanished, (A, 11.9), (A, 12.0)) == DebouncedState(A.definitions, A.declared_models)
    # One that comes back in time was never gone.
    assert after(*vanished, (BOTH, 10.5)).missing == {}
    assert names(*vanished, (BOTH, 10.5), (A, 12.5)) == ["a", "b"]


def test_a_broken_file_changes_nothing_and_agrees_with_nothing() -> None:
    reads = ((BOTH, 0.0), (A, 10.0), (BROKEN, 11.0))
    settled = after(*reads)
    assert (sorted(settled.definitions), settled.missing, settled.wake_at) == (["a", "b"], {}, None)
    assert names(*reads, (A, 13.0)) == ["a", "b"]


def test_each_model_has_its_own_time_and_all_are_drained_by_an_empty_mapping_only_after_two_reads() -> None:
    reads = ((BOTH, 0.0), (declaring("b"), 10.0), (EMPTY, 11.0))
    settled = after(*reads)
    assert (settled.missing, settled.wake_at) == ({"a": 10.0, "b": 11.0}, 12.0)
    assert names(*reads, (EMPTY, 12.0)) == ["b"]
    assert names((A, 0.0), (EMPTY, 1.0)) == ["a"]
    assert names((A, 0.0), (EMPTY, 1.0), (EMPTY, 3.0)) == []


def test_a_clock_that_was_set_back_keeps_no_model_for_ever() -> None:
    reads = ((BOTH, 1000.0), (A, 1000.0), (A, 5.0))
    assert after(*reads).wake_at == 7.0
    assert names(*reads, (A, 7.0)) == ["a"]


def test_a_renamed_model_keeps_its_old_name_as_an_alias_once_the_old_one_has_left() -> None:
    old, new = declaring("chat", chat="gpt"), declaring("talk", talk="chat, gpt")
    settled = after((old, 0.0), (new, 10.0))
    # For a moment both are in force: the old model still has its name, the new one the alias of both.
    assert settled.definitions["talk"].aliases == ["gpt"]
    assert settled.definitions["chat"].aliases == []
    settled = after((old, 0.0), (new, 10.0), (new, 12.0))
    assert settled.definitions["talk"].aliases == ["chat", "gpt"]
    assert settled.definitions.keys() == {"talk"}


def test_what_is_served_because_it_is_there_stays_until_two_reads_agree() -> None:
    found = parse_text("models: {}\ndiscover: true")
    assert after((EMPTY, 0.0), (found, 1.0)).discover, "at once"
    away = ((found, 0.0), (EMPTY, 10.0))
    assert (after(*away).discover, after(*away).wake_at) == (True, 10.0 + CONFIRM_S)
    assert after(*away, (EMPTY, 11.9)).discover
    assert after(*away, (EMPTY, 11.9), (EMPTY, 12.0)) == DebouncedState({}, {})
    assert after(*away, (found, 11.0), (EMPTY, 12.5)).discover, "it was there in between"
    assert after(*away, (BROKEN, 11.0), (EMPTY, 12.5)).discover, "a broken file agrees with nothing"
