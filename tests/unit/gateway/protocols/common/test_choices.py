"""How many answers are asked for, how many an engine makes, and how many slots they take."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.choices import check_choices, count_slots
from tests.fakes.fake_controller import route


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        ({}, 1),
        ({"n": 1}, 1),
        ({"n": 3}, 3),
        ({"n": 9}, 4),
        ({"n_cmpl": 2, "n": 3}, 2),
        ({"n_cmpl": 1, "n": 3}, 1),
        ({"n_cmpl": None, "n": 3}, 3),
        ({"n_cmpl": True, "n": 3}, 1),
        ({"n": None}, 1),
        ({"n": True}, 1),
        ({"n": "3"}, 1),
        ({"n": -1}, 1),
        ({"prompt": "one"}, 1),
        ({"prompt": ["one"], "n": 2}, 2),
        ({"prompt": ["one", "two"]}, 2),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": [1, 2, 3, 4, 5]}, 1),
        ({"prompt": ["one", 2, "three"]}, 1),
        ({"prompt": ["one", [2, 3], [4, "five"]]}, 3),
        ({"prompt": {"prompt_string": "one"}}, 1),
        ({"prompt": [{"prompt_string": "one"}, {"prompt_string": "two"}]}, 2),
        ({"prompt": [], "n": 2}, 2),
    ],
)
def test_each_answer_to_each_prompt_takes_a_slot(fields: dict[str, Any], slots: int) -> None:
    assert count_slots(fields, route("m", target_inflight=4)) == slots
    assert count_slots(fields, route("m", target_inflight=4, choices_take_slots=False)) == 1


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_more_answers_than_the_engine_makes_are_refused(name: str) -> None:
    model = route("m", max_choices=4)
    check_choices({name: 4}, model)
    check_choices({name: 5}, route("m"))
    with pytest.raises(RoundhouseError) as caught:
        check_choices({name: 5}, model)
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", name)
    assert "at most 4" in caught.value.message
    assert "it is 5" in caught.value.message
