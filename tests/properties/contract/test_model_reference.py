"""The canonical form of a reference names the same as the reference."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from contract.model_reference import (
    HubReference,
    InvalidReferenceError,
    LocalReference,
    ModelReference,
    RegistryReference,
    UrlReference,
    parse_reference,
    validate_file_path,
)

HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
NAME = st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True)
TAG = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
QUANTISATION = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,12}", fullmatch=True)
REVISION = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_/-]{0,12}", fullmatch=True)
FILE = st.from_regex(r"[A-Za-z0-9_ .+@:-]{1,12}", fullmatch=True).filter(
    lambda part: part.strip(". ") == part and not part.endswith(" ")
)
PATH = st.lists(FILE, min_size=1, max_size=3).map("/".join)
HOST = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z]{2,3})?(:[1-9][0-9]{0,3})?", fullmatch=True)
DIGEST = st.none() | HEX.map(lambda value: f"sha256:{value}")
REFERENCES: st.SearchStrategy[ModelReference] = st.one_of(
    st.builds(
        lambda user, name, tail, revision: HubReference(f"{user}/{name}", **tail, revision=revision),
        NAME,
        NAME,
        st.one_of(
            st.just({}),
            QUANTISATION.map(lambda each: {"quantisation": each}),
            PATH.filter(lambda each: "@" not in each).map(lambda each: {"path": each}),
        ),
        st.none() | REVISION,
    ),
    st.builds(RegistryReference, st.none(), NAME, TAG, DIGEST),
    st.builds(RegistryReference, HOST, st.from_regex(r"[a-z0-9]{1,8}(/[a-z0-9]{1,8})?", fullmatch=True), TAG, DIGEST),
    st.builds(lambda host, name, value: UrlReference(f"https://{host}/{name}", value), HOST, NAME, HEX),
    st.builds(lambda path: LocalReference(f"/{path}"), PATH),
)


@given(REFERENCES)
def test_a_reference_is_read_back_from_its_text(reference: ModelReference) -> None:
    assert parse_reference(str(reference)) == reference


@given(st.text(st.sampled_from("hf:olamcitps/@#=.-_ABq0123456789 \\%ü\n"), max_size=60) | st.text(max_size=60))
def test_whatever_is_read_has_a_stable_text(text: str) -> None:
    with suppress(InvalidReferenceError):
        reference = parse_reference(text)
        canonical = str(reference)
        assert parse_reference(canonical) == reference
        assert str(parse_reference(canonical)) == canonical


@given(st.text(max_size=40))
def test_a_path_that_is_taken_stays_below_its_folder(path: str) -> None:
    if validate_file_path(path) is None:
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert "\0" not in path
