"""References to models that can be downloaded: their grammar. Pure.

| form | what it names |
| --- | --- |
| `hf:USER/REPO[:QUANT][@REVISION]` | a Hugging Face repository, or one quantisation of it; `hf:` may be left out |
| `hf:USER/REPO/PATH[@REVISION]` | one file of a Hugging Face repository |
| `ollama:NAME[:TAG][@DIGEST]`, `oci:HOST/NAME[:TAG][@DIGEST]` | a model in a registry |
| `https://HOST/PATH#sha256=HEX` | one file, by its address and hash |
| `file:/ABSOLUTE/PATH` | a file or a folder of the machine |

Addresses of pages of both hubs, as people copy them, and `hf://` are understood as what they show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

LONGEST_REFERENCE: Final = 2048
"""Characters."""
_REPO_PART: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_LONGEST_REPO: Final = 96
_QUANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,254}", re.ASCII)
_REGISTRY_NAME: Final = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*){0,7}", re.ASCII)
_OLLAMA_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,79})?", re.ASCII)
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?", re.ASCII)
_PAGE: Final = re.compile(r"(?:https?://)?(?:www\.)?(?P<host>[a-z.]+)/+(?P<path>[^?#]+?)/*(?:[?#].*)?", re.ASCII)
_HUB_HOSTS: Final = ("hf.co", "huggingface.co")
_OLLAMA_HOSTS: Final = ("ollama.com", "registry.ollama.ai")
_NO_MODELS: Final = ("api", "collections", "datasets", "docs", "papers", "spaces")
"""Of the Hugging Face hub's addresses: what begins with none of its users."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FORMS: Final = (
    "hf:USER/REPO:QUANT, hf:USER/REPO/FILE, ollama:NAME:TAG, oci:HOST/NAME:TAG, https://…#sha256=HEX, file:/PATH"
)


class InvalidReferenceError(ValueError):
    """A text is not a reference to a model. The message says what is wrong and what the forms are. It is a
    ValueError."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A Hugging Face repository, or one file (`path`) or one quantisation of it, never both. `str` gives the canonical
    form."""

    repo: str
    """`USER/REPO`."""
    quantisation: str | None = None
    """Name of the quantisation, for example `Q4_K_M`.

    None: none is named, and the source chooses one or takes the whole folder.
    """
    path: str | None = None
    """File in the repository; None: none is named."""
    revision: str | None = None
    """Branch, tag or commit; None: the repository's main branch."""

    def __str__(self) -> str:
        tail = f":{self.quantisation}" if self.quantisation else f"/{self.path}" if self.path else ""
        return f"hf:{self.repo}{tail}{f'@{self.revision}' if self.revision else ''}"


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """A model in a registry that speaks the protocol of the Open Container Initiative. `host` None: Ollama's own
    registry. `str` gives the canonical form."""

    host: str | None
    """Host, with its port where there is one; None: Ollama's own registry."""
    name: str
    tag: str = "latest"
    digest: str | None = None
    """Digest of the manifest, `sha256:` and 64 hexadecimal digits; None: whatever manifest the tag names."""

    def __str__(self) -> str:
        place = f"ollama:{self.name}" if self.host is None else f"oci:{self.host}/{self.name}"
        return f"{place}:{self.tag}{f'@{self.digest}' if self.digest else ''}"


@dataclass(frozen=True, slots=True)
class UrlReference:
    """One file at an http or https address, with the hash of its content. `str` gives the canonical form,
    `URL#sha256=HEX`."""

    url: str
    """Address without its fragment."""
    sha256: str
    """64 hexadecimal digits in lower case."""

    def __str__(self) -> str:
        return f"{self.url}#sha256={self.sha256}"


@dataclass(frozen=True, slots=True)
class LocalReference:
    """A file or a folder of the machine on which the downloads are made."""

    path: str
    """Absolute path."""

    def __str__(self) -> str:
        return f"file:{self.path}"


@dataclass(frozen=True, slots=True)
class HeadReference:
    """Files of a model in the models folder of the head, or of another host of the installation. The controller orders
    them for a host; `parse_reference` does not know them. `str` gives the canonical form, `head:PATH`."""

    path: str
    """Path below the models folder: a file, which stands for the files that belong to it, or a folder."""

    def __str__(self) -> str:
        return f"head:{self.path}"


ModelReference = HubReference | RegistryReference | UrlReference | LocalReference | HeadReference


def parse_head_reference(text: str) -> HeadReference | None:
    """Return the reference that a text of the form `head:PATH` is; None: it has another form, or no such path may be
    below a models folder."""
    scheme, _, path = text.partition(":")
    return HeadReference(path) if scheme == "head" and validate_file_path(path) is None else None


def parse_reference(text: str) -> ModelReference:
    """Parse a reference to a model: `[hf:]USER/REPO[:QUANT][@REVISION]`, `[hf:]USER/REPO/PATH[@REVISION]`,
    `ollama:NAME[:TAG][@DIGEST]`, `oci:HOST/NAME[:TAG][@DIGEST]`, `https://HOST/PATH#sha256=HEX` (or `http:`) or
    `file:/ABSOLUTE/PATH`; or the address of a page of the Hugging Face hub or Ollama's, such as
    `https://huggingface.co/USER/REPO/blob/REVISION/PATH`, `hf.co/USER/REPO:QUANT`, `hf://USER/REPO`,
    `ollama.com/library/NAME`. `str` of the result is the reference's canonical form. Nothing is looked up.

    Raises:
        InvalidReferenceError: `text` has none of the forms, more than 2048 characters, or white space around it. It is
            a ValueError.
    """
    if len(text) > LONGEST_REFERENCE:
        raise InvalidReferenceError(f"A reference has at most {LONGEST_REFERENCE} characters.")
    if not text.isprintable() or text != text.strip():
        raise _invalid(text, "it has white space or control characters")
    page = _PAGE.fullmatch(text)
    if page is not None and page["host"] in _HUB_HOSTS and "#sha256=" not in text:
        return _parse_hub_page(text, page["path"])
    if page is not None and page["host"] in _OLLAMA_HOSTS and "#sha256=" not in text:
        return _parse_ollama(text, page["path"].removeprefix("library/"))
    scheme, colon, rest = text.partition(":")
    if colon and scheme in _PARSERS:
        return _PARSERS[scheme](text, rest)
    if colon and "/" not in scheme:
        raise _invalid(text, f"there is no source {scheme!r:.40}")
    return _parse_hub(text, text)


def validate_file_path(path: str) -> str | None:
    """Return why a source's file may not be stored at `path` below a folder, or None if it may.

    The reasons: an empty part, `.` or `..`; control characters or a backslash; a part of more than 240 bytes, or more
    than 1024 characters in all.
    """
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts):
        return "it has an empty part, `.` or `..`"
    if any(not character.isprintable() or character == "\\" for character in path):
        return "it has control characters or a backslash"
    if any(len(part.encode(errors="replace")) > 240 for part in parts) or len(path) > 1024:
        return "it is too long"
    return None


def _parse_hub_page(text: str, path: str) -> HubReference:
    """`path`: of the address, such as `USER/REPO/blob/main/a.gguf`."""
    parts = [unquote(part) for part in path.split("/")]
    if parts[0] in _NO_MODELS:
        raise _invalid(text, "the address is no page of a model")
    repo, kind, revision, file = "/".join(parts[:2]), parts[2:3], parts[3:4], "/".join(parts[4:])
    if not kind:
        return _parse_hub(text, repo)
    if kind[0] not in ("blob", "raw", "resolve", "tree") or not revision:
        raise _invalid(text, "the address is no page of a repository, its files or one of them")
    if kind[0] == "tree" and file:
        raise _invalid(text, "the address is that of a folder: name the repository, or a file in it")
    at = "" if revision[0] == "main" else f"@{revision[0]}"
    return _parse_hub(text, f"{repo}/{file}{at}" if file else f"{repo}{at}")


def _parse_hub(text: str, rest: str) -> HubReference:
    if rest.startswith("//"):  # as Python's file systems name it: hf://USER/REPO@REVISION/PATH
        rest = re.sub(r"^([^/]+/[^/@]+)(@[^/]+)/(.+)$", r"\1/\3\2", rest.removeprefix("//").removeprefix("models/"))
    named, at, revision = rest.rpartition("@")
    if not at:
        named, revision = rest, ""
    elif not _REVISION.fullmatch(revision) or ".." in revision:
        raise _invalid(text, "what follows @ is no revision")
    user, slash, tail = named.partition("/")
    if not slash:
        raise _invalid(text, "a repository is named USER/REPO")
    name, slash, path = tail.partition("/")
    quantisation = ""
    if not slash:
        name, colon, quantisation = name.partition(":")
        if colon and not _QUANT.fullmatch(quantisation):
            raise _invalid(text, "what follows : is no quantisation, such as Q4_K_M")
    elif (problem := validate_file_path(path)) is not None:
        raise _invalid(text, f"the path of the file is wrong: {problem}")
    repo = f"{user}/{name}"
    if not _is_repo(user, name):
        raise _invalid(text, f"{repo!r:.100} is no name of a repository")
    return HubReference(repo, quantisation or None, path or None, revision or None)


def _is_repo(user: str, name: str) -> bool:
    if not (_REPO_PART.fullmatch(user) and _REPO_PART.fullmatch(name)):
        return False
    repo = f"{user}/{name}"
    return "--" not in repo and ".." not in repo and not repo.endswith(".git") and len(repo) <= _LONGEST_REPO


def _parse_ollama(text: str, rest: str) -> RegistryReference:
    named, digest = _split_digest(text, rest)
    name, colon, tag = named.partition(":")
    if not _OLLAMA_NAME.fullmatch(name) or ".." in name:
        raise _invalid(text, f"{name!r:.100} is no name of a model")
    return RegistryReference(None, name, _parse_tag(text, colon, tag), digest)


def _parse_oci(text: str, rest: str) -> RegistryReference:
    named, digest = _split_digest(text, rest)
    host, slash, tail = named.partition("/")
    name, colon, tag = tail.partition(":")
    if not slash or not _HOST.fullmatch(host) or not _REGISTRY_NAME.fullmatch(name):
        raise _invalid(text, "an image is named HOST/NAME:TAG")
    return RegistryReference(host.lower(), name, _parse_tag(text, colon, tag), digest)


def _split_digest(text: str, rest: str) -> tuple[str, str | None]:
    named, at, digest = rest.partition("@")
    algorithm, _, value = digest.partition(":")
    if at and (algorithm != "sha256" or not _SHA256.fullmatch(value)):
        raise _invalid(text, "what follows @ is no digest, sha256: and 64 hexadecimal digits")
    return named, digest or None


def _parse_tag(text: str, colon: str, tag: str) -> str:
    if not colon:
        return "latest"
    if not _TAG.fullmatch(tag):
        raise _invalid(text, f"{tag!r:.100} is no tag")
    return tag


def _parse_url(text: str, _rest: str) -> UrlReference:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise _invalid(text, "it is no address") from None
    if not parts.hostname:
        raise _invalid(text, "the address has no host")
    if parts.username is not None or parts.password is not None:
        raise _invalid(
            parts._replace(netloc="…").geturl(), "an address with a password in it would be written into logs"
        )
    key, _, digest = parts.fragment.partition("=")
    if key != "sha256" or not _SHA256.fullmatch(digest.lower()):
        raise _invalid(text, "the file's hash is missing: add #sha256= and 64 hexadecimal digits")
    name = unquote(parts.path.rpartition("/")[2])
    if (problem := validate_file_path(name)) is not None or "/" in name:
        raise _invalid(text, f"the address names no file: {problem or 'it has a slash in its name'}")
    return UrlReference(parts._replace(fragment="").geturl(), digest.lower())


def _parse_local(text: str, rest: str) -> LocalReference:
    path = rest[2:] if rest.startswith("///") else rest
    if not path.startswith("/") or validate_file_path(path.strip("/")) is not None:
        raise _invalid(text, "the path must be absolute, without . and ..")
    return LocalReference(path.rstrip("/"))


_PARSERS: Final[Mapping[str, Callable[[str, str], ModelReference]]] = {
    "hf": _parse_hub,
    "ollama": _parse_ollama,
    "oci": _parse_oci,
    "https": _parse_url,
    "http": _parse_url,
    "file": _parse_local,
}


def _invalid(text: str, problem: str) -> InvalidReferenceError:
    return InvalidReferenceError(f"{text!r:.200} is no reference of a model: {problem}. The forms are {_FORMS}.")


# Names for models

_SPLIT: Final = re.compile(r"-\d{5}-of-\d{5}$")
_FORMAT_WORDS: Final = re.compile(r"(?:[-_.](?:gguf|ggml|safetensors|litert-?lm|onnx))+$", re.IGNORECASE)
_SUFFIXES: Final = (".gguf", ".safetensors", ".litertlm", ".onnx")
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 200
FALLBACK: Final = "model"
"""The name of a model if `suggest_model_name` finds no other."""


def suggest_model_name(reference: ModelReference) -> str:
    """Return a name for a model: the name of its repository, file or folder, without words for the file format, and
    with the tag of a registry's model unless that is `latest`. The name has at most 200 characters, which are ASCII
    letters, digits, `.`, `_` and `-`; each run of others becomes one `-`.

    For example `gemma-3-4b-it` for `hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M`. The name is `model` (`FALLBACK`) if no
    characters are left. Another model may have the name already.
    """
    match reference:
        case HubReference(repo=repo):
            text = repo.rpartition("/")[2]
        case RegistryReference(name=name, tag=tag):
            text = name.rpartition("/")[2] + ("" if tag == "latest" else f"-{tag}")
        case LocalReference(path=path) | HeadReference(path=path):
            text = path.rstrip("/").rpartition("/")[2]
        case _:
            text = unquote(reference.url.partition("?")[0].rpartition("/")[2])
    for suffix in _SUFFIXES:
        if text.lower().endswith(suffix):
            text = _SPLIT.sub("", text[: -len(suffix)])
    text = _FORBIDDEN.sub("-", _FORMAT_WORDS.sub("", text)).strip("-._")[:_LONGEST]
    return text or FALLBACK
