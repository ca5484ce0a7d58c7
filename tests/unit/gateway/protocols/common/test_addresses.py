"""Addresses in what engines say."""

from __future__ import annotations

import pytest

from controller.runtimes.naming import replica_name
from controller.state import ReplicaId
from gateway.protocols.common.addresses import HIDDEN, hide_addresses, hide_in_json

REPLICA = replica_name("prod", ReplicaId("org/Qwen-3.5", 1, "0123456789abcdef", 12))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("connect to host engine-7:80 ssl:default [refused]", f"connect to host {HIDDEN} ssl:default [refused]"),
        ("see http://engine:8000/v1/models?x=1#y.", f"see {HIDDEN}."),
        ("(http://user:pass@10.0.0.1/x), and more", f"({HIDDEN}), and more"),
        ('{"url": "http:\\/\\/engine\\/v1"}', f'{{"url": "{HIDDEN}"}}'),
        ("dial tcp 10.1.2.3:9000: connect: refused", f"dial tcp {HIDDEN}: connect: refused"),
        ("listening on 0.0.0.0", f"listening on {HIDDEN}"),
        ("peer 10.0.0.0/24 left", f"peer {HIDDEN} left"),
        ("dial tcp [fe80::1%25eth0]:80", f"dial tcp {HIDDEN}"),
        ("dial tcp [::1]:8080: refused", f"dial tcp {HIDDEN}: refused"),
        ("bound to [::]:8080", f"bound to {HIDDEN}"),
        ("from 2001:db8::7, gone", f"from {HIDDEN}, gone"),
        ("from ::1: gone", f"from {HIDDEN}: gone"),
        ("from ::ffff:10.0.0.1", f"from {HIDDEN}"),
        ("from 2001:db8:0:0:0:0:0:1:8080", f"from {HIDDEN}"),
        ("route fe80::1%eth0/64", f"route {HIDDEN}"),
        ("addr=fe80::1.", f"addr={HIDDEN}."),
        (f"container /{REPLICA} is gone", f"container /{HIDDEN} is gone"),
        (f"{REPLICA}: killed", f"{HIDDEN}: killed"),
        ("HTTPConnectionPool(host='engine', port=8000): no", f"HTTPConnectionPool(host='{HIDDEN}', port=8000): no"),
        ('{"host": "engine", "hostname":"e"}', f'{{"host": "{HIDDEN}", "hostname":"{HIDDEN}"}}'),
        ("no answer of engine.ns.svc.cluster.local", f"no answer of {HIDDEN}"),
        ("host gpu-1.internal.", f"host {HIDDEN}."),
        (r"\n10.0.0.1, \u003c10.0.0.1 \nfe80::1 \nengine:80", rf"\n{HIDDEN}, \u003c{HIDDEN} \n{HIDDEN} \{HIDDEN}"),
        ("10.0.0.1-10.0.0.9", f"{HIDDEN}-{HIDDEN}"),
        ("postgresql://db/x and me@db:5432", f"{HIDDEN} and me@{HIDDEN}"),
    ],
)  # fmt: skip
def test_addresses_are_hidden(said: str, told: str) -> None:
    assert hide_addresses(said) == told


@pytest.mark.parametrize(
    "said",
    [
        "",
        "the request exceeds the available context size (4096 tokens): 5000 > 4096",
        "'max_tokens' is too large: 4096. At 12:30:45, on 2026-11-22T12:30:45Z",
        "body.messages.0.content: Input should be a valid string [type=string_type, input_value=7]",
        "messages[2].role: must be user; a ratio of 3:1, std::string, ::, cuda:0",
        "ubuntu:22.04, llama-cpp 0.3.16, v1.2.3.4, sha256:0123456789abcdef, data:image/png;base64,AAAA",
        "parse error at line 1, column 12: unexpected '}'; expected: port 8080 or a host: none",
        "rh-negative is no replica, nor is rh-prod-m-0",
        "a slash // is no URL, and:// is none",
    ],
)
def test_other_words_stay(said: str) -> None:
    assert hide_addresses(said) == said


def test_in_json_texts_and_names_are_looked_at() -> None:
    said = {"message": "at 10.0.0.1", "10.0.0.2": [{"x": ["http://a/b", 1, None, True, 1.5]}]}
    assert hide_in_json(said) == {"message": f"at {HIDDEN}", HIDDEN: [{"x": [HIDDEN, 1, None, True, 1.5]}]}
    with pytest.raises(RecursionError):
        hide_in_json(_nested(100_000))


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value
