"""What an SBOM says of an image's contents."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tests.supply_chain.locks import Pin
from tests.supply_chain.page_lock import PagePackage, read_page_lock
from tests.supply_chain.sbom import ImageContents, build_sbom

CONTENTS = ImageContents(
    "sha256:12",
    datetime(2026, 11, 22, tzinfo=UTC),
    {"a-b": "1.0", "changed": "3", "roundhouse": "0.1.0"},
    {"python_version": "3.12"},
    (("libc6", "2.36-9+deb12u13", "amd64"),),
    (PagePackage("@scope/part", "2.0.0", "a" * 128), PagePackage("react", "19.0.0", "b" * 128)),
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
        "pkg:npm/%40scope/part@2.0.0",
        "pkg:npm/react@19.0.0",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64",
        "pkg:pypi/a-b@1.0",
        "pkg:pypi/changed@3",
        "pkg:pypi/roundhouse@0.1.0",
    }
    [reference] = components["pkg:pypi/a-b@1.0"]["externalReferences"]
    assert reference["url"] == "https://pypi.org/simple/a-b/"
    assert reference["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}, {"alg": "SHA-256", "content": "e" * 64}]
    [reference] = components["pkg:npm/%40scope/part@2.0.0"]["externalReferences"]
    assert reference["hashes"] == [{"alg": "SHA-512", "content": "a" * 128}]
    assert "externalReferences" not in components["pkg:pypi/changed@3"], "another version has other hashes"


def test_the_same_contents_give_the_same_text() -> None:
    assert build_sbom("gateway", "i", CONTENTS, PINS) == build_sbom("gateway", "i", CONTENTS, PINS)


def test_what_only_builds_the_page_is_no_part_of_it() -> None:
    packages = {
        "": {
            "dependencies": {"react": "19.0.0", "@scope/a": "1.0.0", "vite": "8.0.0"},
            "devDependencies": {"vitest": "4.0.0"},
        },
        "node_modules/react": {"version": "19.0.0", "integrity": "sha512-AAE="},
        "node_modules/@scope/a": {
            "version": "1.0.0",
            "integrity": "sha512-AAY=",
            "dependencies": {"b": "2.0.0"},
            "optionalDependencies": {"canvas": "1.0.0"},
            "peerDependencies": {"react": ">=18", "sass": "*"},
            "peerDependenciesMeta": {"sass": {"optional": True}},
        },
        "node_modules/@scope/a/node_modules/b": {
            "version": "2.0.0",
            "integrity": "sha512-AAI=",
            "dependencies": {"c": "1.0.0", "@scope/a": "1.0.0"},
        },
        "node_modules/b": {"version": "3.0.0", "integrity": "sha512-AAU="},
        "node_modules/c": {"version": "1.0.0", "integrity": "sha512-AAc="},
        "node_modules/vite": {"version": "8.0.0", "integrity": "sha512-AAM=", "dependencies": {"b": "3.0.0"}},
        "node_modules/vitest": {"version": "4.0.0", "integrity": "sha512-AAg=", "dev": True},
        "node_modules/canvas": {"version": "1.0.0", "integrity": "sha512-AAQ=", "optional": True},
        "node_modules/sass": {"version": "1.0.0", "integrity": "sha512-AAk="},
    }
    assert read_page_lock(json.dumps({"packages": packages})) == (
        PagePackage("@scope/a", "1.0.0", "0006"),
        PagePackage("b", "2.0.0", "0002"),
        PagePackage("c", "1.0.0", "0007"),
        PagePackage("react", "19.0.0", "0001"),
    )
