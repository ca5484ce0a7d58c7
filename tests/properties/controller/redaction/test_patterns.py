"""No secret gets out, wherever in a definition it was put and whatever is written around it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.admin import MASKED
from controller.config.parse import parse_folder
from controller.desired.differences import diff_models
from controller.redaction import collect_secrets, mask_field, mask_fields, mask_text, replace_secrets
from tests.support.campaign import campaign_count
from tests.support.definitions import MODELS_ROOT, snapshot

CHARACTERS = "abcXYZ0189.-_+=/@:,;!~#%&?*$^éß"
SECRETS = st.text(CHARACTERS, min_size=8, max_size=30).filter(lambda text: text[0] not in "-./~" and text.isascii())
NAMES = st.sampled_from(
    ("api-key", "hf_token", "Client-Secret", "PASSWORD", "passwd", "auth", "aws.credentials", "KEY")
)
URL_PASSWORDS = st.text("abcXYZ0189.-_+=@:,;!~%$*", min_size=8, max_size=30)
HARMLESS = st.sampled_from(("--port", "80", "-v", "model.gguf", "--ctx-size=4096", "a b", "--jinja", "x://y", "k=v"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def definitions(draw: st.DrawFn) -> tuple[dict[str, Any], list[str]]:
    """A definition, and the secrets that were put into it."""
    secrets = draw(st.lists(SECRETS, min_size=1, max_size=4))
    fields: dict[str, Any] = {"backend": "stub", "model_path": "m.gguf", "env": {}, "extra_args": [], "kwargs": {}}
    for number, secret in enumerate(secrets):
        name = draw(NAMES)
        match draw(st.sampled_from(("env", "flag", "joined", "nested", "listed", "json"))):
            case "env":
                fields["env"][f"{name}{number}"] = secret
            case "flag":
                fields["extra_args"] += [f"--{name}", secret]
            case "joined":
                fields["extra_args"].append(f"--{name}={secret}")
            case "nested":
                fields["kwargs"][str(number)] = {name: secret, "n": number}
            case "listed":
                fields["kwargs"].setdefault(name, []).append({"deep": secret})
            case "json":
                fields["extra_args"] += ["--config", json.dumps({name: secret})]
        fields["extra_args"] += draw(st.lists(HARMLESS, max_size=2))
    if draw(st.booleans()):
        password = draw(URL_PASSWORDS)
        secrets.append(password)
        fields["base_url"] = f"https://user:{password}@host:80/v1"
    return fields, secrets


@settings(max_examples=campaign_count(40, 1_000))
@given(definitions())
def test_a_row_shows_no_secret(made: tuple[dict[str, Any], list[str]]) -> None:
    fields, secrets = made
    row = json.dumps(mask_fields(fields))
    for secret in secrets:
        assert secret not in row
    assert json.dumps({name: mask_field(name, value) for name, value in fields.items()}).count(MASKED)
    assert mask_fields(mask_fields(fields)) == mask_fields(fields)


@settings(max_examples=campaign_count(40, 1_000))
@given(definitions(), st.text(max_size=20), st.data())
def test_a_log_shows_no_secret(made: tuple[dict[str, Any], list[str]], between: str, data: st.DataObject) -> None:
    fields, secrets = made
    found = collect_secrets(fields)
    pieces = data.draw(st.lists(st.sampled_from([*secrets, *found, between, "words"]), max_size=8))
    text = replace_secrets("".join(pieces), found)
    for secret in [*secrets, *found]:
        assert secret not in text


@settings(max_examples=campaign_count(40, 1_000))
@given(definitions(), definitions())
def test_a_difference_shows_no_secret(
    before: tuple[dict[str, Any], list[str]], after: tuple[dict[str, Any], list[str]]
) -> None:
    for edit in [
        *diff_models({"m": before[0]}, {"m": after[0]}),
        *diff_models({}, {"m": after[0]}),
        *diff_models({"m": before[0]}, {}),
    ]:
        shown = json.dumps([[change.before, change.after] for change in edit.fields])
        for secret in (*before[1], *after[1]):
            assert secret not in shown


@settings(max_examples=campaign_count(40, 1_000))
@given(st.dictionaries(st.text(max_size=20) | NAMES | st.just("env"), JSON, max_size=5))
def test_any_json_has_a_row_of_the_same_names(fields: dict[str, Any]) -> None:
    row = mask_fields(fields)
    assert row.keys() == fields.keys()
    json.dumps(row)
    collect_secrets(fields)


@settings(max_examples=campaign_count(40, 1_000))
@given(st.text("ab:/@?=&\"'\\ keytokn-.", max_size=60))
def test_masking_a_text_twice_changes_nothing_more(text: str) -> None:
    assert mask_text(mask_text(text)) == mask_text(text)


@st.composite
def wrong_files(draw: st.DrawFn) -> tuple[str, str]:
    """A file with a secret where one may stand, and something wrong with it; and the secret."""
    secret = draw(st.text("abcXYZ089_", min_size=8, max_size=24) | st.integers(10**9, 10**30).map(str))
    written = draw(
        st.sampled_from(
            ("{}", "'{}'", "*{}", "!{} x", "!{}!y x", "&{} x", "[{}]", "[[{}]]", "{{A: {}}}", "{{A: [{}]}}",
             "--api-key {}", "--api-key={}", "'--api-key {}'", ".{}", "-{}", "{}: x", "\"{}",
             "[{}", "%{}", "@{}", "|\n{}")
        )
    ).format(secret)  # fmt: skip
    below = draw(
        st.sampled_from(("env: {}", "extra_args: {}", "env: {{A: {}}}", "extra_args: [{}]", "api_key_env: {}"))
    )
    fields = draw(st.sampled_from(("backend: stub", "backend: llama_server", "backend: openai_remote", "replicas: 0")))
    return f"models:\n  m:\n    {fields}\n    {below.format(written)}\n", secret


@settings(max_examples=campaign_count(40, 1_000))
@given(wrong_files())
def test_a_problem_shows_no_value_where_secrets_stand(made: tuple[str, str]) -> None:
    text, secret = made
    for problem in parse_folder(snapshot({"models.yaml": text}), MODELS_ROOT).problems:
        assert secret not in problem.message, (text, problem)
