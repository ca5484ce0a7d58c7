"""What a controller knows to be secret, of which model and which replica."""

from __future__ import annotations

from contract.admin import MASKED
from controller.redaction import REMEMBERED, Redactor, mask_text, redact_nothing


def declared(*secrets: str) -> dict[str, object]:
    return {"env": {f"API_KEY_{number}": secret for number, secret in enumerate(secrets)}}


def redactor() -> Redactor:
    """One that knows a model's secret, and a token of each replica."""
    made = Redactor(lambda replica: f"token-of-{replica}")
    made.learn_secrets({"chat": declared("chats-secret"), "embed": declared("embeds-secret")})
    return made


TEXT = "chats-secret embeds-secret token-of-a token-of-b token-of-None proposed-secret"


def test_a_models_secrets_are_hidden_and_a_replicas_token() -> None:
    redact = redactor()
    assert redact.redact_text("chat", TEXT) == TEXT.replace("chats-secret", MASKED)
    assert redact.redact_text("chat", TEXT, "a") == TEXT.replace("chats-secret", MASKED).replace("token-of-a", MASKED)
    assert redact.redact_text("embed", TEXT, "b") == TEXT.replace("embeds-secret", MASKED).replace("token-of-b", MASKED)


def test_of_a_model_that_was_never_declared_only_the_token_is_known() -> None:
    redact = redactor()
    assert redact.redact_text("other", TEXT) == TEXT
    assert redact.redact_text("other", TEXT, "a") == TEXT.replace("token-of-a", MASKED)


def test_what_is_proposed_is_hidden_and_not_remembered() -> None:
    redact = redactor()
    hide = redact.with_proposed({"chat": declared("proposed-secret")})
    both = TEXT.replace("chats-secret", MASKED).replace("proposed-secret", MASKED)
    assert hide("chat", TEXT) == both
    assert hide("chat", TEXT, "a") == both.replace("token-of-a", MASKED)
    assert hide("embed", TEXT, "b") == TEXT.replace("embeds-secret", MASKED).replace("token-of-b", MASKED)
    assert hide("other", TEXT) == TEXT
    assert redact.redact_text("chat", TEXT) == TEXT.replace("chats-secret", MASKED)


def test_earlier_secrets_are_remembered_the_latest_longest() -> None:
    redact = redactor()
    for number in range(REMEMBERED - 1):
        redact.learn_secrets({"chat": declared(f"secret-number-{number:03}")})
    assert redact.redact_text("chat", TEXT) != TEXT, "the first of them is the last that is remembered"
    redact.learn_secrets({"chat": declared("chats-secret")})
    redact.learn_secrets({"chat": declared("one-too-many")})
    hidden = [
        number for number in range(REMEMBERED) if MASKED in redact.redact_text("chat", f"secret-number-{number:03}")
    ]
    assert hidden == list(range(1, REMEMBERED - 1)), "what was declared again is not the oldest any more"
    assert redact.redact_text("chat", "chats-secret one-too-many") == f"{MASKED} {MASKED}"


def test_no_secret_that_is_declared_now_is_forgotten() -> None:
    redact = redactor()
    many = [f"secret-number-{number:03}" for number in range(REMEMBERED + 50)]
    redact.learn_secrets({"chat": declared(*many)})
    assert all(redact.redact_text("chat", secret) == MASKED for secret in many)


def test_where_engines_know_no_secrets_all_is_shown() -> None:
    assert redact_nothing("chat", TEXT, "a") == TEXT


def test_what_is_redacted_fits_into_json() -> None:
    redact = redactor()
    for each in (redact.redact_text("chat", "mod\udce8le"), redact.with_proposed({})("chat", "mod\udce8le")):
        assert each == "mod?le"
    assert mask_text("mod\udce8le") == "mod?le"
