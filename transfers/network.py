"""The client with which transfers asks sources: addresses that it may ask, retries, tokens of registries.

A registry (distribution specification of the Open Container Initiative) answers 401 with the address of its token
server, which gives everybody a token for public repositories.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx2

from common.network.address_rule import AllowedHosts, default_port
from common.network.answers import ANSWER_S, LONGEST_ANSWER, UnreadableAnswerError, parse_json, read_whole
from common.network.transport import (
    AddressRefusedError,
    CheckedTransport,
    OpenBackends,
    Origin,
    Pace,
    Resolver,
    origin_of,
    resolve_addresses,
)
from contract.errors import RoundhouseError


def find_scheme_refusal(scheme: str, host: str, port: int, allowed: AllowedHosts) -> str | None:
    """Return why a URL must not be asked because of its scheme; None: it may be asked. `https` may be asked at every
    host, `http` only at the hosts and ports in `allowed`, and no other scheme at any."""
    if not default_port(scheme):
        return f"{scheme}: is not a scheme of downloads"
    if scheme == "http" and not allowed.has(host, port):
        return "the connection would not be encrypted (http)"
    return None


FAILURES: Final = (
    AddressRefusedError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    UnreadableAnswerError,
    # Of an answer that is not what it should be.
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What asking a source may raise."""


def describe_failure(error: Exception, source: str) -> RoundhouseError:
    """Return the RoundhouseError for a failure of asking `source`; the caller raises it. `error`: one of `FAILURES`.
    `source`: how the message names the source (`the hub`). The code is `source_address_refused`, `source_unavailable`,
    or `source_mismatch` for an answer that cannot be read. Neither the query of an address nor a header is in the
    message."""
    if isinstance(error, AddressRefusedError):
        return RoundhouseError("source_address_refused", f"{error}.")
    if isinstance(error, httpx2.TooManyRedirects):
        return RoundhouseError("source_unavailable", f"No end of redirects at {source}.")
    if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
        return RoundhouseError("source_unavailable", f"No connection to {source}: {error or type(error).__name__}.")
    reason = f": {error}" if isinstance(error, UnreadableAnswerError) else f" ({type(error).__name__})"
    return RoundhouseError("source_mismatch", f"The answer of {source} cannot be read{reason}.")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a failed request is repeated."""

    attempts: int = 6
    """Failures in a row after which a request is given up."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 30.0
    longest_asked_s: float = 300.0
    """Seconds that a source may ask to wait. A source that asks for more is given up."""

    def choose_delay(self, failures: int, asked_s: float | None) -> float | None:
        """Return the seconds until the next try after `failures` failures in a row (at least 1). None: give up, because
        there were `attempts` failures, or the source asks for more than `longest_asked_s`.

        The delay doubles with each failure from `first_delay_s` to `longest_delay_s`. `asked_s`: seconds that the
        source asked to wait, which the delay is never below; None: it asked for nothing.
        """
        if failures >= self.attempts or (asked_s is not None and asked_s > self.longest_asked_s):
            return None
        delay = min(self.longest_delay_s, self.first_delay_s * 2.0 ** (failures - 1))
        return delay if asked_s is None else max(delay, asked_s)


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, at least 0; None: there is none, or it cannot be read.
    `now`: Unix time in seconds."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        moment: datetime = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the second for a zone of many digits
        return None
    # A date without a zone is in UTC (RFC 9110, 5.6.7).
    at = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, at.timestamp() - datetime.fromtimestamp(now, UTC).timestamp())


_PARAMETER: Final = re.compile(r'([A-Za-z_]+)=(?:"([^"]*)"|([^\s,]+))', re.ASCII)
_PATH: Final = re.compile(r"/v2/(.+)/(?:manifests|blobs)/[^/]+")
_TOKEN: Final = re.compile(r"[!-~]{1,32768}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a `WWW-Authenticate` header with the scheme `Bearer` asks for: a token of the token server `realm`, for
    `service` (None: none is named)."""

    realm: str
    """Address of the token server."""
    service: str | None

    def build_query(self, repository: str) -> dict[str, str]:
        """Return the parameters of the query that asks the token server for a token to read the repository. A scope
        that the registry named is ignored."""
        service = {} if self.service is None else {"service": self.service}
        return {**service, "scope": f"repository:{repository}:pull"}


def parse_challenge(header: str) -> Challenge | None:
    """Return what a `WWW-Authenticate` header asks for; None: no token server is named."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    found = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(rest)}
    return Challenge(found["realm"], found.get("service")) if found.get("realm") else None


def find_repository(path: str) -> str | None:
    """Return the repository in the path of a manifest's or a blob's URL (`/v2/REPOSITORY/manifests/...`); None: the
    path is no such path."""
    found = _PATH.fullmatch(path)
    return None if found is None else found[1]


def parse_token(body: bytes) -> str | None:
    """Return the token in the body of a token server's answer; None: the body has none."""
    try:
        answer = parse_json(body)
    except UnreadableAnswerError:
        return None
    named = (answer.get("token"), answer.get("access_token")) if isinstance(answer, dict) else ()
    return next((each for each in named if isinstance(each, str) and _TOKEN.fullmatch(each)), None)


MOST_REDIRECTS: Final = 8
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_FRAMING: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that say how a body came, and not what it is."""
USER_AGENT: Final = "roundhouse-transfers"


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How sources are connected to: to which hosts, how long to wait, with which tokens and certificates.
    `open_backends` ends all connections that were made with these options."""

    allowed: AllowedHosts = field(default_factory=AllowedHosts)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Seconds without a byte after which a connection is given up."""
    resolver: Resolver = resolve_addresses
    tokens: Mapping[Origin, Callable[[], str | None]] | None = None
    """Bearer token by origin, read for each request; a token that is None is left out. No other origin gets it."""
    tls: ssl.SSLContext = field(default_factory=httpx2.create_ssl_context)
    """Certificates that are trusted. One context serves all connections, for making one takes long."""
    open_backends: OpenBackends = field(default_factory=OpenBackends)
    """What ends all connections made with these options."""
    pace: Pace = field(default_factory=Pace)
    """How slow a source may be, in all answers, files too."""
    answer_s: float = ANSWER_S
    """Seconds that the body of an answer that is no file may take."""
    longest_answer: int = LONGEST_ANSWER
    """Bytes of an answer that is no file."""
    longest_token_answer: int = 64 * 1024
    """Bytes of what a registry's token server may answer."""


def open_transport(options: NetworkOptions) -> CheckedTransport:
    """Return a transport for an HTTP client that connects only to what `options` allow, by host, address and scheme,
    and raises AddressRefusedError for anything else. `options.open_backends` can end its connections. Nothing is
    connected yet; the caller closes the transport."""

    def find_refusal(origin: Origin) -> str | None:
        return find_scheme_refusal(origin.scheme, origin.host, origin.port, options.allowed)

    return CheckedTransport(
        options.allowed,
        find_refusal,
        tls=options.tls,
        resolver=options.resolver,
        open_backends=options.open_backends,
        pace=options.pace,
    )


def read_body(response: httpx2.Response, options: NetworkOptions, most_bytes: int) -> bytes:
    """Return the whole body of an answer that is no file, and is unread. Blocks.

    Raises:
        UnreadableAnswerError: it is too large, or compressed, which was not asked for.
        httpx2.HTTPError: the connection failed, or the body takes longer than `answer_s`.
    """
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnreadableAnswerError("it is compressed, which was not asked for")
    try:
        return read_whole(response.iter_raw(), most_bytes=most_bytes, within_s=options.answer_s)
    except TimeoutError as error:
        raise httpx2.ReadTimeout(str(error)) from None


class WholeAnswers(httpx2.BaseTransport):
    """Transport for a library that reads answers whole, without bounds of its own: each answer is read by `read_body`
    before the library gets it. One with status 200 must be JSON, as `parse_json` reads it; the body of another one is
    left out if it cannot be read."""

    def __init__(self, options: NetworkOptions) -> None:
        self._options = options
        self._inner = open_transport(options)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request, and return the answer with its body. Blocks. Raises as `CheckedTransport` and `read_body`
        do, and UnreadableAnswerError for what is no JSON."""
        request.headers["accept-encoding"] = "identity"
        response = self._inner.handle_request(request)
        response.request = request
        body, is_good = b"", response.status_code == 200
        try:
            body = read_body(response, self._options, self._options.longest_answer)
            if is_good:
                parse_json(body)
        except UnreadableAnswerError:
            if is_good:
                raise
        finally:
            response.close()
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _FRAMING]
        return httpx2.Response(response.status_code, headers=headers, content=body)

    def close(self) -> None:
        """End all connections."""
        self._inner.close()


class SourceClient:
    """HTTP client that follows redirects itself: each hop is checked, and a token goes only to its own origin. For a
    registry that wants a token from everybody, the client gets an anonymous one. Methods may be called from several
    threads. The owner calls `close`."""

    def __init__(self, options: NetworkOptions) -> None:
        self._options = options
        self._transport = open_transport(options)
        timeout = httpx2.Timeout(options.read_timeout_s, connect=options.connect_timeout_s)
        self._client = httpx2.Client(
            transport=self._transport,
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            headers={"user-agent": USER_AGENT, "accept-encoding": "identity"},
        )
        self._registry_tokens: dict[tuple[Origin, str], str] = {}
        self._token_lock = threading.Lock()
        self._challenge_lock = threading.Lock()

    def interrupt(self) -> None:
        """End all requests that are under way with an error, and refuse those to come. Does not wait. May be called
        from any thread."""
        self._transport.backend.interrupt()

    def close(self) -> None:
        """End all connections. No request may be under way."""
        self._client.close()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[tuple[httpx2.Response, list[httpx2.Response]]]:
        """Return a context manager that sends `GET`, and yields the answer after the redirects, unread, and the
        redirects before it in their order. The answer is closed at the end of the block. Its status is not checked.
        Blocks.

        Raises:
            AddressRefusedError: the host, or one that is redirected to, must not be connected to.
            InterruptedConnectionError: `interrupt` was called.
            httpx2.HTTPError: the connection failed, a registry's token server is busy or fails, or there are more than
                `MOST_REDIRECTS` redirects (httpx2.TooManyRedirects).
            httpx2.InvalidURL: a redirect names no URL.
        """
        hops: list[httpx2.Response] = []
        target = httpx2.URL(url)
        is_challenged = False
        while True:
            credentials = self._credentials(target)
            request = self._client.build_request("GET", target, headers={**headers, **credentials})
            response = self._client.send(request, stream=True)
            try:
                location = response.headers.get("location")
                if (
                    response.status_code == 401
                    and not is_challenged
                    and self._can_answer(target, response, credentials)
                ):
                    is_challenged = True
                    continue
                if response.status_code not in _REDIRECTS or location is None:
                    yield response, hops
                    return
            finally:
                response.close()
            hops.append(response)
            if len(hops) > MOST_REDIRECTS:
                raise httpx2.TooManyRedirects(f"more than {MOST_REDIRECTS} redirects", request=request)
            refuse_downgrade(response)
            target = target.join(location)

    def read_body(self, response: httpx2.Response, most_bytes: int) -> bytes:
        """Return the whole body of an answer that `open` yielded, and that is no file; see `read_body`."""
        return read_body(response, self._options, most_bytes)

    def _credentials(self, url: httpx2.URL) -> dict[str, str]:
        read_token = (self._options.tokens or {}).get(origin_of(url))
        token = self._find_registry_token(url) if read_token is None else read_token()
        return {} if token is None else {"authorization": f"Bearer {token}"}

    def _find_registry_token(self, url: httpx2.URL) -> str | None:
        repository = find_repository(url.path)
        with self._token_lock:
            return None if repository is None else self._registry_tokens.get((origin_of(url), repository))

    def _can_answer(self, url: httpx2.URL, response: httpx2.Response, credentials: Mapping[str, str]) -> bool:
        """Whether a registry that refused a request for the address lets everybody in who asks its token server first.
        The token is kept then, for this repository of this origin. `credentials`: what the request had shown."""
        repository = find_repository(url.path)
        challenge = parse_challenge(response.headers.get("www-authenticate", ""))
        if repository is None or challenge is None or origin_of(url) in (self._options.tokens or {}):
            return False
        with self._challenge_lock:
            if self._credentials(url) != credentials:
                return True  # another thread has just asked
            token = self._ask_token(url.join(challenge.realm), challenge.build_query(repository), url.scheme)
        if token is None:
            return False
        with self._token_lock:
            self._registry_tokens[origin_of(url), repository] = token
        return True

    def _ask_token(self, realm: httpx2.URL, query: Mapping[str, str], scheme: str) -> str | None:
        if scheme == "https" and realm.scheme != "https":
            raise AddressRefusedError(f"{realm.host} gives tokens without encryption")
        request = self._client.build_request("GET", realm.copy_merge_params(query))
        response = self._client.send(request, stream=True)
        try:
            if response.status_code == 429 or response.status_code >= 500:
                raise httpx2.HTTPError(f"the token server {realm.host} answers status {response.status_code}")
            if response.status_code != 200:
                return None
            return parse_token(read_body(response, self._options, self._options.longest_token_answer))
        except UnreadableAnswerError:
            return None
        finally:
            response.close()


def refuse_downgrade(response: httpx2.Response) -> None:
    """Raise an error for a redirect from https to another scheme. Any other answer passes; it may be unread.

    Raises:
        AddressRefusedError: the answer to a request by https redirects to another scheme.
        httpx2.InvalidURL: the redirect names no URL.
    """
    url, location = response.request.url, response.headers.get("location")
    if response.status_code in _REDIRECTS and location is not None and url.scheme == "https":
        following = url.join(location).scheme
        if following != "https":
            raise AddressRefusedError(f"{url.host} redirects to {following}, which is not encrypted")
