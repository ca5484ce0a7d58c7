"""What an SBOM says of an image's contents."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.supply_chain.locks import Pin
from tests.supply_chain.sbom import ImageContents, build_sbom

CONTENTS = ImageContents(
    "sha256:12",
    datetime(2026, 11, 22, tzinfo=UTC),
    {"a-b": "1.0", "changed": "3", "roundhouse": "0.1.0"},
    {"python_version": "3.12"},
    (("libc6", "2.36-9+deb12u13", "amd64"),),
)
PINS = {
    "a-b": Pin("a-b", "1.0", frozenset({"e" * 64, "d" * 64})),
    "changed": Pin("changed", "2", frozenset({"f" * 64})),
}


def test_an_sbom_lists_what_is_installed_with_the_hashes_of_what_is_locked() -> None:
    made = json.loads(build_sbom("gateway", "roundhouse/gateway:latest", CONTENTS, PINS))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "roundhouse/gateway"
    assert made["metadata"]["component"]["version"] == "sha256:12"
    components = {each["purl"]: each for each in made["components"]}
    assert components.keys() == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64",
        "pkg:pypi/a-b@1.0",
        "pkg:pypi/changed@3",
        "pkg:pypi/roundhouse@0.1.0",
    }
    [reference] = components["pkg:pypi/a-b@1.0"]["externalReferences"]
    assert reference["url"] == "https://pypi.org/simple/a-b/"
    assert reference["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}, {"alg": "SHA-256", "content": "e" * 64}]
    assert "externalReferences" not in components["pkg:pypi/changed@3"], "another version has other hashes"


def test_the_same_contents_give_the_same_text() -> None:
    assert build_sbom("gateway", "i", CONTENTS, PINS) == build_sbom("gateway", "i", CONTENTS, PINS)
