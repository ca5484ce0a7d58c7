"""Headers of the page's files: which code may run, what may be loaded, who may show the page in a frame."""

from __future__ import annotations

from typing import Final

_PAGE_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self' data: blob:",
        "media-src data: blob:",
        "connect-src 'self'",
        "frame-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_FRAME_POLICIES: Final = {
    # What a model wrote as HTML, shown on demand: its scripts run without an origin, and reach no network.
    "preview.html": "; ".join(
        (
            "sandbox allow-scripts",
            "default-src 'none'",
            "script-src 'unsafe-inline'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "media-src data: blob:",
            "font-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
        )
    ),
    # Mermaid writes style elements and attributes into its drawing, which the page's own policy forbids.
    "diagram.html": "; ".join(
        (
            "sandbox allow-scripts",
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self' 'unsafe-inline'",
            "font-src 'self' data:",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
        )
    ),
}
FRAMES: Final = frozenset(_FRAME_POLICIES)
"""Documents that the page shows in sandboxed frames, by their paths below `/page/`."""


def security_headers(path: str) -> dict[str, str]:
    """Return the security headers of the file at `path`, relative to `/page/`; the page itself is `index.html`.

    Frames of untrusted content have a policy of their own: a sandbox without an origin, which reaches no network.
    """
    headers = {
        "content-security-policy": _FRAME_POLICIES.get(path, _PAGE_POLICY),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(self), microphone=(self), geolocation=()",
    }
    if path in FRAMES:
        return headers
    # Scripts of a sandboxed frame are fetched by a document without an origin, so the files allow every origin: they
    # hold no data, and the page itself is answered to everybody.
    cors = {"access-control-allow-origin": "*"} if path != "index.html" else {"x-frame-options": "DENY"}
    return headers | cors
