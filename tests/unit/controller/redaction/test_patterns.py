"""What of a definition is hidden, where, and what stays readable."""

from __future__ import annotations

from typing import Any

import pytest

from contract.admin import MASKED
from controller.redaction import collect_secrets, mask_field, mask_fields, mask_text, replace_secrets


def test_every_value_of_headers_is_hidden_and_is_a_secret_in_logs() -> None:
    fields = {"headers": {"Authorization": "Bearer abcdef", "X-Org": "plain", "X-Id": "abc"}, "url": "https://a/plain"}
    assert mask_fields(fields)["headers"] == {"Authorization": MASKED, "X-Org": MASKED, "X-Id": MASKED}
    assert collect_secrets(fields) == {"Bearer abcdef", "abcdef", "plain"}


def test_every_value_of_env_is_hidden_and_its_name_is_not() -> None:
    assert mask_field("env", {"HF_TOKEN": "hf_abc", "THREADS": "4"}) == {"HF_TOKEN": MASKED, "THREADS": MASKED}


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--api-key", "sk-1"], ["--api-key", MASKED]),
        (["--api-key=sk-1", "-v"], [f"--api-key={MASKED}", "-v"]),
        (["--api-key sk-1"], [f"--api-key {MASKED}"]),
        (["--api-key", "k1", "k2", "--port", "1"], ["--api-key", MASKED, MASKED, "--port", "1"]),
        (["--API_KEY", "-dashed"], ["--API_KEY", MASKED]),
        (["-hft", "hf_x"], ["-hft", MASKED]),
        (["--trust-auth", "--port", "80"], ["--trust-auth", "--port", "80"]),
        (["--hf-token=a=b", "x"], [f"--hf-token={MASKED}", "x"]),
        (["--header", "Authorization: Bearer abc.def"], ["--header", f"Authorization: Bearer {MASKED}"]),
        (["--config", '{"api_key": "a b", "n": 1}'], ["--config", f'{{"api_key": "{MASKED}", "n": 1}}']),
        (["--api-key", "k1", "-v"], ["--api-key", MASKED, "-v"]),
        (["--hft", "hf_x"], ["--hft", MASKED]),
        (["--api-key-file=/run/key", "--max-tokens=5"], ["--api-key-file=/run/key", "--max-tokens=5"]),
        (["--api-key-file=https://u:pw@h/k"], [f"--api-key-file={MASKED}"]),
        (["--auth-file=./a?token=x"], [f"--auth-file=./a?token={MASKED}"]),
        (["--api-key-file", "/run/key"], ["--api-key-file", "/run/key"]),
        (["--api-key-file", "sk-1"], ["--api-key-file", MASKED]),
        (["--image-max-tokens", "512"], ["--image-max-tokens", "512"]),
        (["--tokenizer", "org/model"], ["--tokenizer", "org/model"]),
        (["--ctx-size", "4096", "--keep", "-1"], ["--ctx-size", "4096", "--keep", "-1"]),
    ],
)
def test_values_of_telling_flags_are_hidden(args: list[str], shown: list[str]) -> None:
    assert mask_field("extra_args", args) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pw@host/v1", f"https://{MASKED}@host/v1"),
        ("https://token@host", f"https://{MASKED}@host"),
        ("https://u:p@ss/w@host/v1", f"https://{MASKED}@host/v1"),
        ("https://u:p/w@host", f"https://{MASKED}@host"),
        ("https://host:8080/v1", "https://host:8080/v1"),
        ("https://host:8080/@scope/model", "https://host:8080/@scope/model"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
        ("https://host/v1?api_key=abc&x=1", f"https://host/v1?api_key={MASKED}&x=1"),
    ],
)
def test_the_user_part_of_a_url_is_hidden(url: str, shown: str) -> None:
    assert mask_field("base_url", url) == shown
    assert mask_text(f"must be an address, is `{url}`") == f"must be an address, is `{shown}`"


def test_arguments_may_be_anything_that_yaml_has() -> None:
    given = ["--port", 80, None, True, {"api_key": "x", "n": 1}, ["--token", "y"], "--api-key", "sk-1", 5]
    shown = ["--port", 80, None, True, {"api_key": MASKED, "n": 1}, ["--token", MASKED], "--api-key", MASKED, 5]
    assert mask_field("extra_args", given) == shown


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://u:p@ssword@host/v1", {"p@ssword"}),
        ("https://u:pass/w@rd@host/v1", {"pass/w@rd"}),
        ("https://onlytoken@host/v1", {"onlytoken"}),
        ("https://only%40token@host/v1", {"only%40token", "only@token"}),
        ("https://my@secret@host/a@b/c@x", {"my@secret@host/a@b/c", "my@secret"}),
        ("https://host/v1", set()),
    ],
)
def test_of_a_url_what_may_be_the_secret_is_looked_for(url: str, secrets: set[str]) -> None:
    assert collect_secrets({"base_url": url}) == secrets


def test_nested_mappings_are_looked_into() -> None:
    value = {"max_pixels": 4, "max_tokens": 8, "hub": {"Access-Token": "x", "secrets": ["a", "b"], "auth": None}}
    assert mask_field("vllm_mm_processor_kwargs", value) == {
        "max_pixels": 4,
        "max_tokens": 8,
        "hub": {"Access-Token": MASKED, "secrets": MASKED, "auth": None},
    }


def test_what_is_no_secret_is_shown() -> None:
    fields: dict[str, Any] = {
        "model_path": "org/model@main.gguf", "replicas": 2, "enabled": True, "vram_mib": None, "aliases": ["a:b"],
        "api_key_env": "OPENAI_KEY", "api_key_file": "/run/secrets/key", "vllm_max_num_batched_tokens": 8192,
    }  # fmt: skip
    assert mask_fields(fields) == fields
    assert collect_secrets(fields) == frozenset()


@pytest.mark.parametrize("nothing", [None, True, False, "", [], {}])
def test_what_says_nothing_is_shown_under_any_name(nothing: Any) -> None:
    assert mask_field("api_key", nothing) == nothing
    assert collect_secrets({"api_key": nothing, "tokens": ["listed-one", nothing]}) == {"listed-one"}


def test_a_key_where_only_its_place_belongs_is_hidden() -> None:
    assert mask_field("api_key_env", "sk-abcdef") == MASKED
    assert collect_secrets({"api_key_env": "sk-abcdef"}) == {"sk-abcdef"}


def test_a_secret_is_hidden_wherever_else_it_stands() -> None:
    fields = {"extra_args": ["--odd", "x=s3cret-s3cret"], "env": {"HUB_PASSWORD": "s3cret-s3cret"}}
    assert mask_fields(fields)["extra_args"] == ["--odd", f"x={MASKED}"]
    # A short one would take words with it that are none.
    assert mask_fields({"backend": "stub", "env": {"API_KEY": "stub"}})["backend"] == "stub"
    assert mask_fields({"extra_args": ["moved-elsewhere"]}, ["moved-elsewhere"]) == {"extra_args": [MASKED]}
    assert mask_fields({"extra_args": ["x-exactly8"]}, ["exactly8"]) == {"extra_args": [f"x-{MASKED}"]}
    assert mask_fields({"extra_args": ["x-exactly"]}, ["exactly"]) == {"extra_args": ["x-exactly"]}


def test_secrets_to_look_for_in_logs() -> None:
    fields = {
        "model_path": "org/Qwen2.5-7B.gguf",
        "base_url": "https://user:p%40ssword@host",
        "extra_args": ["--api-key=flagged", "--password", "abc"],
        "env": {
            "API_KEY": "named",
            "PLAIN": "a1b2c3d4e5f6g7",
            "NAMED_AFTER": "Qwen2.5-7B.gguf",
            "HF_HOME": "/models/cache/hub1",
            "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
            "BACKEND": "FLASH_ATTN_V1",
            "ALLOC": "expandable_segments:True",
            "DB": "postgres://me:dbpass@db/x",
            "SIGNING_KEY": "-----BEGIN-----\nAAAABBBB\nCCCC\n-----END-----",
        },
    }
    assert collect_secrets(fields) == {
        "p%40ssword", "p@ssword", "flagged", "named", "a1b2c3d4e5f6g7", "dbpass",
        "-----BEGIN-----\nAAAABBBB\nCCCC\n-----END-----", "-----BEGIN-----", "AAAABBBB", "-----END-----",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "secrets"),
    [
        ({"env": {"API_KEY": "abcd"}}, {"abcd"}),
        ({"env": {"API_KEY": "abc"}}, set()),
        ({"env": {"PLAIN": "X1b2c3d4e5f6"}}, {"X1b2c3d4e5f6"}),
        ({"env": {"PLAIN": "a1b2c3d4e5f"}}, set()),
        ({"env": {"ENDPOINT": "https://host1.example/v1"}}, set()),
        ({"env": {"WORDS": "release 2024 b"}}, set()),
        ({"extra_args": ["--config", '{"api_key": "a b c d e"}']}, {"a b c d e"}),
        ({"extra_args": ["--header", "X-Custom: Bearer abc.def"]}, {"abc.def"}),
        ({"extra_args": ["--header", "X-Custom: Bearer ***"]}, set()),
    ],
)
def test_what_is_looked_for(fields: dict[str, Any], secrets: set[str]) -> None:
    assert collect_secrets(fields) == secrets


@pytest.mark.parametrize(
    ("text", "secrets", "left"),
    [
        ("key abcdef.", {"abc", "abcdef"}, "key ***."),
        ("abcdefgh", {"abcde", "defgh"}, "***"),
        ("abcdefgh", {"abcdefgh", "cdef"}, "***"),
        ("abababa", {"aba"}, "***"),
        ("xxxxx", {"xxxx"}, "***"),
        ("a***b", {"***"}, "a***b"),
        ("nothing", {"abcd"}, "nothing"),
        ("aXXXXb", {"XXXX", "a***b"}, "***"),
        ("abcd abcd", {"abcd"}, "*** ***"),
    ],
)
def test_secrets_of_a_text_are_replaced(text: str, secrets: set[str], left: str) -> None:
    assert replace_secrets(text, secrets) == left


def test_a_time_is_no_secret_though_its_name_speaks_of_tokens() -> None:
    assert mask_fields({"stub_token_delay_ms": 20, "token": 20}) == {"stub_token_delay_ms": 20, "token": MASKED}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("is `--api-key hunter2secret`", f"is `--api-key {MASKED}`"),
        ("serve --api-key 'a b' --port 80", f"serve --api-key '{MASKED}' --port 80"),
        ("-hft hf_abc", f"-hft {MASKED}"),
        ("--api-key --port 80", "--api-key --port 80"),
        ("--image-max-tokens 512 --api-key-file /run/key", "--image-max-tokens 512 --api-key-file /run/key"),
        ("the api-key is missing", "the api-key is missing"),
        ("it said Bearer abc.def", f"it said Bearer {MASKED}"),
        ("api_key=abcda", f"api_key={MASKED}"),
        ("api_key=XabcX", f"api_key={MASKED}"),
        ("api_key=//abc/def", f"api_key={MASKED}"),
        ("see token://host/path", "see token://host/path"),
        ('--api-key "', f"--api-key {MASKED}"),
        ('--api-key ""', '--api-key ""'),
    ],
)
def test_what_follows_a_telling_flag_within_a_text_is_hidden(text: str, shown: str) -> None:
    assert mask_text(text) == shown
