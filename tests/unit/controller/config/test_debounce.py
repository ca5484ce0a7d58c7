"""When what the files say comes into force."""

from __future__ import annotations

from controller.config.debounce import CONFIRM_S, DebouncedState, debounce
from controller.config.parse import ParsedFolder
from tests.support.config_files import parse_text

BROKEN = parse_text("models: [")


def declaring(*names: str, **aliases: str) -> ParsedFolder:
    models = ", ".join(f"{name}: {{backend: stub, aliases: [{aliases.get(name, '')}]}}" for name in names)
    parsed = parse_text(f"models: {{{models}}}")
    assert parsed.is_valid, parsed.problems
    return parsed


def names(settled: DebouncedState | None) -> list[str]:
    assert settled is not None
    return sorted(settled.definitions)


def test_nothing_was_ever_known() -> None:
    assert debounce(None, BROKEN, 0.0) is None


def test_a_first_good_read_is_in_force_at_once_also_when_it_declares_nothing() -> None:
    assert names(debounce(None, declaring("a"), 0.0)) == ["a"]
    assert names(debounce(None, parse_text("models: {}"), 0.0)) == []


def test_a_new_model_and_an_edit_come_into_force_at_once() -> None:
    settled = debounce(debounce(None, declaring("a"), 0.0), declaring("a", "b", a="x"), 1.0)
    assert names(settled) == ["a", "b"]
    assert settled is not None
    assert settled.definitions["a"].aliases == ["x"]
    assert settled.wake_at is None


def test_a_vanished_model_goes_after_two_agreeing_reads() -> None:
    settled = debounce(debounce(None, declaring("a", "b"), 0.0), declaring("a"), 10.0)
    assert settled is not None
    assert names(settled) == ["a", "b"]
    assert settled.missing == {"b": 10.0}
    assert settled.wake_at == 10.0 + CONFIRM_S
    settled = debounce(settled, declaring("a"), 11.9)
    assert names(settled) == ["a", "b"]
    settled = debounce(settled, declaring("a"), 12.0)
    assert names(settled) == ["a"]
    assert settled == DebouncedState(declaring("a").definitions, declaring("a").declared_models)


def test_a_model_that_comes_back_in_time_was_never_gone() -> None:
    settled = debounce(debounce(None, declaring("a", "b"), 0.0), declaring("a"), 10.0)
    settled = debounce(settled, declaring("a", "b"), 10.5)
    assert settled is not None
    assert settled.missing == {}
    settled = debounce(settled, declaring("a"), 12.5)
    assert names(settled) == ["a", "b"]


def test_a_broken_file_changes_nothing_and_agrees_with_nothing() -> None:
    settled = debounce(debounce(None, declaring("a", "b"), 0.0), declaring("a"), 10.0)
    settled = debounce(settled, BROKEN, 11.0)
    assert settled is not None
    assert (names(settled), settled.missing, settled.wake_at) == (["a", "b"], {}, None)
    settled = debounce(settled, declaring("a"), 13.0)
    assert names(settled) == ["a", "b"]


def test_all_models_at_once_are_drained_by_an_empty_mapping_only_after_two_reads() -> None:
    settled = debounce(debounce(None, declaring("a"), 0.0), parse_text("models: {}"), 1.0)
    assert names(settled) == ["a"]
    assert names(debounce(settled, parse_text("models: {}"), 3.0)) == []


def test_each_model_has_its_own_time() -> None:
    settled = debounce(debounce(None, declaring("a", "b"), 0.0), declaring("b"), 10.0)
    settled = debounce(settled, parse_text("models: {}"), 11.0)
    assert settled is not None
    assert settled.missing == {"a": 10.0, "b": 11.0}
    assert settled.wake_at == 12.0
    assert names(debounce(settled, parse_text("models: {}"), 12.0)) == ["b"]


def test_a_clock_that_was_set_back_keeps_no_model_for_ever() -> None:
    settled = debounce(debounce(None, declaring("a", "b"), 1000.0), declaring("a"), 1000.0)
    settled = debounce(settled, declaring("a"), 5.0)
    assert settled is not None
    assert settled.wake_at == 7.0
    assert names(debounce(settled, declaring("a"), 7.0)) == ["a"]


def test_a_renamed_model_keeps_its_old_name_as_an_alias_once_the_old_one_has_left() -> None:
    old, new = declaring("chat", chat="gpt"), declaring("talk", talk="chat, gpt")
    settled = debounce(debounce(None, old, 0.0), new, 10.0)
    assert settled is not None
    # For a moment both are in force: the old model still has its name, the new one the alias of both.
    assert settled.definitions["talk"].aliases == ["gpt"]
    assert settled.definitions["chat"].aliases == []
    settled = debounce(settled, new, 12.0)
    assert settled is not None
    assert settled.definitions["talk"].aliases == ["chat", "gpt"]
    assert names(settled) == ["talk"]
