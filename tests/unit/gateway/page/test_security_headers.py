"""The policies of the page's documents, word for word: a change of them is a decision."""

from __future__ import annotations

import pytest

from gateway.page.security_headers import FRAMES, security_headers

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; connect-src 'self'; frame-src 'self'; worker-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
POLICIES = {
    "index.html": PAGE_POLICY,
    "assets/index-a1.js": PAGE_POLICY,
    "preview.html": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "diagram.html": "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
}


@pytest.mark.parametrize("path", POLICIES)
def test_the_policy_of_each_document(path: str) -> None:
    assert security_headers(path)["content-security-policy"] == POLICIES[path]


def test_frames_are_the_documents_with_a_policy_of_their_own() -> None:
    assert {path for path, policy in POLICIES.items() if policy != PAGE_POLICY} == FRAMES


@pytest.mark.parametrize("path", POLICIES)
def test_no_document_lets_a_foreign_host_in_or_a_model_reach_one(path: str) -> None:
    policy = security_headers(path)["content-security-policy"]
    assert "http" not in policy
    assert "*" not in policy
    assert "unsafe-eval" not in policy
    if path in FRAMES:
        assert "allow-same-origin" not in policy
        assert "connect-src" not in policy, "default-src 'none' stands"


def test_the_page_is_in_no_frame_and_its_files_may_be_read_by_frames_without_an_origin() -> None:
    assert security_headers("index.html") == {
        "content-security-policy": PAGE_POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), microphone=(self), geolocation=()",
        "x-frame-options": "DENY",
    }
    asset = security_headers("assets/index-a1.js")
    assert ("x-frame-options" in asset, asset["access-control-allow-origin"]) == (False, "*")
    for path in FRAMES:
        assert not {"x-frame-options", "access-control-allow-origin"} & security_headers(path).keys()
