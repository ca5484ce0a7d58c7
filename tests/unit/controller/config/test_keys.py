"""Keys in desired-state files: what is taken, and what is said of the rest."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controller.config.debounce import CONFIRM_S, DebouncedState, debounce
from controller.config.parse import ParsedFolder
from controller.routing_table import build_keys
from tests.support.definitions import parse_text, problems_of

A, B = "a" * 64, "b" * 64
SECRET = "rh-" + "s" * 43


def of_key(*lines: str) -> list[str]:
    """The problems of one key with these fields, without the file's name."""
    text = "\n".join(["models: {}", "keys:", "  ci:", *(f"    {line}" for line in lines)])
    return [problem.removeprefix("desired-state/models.yaml:") for problem in problems_of(text)]


def test_everything_that_a_key_may_say() -> None:
    parsed = parse_text(
        f"""
        models: {{}}
        keys:
          ci:
            sha256: {A}
            scopes: [inference, admin]
            models: [gemma, "gpt-*", "*"]
            tools: [current_time, "weather__*"]
            tenant: team@example
            weight: 2
            service_tiers: [priority]
            requests_per_minute: 60
            tokens_per_minute: 100000
            concurrency: 4
            expires: 2027-01-31
          plain: {{sha256: {B}}}
        """
    )
    assert not parsed.problems
    full, plain = build_keys(parsed.keys)
    assert full.model_dump() == {
        "name": "ci",
        "sha256": A,
        "tenant": "team@example",
        "scopes": ("inference", "admin"),
        "models": ("gemma", "gpt-*", "*"),
        "tools": ("current_time", "weather__*"),
        "weight": 2.0,
        "service_tiers": ("priority",),
        "requests_per_minute": 60,
        "tokens_per_minute": 100000,
        "concurrency": 4,
        "expires_at": datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC).timestamp(),
    }
    assert (plain.tenant, plain.scopes, plain.models, plain.tools) == ("plain", ("inference",), None, ())
    assert plain.expires_at is None
    assert parsed.declared_keys["ci"]["expires"] == "2027-01-31"


@pytest.mark.parametrize("nothing", ["", "keys:", "keys: null", "keys: {}", "keys: {ci: null}"])
def test_files_without_keys_declare_none(nothing: str) -> None:
    parsed = parse_text(f"models: {{}}\n{nothing}")
    assert (parsed.is_valid, parsed.keys) == (True, {})


def test_files_are_merged_as_they_are_for_models() -> None:
    parsed = parse_text(
        f"models: {{}}\nkeys:\n  ci: {{sha256: {A}, scopes: [admin], weight: 2}}\n  old: {{sha256: {B}}}\n",
        local="keys: {ci: {scopes: [inference], weight: null}, old: null}",
    )
    assert parsed.declared_keys == {"ci": {"sha256": A, "scopes": ["inference"]}}
    assert problems_of(f"models: {{}}\nkeys: {{ci: {{sha256: {A}}}}}", local="keys: {ci: {weight: -1}}") == [
        "desired-state/local.yaml:1: keys.ci.weight: must be more than 0, is -1"
    ]


def test_models_and_keys_may_stand_in_files_of_their_own_but_keys_alone_are_no_desired_state() -> None:
    [problem] = problems_of(keys=f"keys: {{ci: {{sha256: {A}}}}}")
    assert problem == "desired-state: no file has the key `models`; `models: {}` declares that there are none"
    parsed = parse_text("models: {a: {backend: stub}}", keys=f"keys: {{ci: {{sha256: {A}}}}}")
    assert (list(parsed.definitions), list(parsed.keys)) == (["a"], ["ci"])


def test_the_digest_is_of_keys_too() -> None:
    one, other = (parse_text(f"models: {{}}\nkeys: {{ci: {{sha256: {each}}}}}") for each in (A, B))
    assert len({one.digest, other.digest, parse_text("models: {}").digest}) == 3


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (["sha: x"], "3: keys.ci.sha256: is required: `roundhouse key new` prints it"),
        ([f"sha256: {SECRET}"], "4: keys.ci.sha256: looks like the secret itself: give its SHA-256"),
        (["sha256: rh-short"], "4: keys.ci.sha256: looks like the secret itself"),
        ([f"sha256: {A.upper()}"], "4: keys.ci.sha256: must be in lower case"),
        ([f"sha256: {A[1:]}"], "4: keys.ci.sha256: must be the SHA-256 of the secret, 64 hex digits; is a string"),
        (["sha256: hunter2"], "4: keys.ci.sha256: must be the SHA-256 of the secret, 64 hex digits; is a string of 7 "),
        (["sha256: 12"], "4: keys.ci.sha256: must be 64 hex digits in quotes, is a number"),
        (["sha256: [x]"], "4: keys.ci.sha256: must be 64 hex digits in quotes, is a list"),
        ([f"sha256: {A}", "modles: [a]"], "5: keys.ci.modles: unknown field; did you mean `models`?"),
        ([f"sha256: {A}", "scopes: admin"], '5: keys.ci.scopes: must be a list, is the text "admin"'),
        ([f"sha256: {A}", "scopes: []"], "5: keys.ci.scopes: must have at least 1 item(s)"),
        (
            [f"sha256: {A}", "scopes: [inferense]"],
            "5: keys.ci.scopes[0]: must be `inference` or `admin`, is `inferense`; did you mean `inference`?",
        ),
        ([f"sha256: {A}", "models: gemma"], '5: keys.ci.models: must be a list, is the text "gemma"'),
        ([f"sha256: {A}", "models: [1]"], "5: keys.ci.models[0]: must be a string, is a number: put it in quotes"),
        (
            [f"sha256: {A}", "models:", "- a", '- "?x"'],
            "7: keys.ci.models[1]: no model can have such a name: `?x`; `*` stands for any text",
        ),
        ([f"sha256: {A}", "models: ['']"], "5: keys.ci.models[0]: no model can have such a name: ``"),
        ([f"sha256: {A}", "models: ['a b']"], "5: keys.ci.models[0]: no model can have such a name: `a b`"),
        ([f"sha256: {A}", f"models: [{SECRET}é]"], "5: keys.ci.models[0]: no model can have such a name: a string"),
        (
            [f"sha256: {A}", "tenant: a/b"],
            "5: keys.ci.tenant: must begin with a letter or digit and hold only letters, digits and . _ @ -; is `a/b`",
        ),
        ([f"sha256: {A}", "tenant: 7"], "5: keys.ci.tenant: must be a string, is a number: put it in quotes"),
        ([f"sha256: {A}", "weight: 0"], "5: keys.ci.weight: must be more than 0, is 0"),
        ([f"sha256: {A}", "weight: '1'"], '5: keys.ci.weight: must be a number, is the text "1"'),
        ([f"sha256: {A}", "tokens_per_minute: 0"], "5: keys.ci.tokens_per_minute: must be at least 1, is 0"),
        ([f"sha256: {A}", "tokens_per_minute: 1k"], '5: keys.ci.tokens_per_minute: must be a whole number, is the'),
        ([f"sha256: {A}", "service_tiers: [fast]"], "5: keys.ci.service_tiers[0]: must be `priority`, `default` or"),
        ([f"sha256: {A}", "expires: 20270131"], "5: keys.ci.expires: must be a date such as 2027-01-31, or a moment"),
        ([f"sha256: {A}", "expires: '20270131'"], "5: keys.ci.expires: must be a date such as 2027-01-31"),
        ([f"sha256: {A}", "expires: 2027-13-01"], "5: keys.ci.expires: must be a date such as 2027-01-31"),
        ([f"sha256: {A}", "expires: 2027-01-31T25:00"], "5: keys.ci.expires: must be a date such as"),
        ([f"sha256: {A}", "expires: 0001-01-01T00:00:00+14:00"], "5: keys.ci.expires: must be a date such as"),
        (
            [f"sha256: {A}", "expires: soon"],
            "5: keys.ci.expires: must be a date such as 2027-01-31, or a moment such as 2027-01-31T18:00:00Z; is `soo",
        ),
    ],
)  # fmt: skip
def test_problems_say_where_and_what(fields: list[str], problem: str) -> None:
    found = of_key(*fields)
    assert any(each.startswith(problem) for each in found), found
    assert sum("keys.ci.expires" in each for each in found) <= 1, "and once"
    assert not any(secret in each for each in found for secret in ("s" * 20, A, A[1:], "rh-short", "hunter2"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("keys: [a]", "2: keys: must map names to keys, is a list"),
        ("keys: {ci: x}", "2: keys.ci: a key is a mapping of fields, `sha256` among them"),
        (f"keys: {{'a b': {{sha256: {A}}}}}", "2: keys.a b: the name must begin with a letter or digit and hold only"),
        (f"keys: {{'{'x' * 65}': {{sha256: {A}}}}}", f"2: keys.{'x' * 65}: the name must have at most 64 characters"),
        (f"keys: {{{SECRET}: {{sha256: {A}}}}}", "2: keys: a key's name looks like a secret here"),
        (f"kyes: {{ci: {{sha256: {A}}}}}", "2: kyes: unknown key; did you mean `keys`?"),
    ],
)
def test_problems_of_the_whole(text: str, problem: str) -> None:
    [found] = problems_of(f"models: {{}}\n{text}")
    assert found.startswith(f"desired-state/models.yaml:{problem}")
    assert SECRET not in found


def test_two_keys_have_two_secrets() -> None:
    [problem] = problems_of(f"models: {{}}\nkeys:\n  a: {{sha256: {A}}}\n  b:\n    sha256: {A}\n")
    assert problem == (
        "desired-state/models.yaml:5: keys.b.sha256: is also that of `keys.a`: every key has a secret of its own"
    )


def test_a_tenant_has_one_weight() -> None:
    text = "models: {{}}\nkeys:\n  a: {{sha256: {0}, tenant: t, weight: 2}}\n  b:\n    sha256: {1}\n    tenant: t\n{2}"
    assert not problems_of(text.format(A, B, "    weight: 2.0\n"))
    words = "in `keys.a`: both are of tenant t, which has one weight"
    assert problems_of(text.format(A, B, "    weight: 3\n")) == [
        f"desired-state/models.yaml:7: keys.b.weight: is 3, and 2 {words}"
    ]
    assert problems_of(text.format(A, B, "")) == [f"desired-state/models.yaml:4: keys.b.weight: is 1, and 2 {words}"]
    assert problems_of(f"models: {{}}\nkeys: {{t: {{sha256: {A}, weight: 2}}, b: {{sha256: {B}, tenant: t}}}}\n")


def test_problems_of_models_and_keys_come_in_the_order_of_the_file() -> None:
    text = f"keys:\n  ci: {{sha256: {A}, weight: 0}}\nmodels:\n  m: {{backend: stbu}}\n"
    assert [problem.split(": ")[1] for problem in problems_of(text)] == ["keys.ci.weight", "models.m.backend"]


# When they come into force.


def declaring(*keys: str) -> ParsedFolder:
    lines = "".join(f"  {key}: {{sha256: '{index:064x}'}}\n" for index, key in enumerate(keys))
    parsed = parse_text(f"models: {{a: {{backend: stub}}}}\nkeys:\n{lines}")
    assert parsed.is_valid, parsed.problems
    return parsed


def in_force(*reads: tuple[ParsedFolder, float]) -> tuple[list[str], float | None]:
    """Keys after reads at these times, and when to look again."""
    settled: DebouncedState | None = None
    for parsed, now in reads:
        settled = debounce(settled, parsed, now)
    assert settled is not None
    assert settled.keys.keys() == settled.declared_keys.keys()
    return sorted(settled.keys), settled.wake_at


def test_an_edit_of_keys_is_in_force_at_once() -> None:
    first = (declaring("a", "b"), 0.0)
    assert in_force(first) == (["a", "b"], None)
    assert in_force(first, (declaring("b", "c"), 0.1)) == (["b", "c"], None)


@pytest.mark.parametrize(
    "broken", ["models: [", "models: {a: {backend: nope}}\nkeys: {}", "keys: {}", "models: {}\nkeys: {b: {}}"]
)
def test_broken_files_drop_no_key(broken: str) -> None:
    good, parsed = (declaring("a"), 0.0), parse_text(broken)
    assert in_force(good, (parsed, 100.0)) == in_force(good, (parsed, 100.0), (parsed, 200.0)) == (["a"], None)


def test_the_last_key_goes_only_after_two_reads_for_without_keys_everybody_is_let_in() -> None:
    none = declaring()
    reads = ((declaring("a"), 0.0), (none, 10.0))
    assert in_force(*reads) == (["a"], 10.0 + CONFIRM_S)
    assert in_force(*reads, (declaring("b"), 10.5))[0] == ["b"], "a checkout is over"
    assert in_force(*reads, (none, 11.9))[0] == ["a"]
    assert in_force(*reads, (parse_text("models: ["), 11.0), (none, 12.5))[0] == ["a"]
    assert in_force(*reads, (none, 12.0)) == ([], None)
