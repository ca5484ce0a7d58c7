"""Labels: written, read back, refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.status import SCHEMA_VERSION
from controller.engines.stub import StubDefinition
from controller.runtimes.base import StartRequest
from controller.runtimes.docker.container_spec import (
    ATTEMPT,
    CLAIMS,
    INSTANCE,
    MODEL,
    PROBE_ROLE,
    REPLICA,
    REPLICA_ROLE,
    SCHEMA,
    SPEC_HASH,
    UnreadableLabelsError,
    is_own,
    own_filter,
    own_labels,
    read_labels,
    write_labels,
)
from controller.state import ReplicaId
from tests.support.campaign import campaign_count


def request(replica: ReplicaId, claims: dict[str, int]) -> StartRequest:
    return StartRequest(replica, "rh-x", StubDefinition(backend="stub"), replica.model, None, "SECRET", claims)


@settings(max_examples=campaign_count(40, 3_000))
@given(
    st.text(min_size=1),
    st.integers(0, 255),
    st.integers(1, 10**6),
    st.dictionaries(st.text(), st.integers(0, 2**20)),
)
def test_what_is_written_is_read(model: str, index: int, attempt: int, claims: dict[str, int]) -> None:
    replica = ReplicaId(model, index, "0123456789abcdef", attempt)
    labels = write_labels("one", request(replica, claims), 1.0)
    assert all(isinstance(value, str) for value in labels.values())
    assert (read_labels(labels).id, read_labels(labels).claims) == (replica, claims)
    assert "SECRET" not in str(labels)


LABELS = write_labels("one", request(ReplicaId("m", 0, "0" * 16), {}), 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({SCHEMA: str(SCHEMA_VERSION + 1)}, "schema_version"),
        ({SCHEMA: "x"}, "invalid literal"),
        ({SCHEMA: None}, "is missing"),
        ({MODEL: None}, "is missing"),
        ({SPEC_HASH: None}, "is missing"),
        ({REPLICA: "one"}, "invalid literal"),
        ({ATTEMPT: ""}, "invalid literal"),
        ({CLAIMS: "{"}, "Expecting"),
        ({CLAIMS: "[]"}, "not a mapping"),
        ({CLAIMS: '{"GPU-a": "many"}'}, "not a mapping"),
        ({CLAIMS: '{"GPU-a": true}'}, "not a mapping"),
    ],
)
def test_labels_that_cannot_be_trusted_are_unreadable(change: dict[str, str | None], words: str) -> None:
    changed = {key: value for key, value in {**LABELS, **change}.items() if value is not None}
    with pytest.raises(UnreadableLabelsError, match=words):
        read_labels(changed)


def test_only_this_instance_s_own_are_own() -> None:
    assert is_own(LABELS, "one", REPLICA_ROLE)
    assert not is_own(LABELS, "two", REPLICA_ROLE)
    assert not is_own(own_labels("one", PROBE_ROLE), "one", REPLICA_ROLE)
    assert not is_own({INSTANCE: "one"}, "one", REPLICA_ROLE)
    assert not is_own({}, "one", REPLICA_ROLE)
    assert not is_own(None, "one", REPLICA_ROLE)
    assert own_filter("one") == ["dev.roundhouse.managed-by=roundhouse", "dev.roundhouse.instance=one"]
