"""Which replica a request about an engine's state is sent to."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.exchange.replica_choice import find_named_replica
from tests.fakes.fake_controller import route


def _model(*replicas: tuple[str, int]) -> ModelRoute:
    endpoints = tuple(Endpoint(replica=name, index=index, base_url="http://x") for name, index in replicas)
    return route("m").model_copy(update={"endpoints": endpoints})


PAIR = _model(("rh-m-1-aa-0", 1), ("rh-m-3-bb-0", 3))


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (b"replica=1", "rh-m-1-aa-0"),
        (b"action=save&replica=3&model=m", "rh-m-3-bb-0"),
        (b"replica=rh-m-3-bb-0", "rh-m-3-bb-0"),
        (b"replica=rh%2Dm-1-aa-0", "rh-m-1-aa-0"),
        (b"replica=1&replica=3", "rh-m-3-bb-0"),
    ],
)
def test_a_replica_is_named_by_its_number_or_its_name(query: bytes, name: str) -> None:
    for must_choose in (False, True):
        found = find_named_replica(PAIR, query, must_choose=must_choose)
        assert found is not None
        assert found.replica == name


def test_only_a_change_of_one_of_several_must_name_it() -> None:
    assert find_named_replica(PAIR, b"model=m", must_choose=False) is None
    assert find_named_replica(PAIR, b"", must_choose=False) is None
    for alone in (_model(("rh-m-0-aa-0", 0)), _model()):
        assert find_named_replica(alone, b"model=m", must_choose=True) is None


@pytest.mark.parametrize(
    ("query", "start"),
    [
        (b"", "'m' has 2 replicas, each with a state of its own."),
        (b"model=m", "'m' has 2 replicas, each with a state of its own."),
        (b"replica=0", "No replica '0' serves 'm' now."),
        (b"replica=rh-m-1", "No replica 'rh-m-1' serves 'm' now."),
        (b"replica=%FF" + b"x" * 200, "No replica '"),
    ],
)
def test_what_is_refused_lists_the_replicas(query: bytes, start: str) -> None:
    with pytest.raises(RoundhouseError) as caught:
        find_named_replica(PAIR, query, must_choose=True)
    error = caught.value
    assert (error.entry.code, error.param) == ("invalid_request", "replica")
    assert error.message.startswith(start)
    assert error.message.endswith(" Name one: `?replica=1`, or by name: rh-m-1-aa-0, rh-m-3-bb-0.")
    assert len(error.message) < 300
