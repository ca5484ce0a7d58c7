"""Secrets of definitions and loads: which values are secret, and how they are masked. Pure.

These are secret: every value of `env` and of `headers`; a value whose name suggests a secret (it contains `key`,
`token`, `passw` and the like), be it the value of a flag in `extra_args`, of a key in a nested mapping, or of
`name=value` or `--name value` within a text; the user part of a URL; and what follows `Bearer` or `Basic`.

Three kinds of values are shown although their names suggest a secret: null, true, false and empty values; counts and
times (`--image-max-tokens 512`); and places of secrets (`api_key_env: OPENAI_KEY`, `--api-key-file /run/key`). Names
of tokenizers do not suggest a secret.

Where a definition itself is shown, all secrets are masked. In logs and messages, secrets can only be searched for as
texts. There, three kinds are not masked, since a search would also hit texts that are no secrets: secrets shorter
than `SHORTEST`; values of `env` whose names suggest no secret and which do not look random (12 characters or more,
letters and digits, no blank, no path, no URL); and such values that the definition also shows elsewhere, say as a
model's name.

An engine may print the secrets it was started with long after the files have changed, so the `Redactor`, the only
place that knows all secrets, remembers those of earlier definitions as long as the controller lives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import unquote

from pydantic import JsonValue

from contract.admin import MASKED

SHORTEST: Final = 4
"""Characters that a secret must have at least to be searched for in logs and messages."""
_SURE: Final = 8
"""Characters that a secret must have at least to be searched for in the other fields of its definition."""
_RANDOM: Final = 12
"""Characters that a value must have at least to look random."""

_WORDS: Final = "key|token|secret|passw|passphrase|(?<![a-z])pass(?![a-z])|pwd|auth|credential"
_SECRET_NAME: Final = re.compile(f"{_WORDS}|^-?hft$", re.IGNORECASE)
_TOKENIZER: Final = re.compile(r"tokeni[sz]\w*", re.IGNORECASE)
_COUNT_NAME: Final = re.compile(r"(tokens|_(ms|s|mib|bytes))$", re.IGNORECASE)
_PLACE_NAME: Final = re.compile(r"[-_.](env|file|path|dir)$", re.IGNORECASE)
_PLACE: Final = re.compile(r"[A-Z_][A-Z0-9_]*|[./~].*")
"""The name of an environment variable, or a path."""
_CONSTANT: Final = re.compile(r"[A-Z]+(_[A-Z0-9]+)+")
_NUMBER: Final = re.compile(r"[+-]?[0-9][0-9.,:]*")

_FLAG: Final = re.compile(r"(--?[A-Za-z][\w.-]*)(?:(\s*=\s*|\s+)(.*))?", re.DOTALL)
_URL_USER: Final = re.compile(
    r"(://)(?!\[)([^\s/?#]{0,999}@(?:\S{0,999}@)?|[^\s/?#:]{0,999}:(?!\d*(?:[/?#\s]|$))\S{0,999}@)"
)
"""The user part of a URL: all up to the last `@`, even if a password holds a `/` that should have been escaped."""
_BEARER: Final = re.compile(r"(\b(?:Bearer|Basic)\s+)([^\s\"',;]+)", re.IGNORECASE)
_PAIR: Final = re.compile(
    rf"((?:{_WORDS})[\w.-]{{0,64}})"
    r"(\\?[\"']?\s{0,8}[:=]\s{0,8}(?:(?:Bearer|Basic)\s+)?)"
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s\"'&]+)",
    re.IGNORECASE,
)
_SPOKEN_FLAG: Final = re.compile(
    r"(?<![\w-])(--?[A-Za-z][\w.-]{0,64})"
    r"(\s{1,8}(?:(?:Bearer|Basic)\s{1,8})?)"
    r"(?!-)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S+?(?=`?(?:\s|$)))",
    re.IGNORECASE,
)
"""A flag and its value within a text. A backtick after the value belongs to the text, not to the value."""


def mask_fields(fields: Mapping[str, Any], known_secrets: Iterable[str] = ()) -> dict[str, JsonValue]:
    """Return a definition's fields with all secrets replaced by `***` (`MASKED`), to show them to a user. `fields` is
    not changed; tuples become lists.

    Secrets are every value of `env` and of `headers`, values whose names suggest a secret (`is_secret`), and what texts
    mark as one (`mask_text`). A secret that is found in one field (in `env`: one that its name or the text marks) is
    also masked where another field contains it, as are `known_secrets` in all fields; both are searched for only if
    they have 8 characters or more.
    """
    walk = _Masker()
    shown_fields = {name: walk.mask_field(name, value) for name, value in fields.items()}
    long_secrets = {text for text in (*walk.secrets, *known_secrets) if len(text) >= _SURE}
    if not long_secrets:
        return shown_fields
    return {
        name: _map_texts(value, lambda text: replace_secrets(text, long_secrets))
        for name, value in shown_fields.items()
    }


def mask_field(name: str, value: Any) -> JsonValue:
    """Return the value of one field with its secrets masked. Prefer `mask_fields`, which also masks the secrets of one
    field where another field contains them."""
    return mask_fields({name: value})[name]


def mask_text(text: str) -> str:
    """Return a text of unknown origin with what it itself marks as secret masked: the user part of a URL, what follows
    `Bearer` or `Basic`, and the value in `name=value`, `name: value` and `--name value` where the name suggests a
    secret. A secret that nothing marks is not found. Masked parts become `***` (`MASKED`). The result is
    clean, as by `clean_text`."""
    return clean_text(_Masker().mask_text(text))


def clean_text(text: str) -> str:
    """Return the text with `?` for what UTF-8 cannot hold, and so no JSON: a file's name may hold any bytes, and an
    engine's log halves of characters."""
    return text.encode(errors="replace").decode()


def collect_secrets(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return the secrets of a definition that logs and messages must not show, each at least `SHORTEST` (4) characters
    long: shorter ones would also hit other text. What counts as a secret is as in `mask_fields`. A secret of several
    lines is contained as a whole, and each of its lines of 8 characters or more on its own. Values of `env` are
    included only if their name suggests a secret, or if they look random and no other field shows them."""
    walk = _Masker()
    shown_values = [walk.mask_field(name, value) for name, value in fields.items()]
    random_texts = [text for text in walk.env_values if _looks_random(text)]
    if random_texts:
        shown_text = "\n".join(text for value in shown_values for text in _iterate_texts(value))
        walk.secrets.update(text for text in random_texts if text not in shown_text)
    lines = {line.strip() for text in walk.secrets if "\n" in text for line in text.splitlines()}
    return frozenset(
        {text for text in walk.secrets if len(text) >= SHORTEST} | {line for line in lines if len(line) >= _SURE}
    )


def replace_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret in it replaced by `***` (`MASKED`). Secrets that overlap in the text become one
    mask. No secret may be empty: the function would not return a sensible text. `secrets` may be in any order."""
    sought_secrets = list(secrets)
    while present_secrets := [secret for secret in sought_secrets if secret in text]:
        text = _mask_spans(text, present_secrets)
        # A mask may join with the text around it to another secret, by chance: search again. Only secrets longer than
        # the mask take part, so each of these rounds shortens the text.
        sought_secrets = [secret for secret in sought_secrets if len(secret) > len(MASKED)]
    return text


def _mask_spans(text: str, secrets: Iterable[str]) -> str:
    spans = sorted((start, start + len(secret)) for secret in secrets for start in _find_starts(text, secret))
    parts: list[str] = []
    end = 0
    for span_start, span_end in spans:
        if span_start >= end:
            parts += (text[end:span_start], MASKED)
        end = max(end, span_end)
    return "".join((*parts, text[end:]))


def _find_starts(text: str, secret: str) -> Iterator[int]:
    start = text.find(secret)
    while start >= 0:
        yield start
        start = text.find(secret, start + 1)


def names_secret(name: str) -> bool:
    """Return whether a name of a field, flag or variable suggests that its value is a secret: it contains a word like
    `key`, `token`, `secret`, `passw`, `auth` or `credential`. Names of tokenizers do not suggest one. The value is
    not looked at: see `is_secret`."""
    return _SECRET_NAME.search(name) is not None and _SECRET_NAME.search(_TOKENIZER.sub("", name)) is not None


def is_secret(name: str, value: Any) -> bool:
    """Return whether a value is treated as a secret: its name suggests one (`names_secret`), and the value is not known
    to be harmless. Harmless are: null, true, false and empty values; counts and times (`max_tokens: 512`); the
    places of secrets (`api_key_env: OPENAI_KEY`)."""
    return names_secret(name) and not _is_harmless(name, value)


class _Masker:
    """Masks one definition, and collects the secrets that it masked."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        """Secrets found by their name or place, however short, including such in values of `env`."""
        self.env_values: set[str] = set()
        """Values of `env` whose names suggest no secret."""

    def mask_field(self, name: str, value: Any) -> JsonValue:
        """Mask the value of a field of the definition, or of a key in a nested mapping."""
        if name == "env" and isinstance(value, Mapping):
            return {key: self._mask_variable(key, each) for key, each in value.items()}
        if name == "headers" and isinstance(value, Mapping):
            return {key: self._mask_header(each) for key, each in value.items()}
        if is_secret(name, value):
            self.secrets.update(_iterate_texts(value))
            return MASKED
        if isinstance(value, Mapping):
            return {key: self.mask_field(key, each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return self._mask_arguments(value)
        return self.mask_text(value) if isinstance(value, str) else value

    def mask_text(self, text: str) -> str:
        """Mask the secrets that the text itself marks as such."""
        if "://" in text:
            text = _URL_USER.sub(self._mask_user, text)
        if "=" in text or ":" in text:
            text = _PAIR.sub(self._mask_pair, text)
        if " " in text:
            text = _BEARER.sub(self._mask_bearer, text)
        return _SPOKEN_FLAG.sub(self._mask_pair, text) if "-" in text else text

    def _mask_variable(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            self.mask_text(value)
            (self.secrets if is_secret(name, value) else self.env_values).add(value)
        return MASKED

    def _mask_header(self, value: Any) -> str:
        if isinstance(value, str):
            self.mask_text(value)
            self.secrets.add(value)
        return MASKED

    def _mask_arguments(self, items: Iterable[Any]) -> list[JsonValue]:
        """Mask a list like a command line: what follows a flag, up to the next flag, is the flag's value."""
        shown_items: list[JsonValue] = []
        flag = ""
        expects_value = False
        for item in items:
            if not isinstance(item, str):
                shown_items.append(self.mask_field("", item))
                continue
            is_flag = item.startswith("--") or (item.startswith("-") and not (flag and expects_value))
            match = _FLAG.fullmatch(item) if is_flag else None
            if match is not None:
                flag = match[1] if names_secret(match[1].lstrip("-")) else ""
                expects_value = match[3] is None
                shown_items.append(self._mask_flag(match) if flag and match[3] else self.mask_text(item))
                flag = flag if expects_value else ""
            else:
                is_hidden = bool(flag) and not _is_harmless(flag, item)
                shown_items.append(self._mask_value(item) if is_hidden else self.mask_text(item))
                expects_value = False
        return shown_items

    def _mask_flag(self, match: re.Match[str]) -> str:
        value = match[3]
        shown_value = self.mask_text(value) if _is_harmless(match[1], value) else self._mask_value(value)
        return f"{match[1]}{match[2]}{shown_value}"

    def _mask_value(self, value: str) -> str:
        self.mask_text(value)
        self.secrets.add(value)
        return MASKED

    def _mask_user(self, match: re.Match[str]) -> str:
        users = {match[2].rpartition("@")[0]}
        users.add(match[2].partition("/")[0].rpartition("@")[0])
        for user in users:
            name, colon, password = user.partition(":")
            self.secrets.update({password, unquote(password)} if colon else {name, unquote(name)})
        return f"{match[1]}{MASKED}@"

    def _mask_pair(self, match: re.Match[str]) -> str:
        name, separator, value = match[1], match[2], match[3]
        quote = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
        unquoted = value[1:-1] if quote else value
        is_url = ":" in separator and unquoted.startswith("//")
        if not is_secret(name, unquoted) or unquoted == MASKED or is_url:
            return match[0]
        self.secrets.add(unquoted)
        return f"{name}{separator}{quote}{MASKED}{quote}"

    def _mask_bearer(self, match: re.Match[str]) -> str:
        if match[2] != MASKED:
            self.secrets.add(match[2])
        return f"{match[1]}{MASKED}"


def _is_harmless(name: str, value: Any) -> bool:
    """Return whether a value is known to be no secret although its name suggests one."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return True
    if _COUNT_NAME.search(name) and _NUMBER.fullmatch(str(value)):
        return True
    return isinstance(value, str) and bool(_PLACE_NAME.search(name)) and _PLACE.fullmatch(value) is not None


def _looks_random(text: str) -> bool:
    if len(text) < _RANDOM or text[0] in "./~" or "://" in text:
        return False
    if _CONSTANT.fullmatch(text) or _NUMBER.fullmatch(text):
        return False
    return not re.search(r"\s", text) and bool(re.search(r"[0-9]", text) and re.search(r"[^\W\d_]", text))


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield the leaves of a value as texts, without nulls and booleans."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _iterate_texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _iterate_texts(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _map_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_texts(each, change) for each in value]
    if isinstance(value, dict):
        return {key: _map_texts(each, change) for key, each in value.items()}
    return value


REMEMBERED: Final = 200
"""Secrets remembered per model. The oldest are forgotten first; those of the current definition always stay."""


class Redact(Protocol):
    """Signature of a function that masks a model's secrets in a text; `Redactor.redact_text` is one. `replica` names
    the replica whose engine wrote the text; None: no engine wrote it."""

    def __call__(self, model: str, text: str, replica: str | None = None) -> str:
        """Return `text` with the known secrets of `model` masked, and with the bearer token of `replica` masked if that
        is given. A model that is not known has no secrets. Never raises."""


def redact_nothing(model: str, text: str, replica: str | None = None) -> str:
    """Return the text unchanged. Use it where engines know no secrets, as in tests."""
    del model, replica
    return text


def redact_words(words: Iterable[str], redact: Callable[[str], str]) -> list[str]:
    """Return a command line's words with their secrets masked: those that the words themselves mark as secret, and
    those that `redact` knows."""
    # The whole list at once: whether a word is secret may depend on the word before it.
    safe = mask_field("argv", list(words))
    assert isinstance(safe, list)
    return [redact(str(word)) for word in safe]


class Redactor:
    """Knows the secrets of one controller's models, and masks them in logs, errors and answers. A controller has one,
    for its whole life; it learns of each new definition and load by `learn_secrets`."""

    def __init__(self, token: Callable[[str], str]) -> None:
        """`token` returns the bearer token of a replica, by the replica's name."""
        self._token = token
        self._secrets_by_model: dict[str, dict[str, None]] = {}

    def learn_secrets(self, fields_by_model: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember the secrets in `fields_by_model`: each model's declared fields, or those that a load sets. Secrets
        learned earlier stay, up to 200 (`REMEMBERED`) per model; models that are not in `fields_by_model` keep
        theirs."""
        for model, fields in fields_by_model.items():
            known_secrets = self._secrets_by_model.setdefault(model, {})
            current_secrets = collect_secrets(fields)
            for secret in sorted(current_secrets):
                known_secrets.pop(secret, None)
                known_secrets[secret] = None
            for oldest_secret in list(known_secrets)[: -max(REMEMBERED, len(current_secrets))]:
                del known_secrets[oldest_secret]

    def redact_text(self, model: str, text: str, replica: str | None = None) -> str:
        """Return the text with those secrets masked that `learn_secrets` was told of for the model, and with the bearer
        token of `replica` masked if that is given. Never raises. Not masked are: secrets of other models, secrets that
        are too short to be told from other text, and values of `env` whose name suggests no secret and which do not
        look random (see `collect_secrets`). The result is clean, as by `clean_text`."""
        return clean_text(replace_secrets(text, self._known_secrets(model, replica)))

    def _known_secrets(self, model: str, replica: str | None) -> frozenset[str]:
        secrets = frozenset(self._secrets_by_model.get(model, ()))
        return secrets if replica is None else secrets | {self._token(replica)}

    def with_proposed(self, fields_by_model: Mapping[str, Mapping[str, Any]]) -> Redact:
        """Return a function like `redact_text` that also masks the secrets in these fields, without remembering them.
        Use it for definitions that somebody only proposes, as in a dry run."""
        proposed_secrets = {model: collect_secrets(fields) for model, fields in fields_by_model.items()}

        def redact_text(model: str, text: str, replica: str | None = None) -> str:
            secrets = self._known_secrets(model, replica) | proposed_secrets.get(model, frozenset())
            return clean_text(replace_secrets(text, secrets))

        return redact_text
