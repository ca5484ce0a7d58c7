"""Replica names and tokens."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.runtimes.base import replica_name, replica_token
from controller.state import ReplicaId
from tests.support.campaign import campaign_count

HASH = "0123456789abcdef"
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
CONTAINER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")

models = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}", fullmatch=True)


def name_of(model: str, index: int = 0, attempt: int = 1) -> str:
    return replica_name("a1b2c3", ReplicaId(model, index, HASH, attempt))


def test_what_a_slug_loses_is_kept_in_a_digest() -> None:
    assert name_of("llama-3", 2, 7) == "rh-a1b2c3-llama-3-2-01234567-7"
    similar = ["a-b", "a.b", "a/b", "A-b", "a--b", "a-b-", "a:b"]
    names = [name_of(model) for model in similar]
    assert len(set(names)) == len(similar)
    assert names[0] == "rh-a1b2c3-a-b-0-01234567-1"
    assert all(re.fullmatch(r"rh-a1b2c3-a-b-[0-9a-f]{8}-0-01234567-1", name) for name in names[1:])
    slug = name_of("a.b").removeprefix("rh-a1b2c3-").removesuffix("-0-01234567-1")
    assert name_of(slug) != name_of("a.b"), "no model can be named as another's slug"
    assert re.fullmatch(r"rh-a1b2c3-[0-9a-f]{8}-0-01234567-1", name_of("++"))
    long = name_of("x" * 200, 255, 999_999)
    assert len(long) == 63
    assert long != name_of("x" * 199, 255, 999_999)


@settings(max_examples=campaign_count(40, 3_000))
@given(models, st.integers(0, 255), st.integers(1, 10**6), st.from_regex(r"[a-z0-9]{1,16}", fullmatch=True))
def test_every_name_is_a_dns_label_and_a_container_name(model: str, index: int, attempt: int, instance: str) -> None:
    name = replica_name(instance, ReplicaId(model, index, HASH, attempt))
    assert len(name) <= 63
    assert DNS_LABEL.fullmatch(name)
    assert CONTAINER.fullmatch(name)
    assert name.startswith(f"rh-{instance}-")
    assert name.endswith(f"-{index}-01234567-{attempt}")


@settings(max_examples=campaign_count(20, 1_000))
@given(st.lists(models, min_size=2, max_size=20, unique=True))
def test_models_have_different_names(names: list[str]) -> None:
    assert len({name_of(model) for model in names}) == len(names)


@settings(max_examples=campaign_count(40, 3_000))
@given(models)
def test_a_models_slug_is_the_same_for_all_its_replicas(model: str) -> None:
    slugs = {
        name_of(model, index, attempt).removesuffix(f"-{index}-01234567-{attempt}")
        for index, attempt in ((0, 1), (255, 999_999))
    }
    assert len(slugs) == 1


@pytest.mark.parametrize("instance", ["", "A", "a-b", "a" * 17, "a/b"])
def test_an_instance_that_breaks_names_is_refused(instance: str) -> None:
    with pytest.raises(ValueError, match="1 to 16 lower case letters and digits"):
        replica_name(instance, ReplicaId("m", 0, HASH))


def test_tokens_depend_on_secret_and_name() -> None:
    # printf name | openssl dgst -sha256 -hmac secret
    expected = "fba2e7cc7754d222b9a83c87eea9d13baa8a323b4cbff7032e3e039069de712b"
    assert replica_token(b"secret", "name") == expected
    assert replica_token(b"secret", "name") != replica_token(b"secret", "name2")
    assert replica_token(b"secret", "name") != replica_token(b"secret2", "name")
