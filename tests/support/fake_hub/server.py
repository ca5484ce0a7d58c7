"""The fake hub's two servers, which run in threads: the hub, and the storage that it redirects to; and what each
answers."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.fake_hub.faults import Fault, FaultPlan, Site
from tests.support.fake_hub.repositories import HubFile, HubRepository, make_repositories

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_QUANT = re.compile(r"(?:^|[-._])((?:IQ|Q)\d[A-Z0-9_]*|BF16|F16|F32)(?=[-.])", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    """By name in lower case."""

    @property
    def path(self) -> str:
        """Path without query, decoded."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """The last value of each field."""
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.target).query).items()}

    @property
    def token(self) -> str | None:
        """Bearer token; None: there is none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token if scheme.lower() == "bearer" else None


@dataclass
class Answer:
    """One answer, before anything goes wrong with it."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    site: Site = "api"
    path: str = ""
    """Path of the file in the repository; empty: it is about no file."""
    whole: bytes | None = None
    """Content of the whole file of which `body` may be a range; None: it is no file."""


class HubAnswers:
    """The hub with these repositories, which may gain commits between two requests."""

    def __init__(self, repositories: Mapping[str, HubRepository], tokens: frozenset[str], page: int) -> None:
        """`page`: entries of one answer about a repository's tree."""
        self._repositories = repositories
        self._tokens = tokens
        self._page = page

    def answer(self, request: Request, storage: str) -> Answer:
        path = request.path
        if request.token is not None and request.token not in self._tokens:
            return _refuse(401, None, "Invalid credentials in Authorization header")
        if path == "/api/whoami-v2":
            known = request.token is not None
            return _send_json({"name": "tester", "type": "user"}) if known else _refuse(401, None, "No token")
        if path == "/api/models":
            return self._answer_search(request)
        if found := re.fullmatch(r"/v2/([^/]+/[^/]+)/manifests/(.+)", path):
            return self._answer_manifest(request, *found.groups())
        if found := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            return self._answer_resolved(request, *found.groups(), storage="")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|refs)(?:/(.*))?)?", path):
            return self._answer_api(request, *found.groups())
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+|refs/[^/]+/[^/]+)/(.+)", path):
            return self._answer_resolved(request, *found.groups(), storage=storage)
        return _refuse(404, None, "Sorry, we can't find the page you are looking for.")

    def find_stored(self, request: Request) -> Answer:
        """Answer a request to the storage, whose addresses are signed."""
        digest = request.path.rpartition("/")[2]
        if request.query.get("Signature") != sign(digest):
            return Answer(
                403, {"content-type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>", "storage"
            )
        for repository in self._repositories.values():
            for files in repository.commits.values():
                for file in files.values():
                    if file.is_lfs and file.sha256 == digest:
                        return _send_file(
                            request, file, "storage", {"etag": f'"{hashlib.md5(digest.encode()).hexdigest()}"'}
                        )
        return Answer(404, {}, b"", "storage")

    def _find(self, request: Request, name: str, *, of_files: bool) -> HubRepository | Answer:
        repository = self._repositories.get(name)
        if repository is None or (repository.private and request.token is None):
            # Who is not known does not learn whether a repository exists.
            return _refuse(401 if request.token is None else 404, "RepoNotFound", "Repository not found")
        if of_files and repository.gated and request.token is None:
            return _refuse(401, "GatedRepo", f"Access to model {name} is restricted. You must have access to it.")
        return repository

    def _answer_api(self, request: Request, name: str, kind: str | None, rest: str | None) -> Answer:
        repository = self._find(request, name, of_files=False)
        if isinstance(repository, Answer):
            return repository
        if kind == "refs":
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": repository.head}
            tags = [
                {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": commit}
                for tag, commit in repository.tags.items()
            ]
            return _send_json({"branches": [branch], "tags": tags, "converts": []})
        revision, _, folder = (rest or "main").partition("/")
        commit = repository.find_commit(unquote(revision))
        if commit is None:
            return _refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repository.commits[commit]
        if kind == "tree":
            return self._list_tree(
                request, name, files, folder, is_recursive=request.query.get("recursive") in ("true", "True", "1")
            )
        return _send_json(
            _describe_model(repository, commit, with_blobs=request.query.get("blobs") in ("true", "True"))
        )

    def _answer_search(self, request: Request) -> Answer:
        """The list of models, with what `expand` names of each, as the hub has it: no sizes of files."""
        fields = parse_qs(urlsplit(request.target).query)
        words = request.query.get("search", "").lower().split()
        rows = []
        for repository in self._repositories.values():
            row = _describe_model(repository, repository.head, with_blobs=False)
            is_shown = not repository.private or request.token is not None
            is_named = all(word in repository.name.lower() for word in words)
            if is_shown and is_named and set(fields.get("filter", ())) <= set(row["tags"]):
                rows.append({name: row[name] for name in ("_id", "id", *fields.get("expand", ()))})
        rows.sort(key=lambda row: -row.get("downloads", 0))
        return _send_json(rows[: int(request.query.get("limit", "1000"))])

    def _list_tree(
        self, request: Request, name: str, files: Mapping[str, HubFile], folder: str, *, is_recursive: bool
    ) -> Answer:
        prefix = f"{folder.strip('/')}/" if folder else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, file in files.items():
            if not path.startswith(prefix):
                continue
            below = path[len(prefix) :].split("/")[:-1]
            for depth in range(1, len(below) + 1):
                directory = prefix + "/".join(below[:depth])
                if is_recursive or depth == 1:
                    oid = hashlib.sha1(directory.encode(), usedforsecurity=False).hexdigest()
                    entries[directory] = {"type": "directory", "oid": oid, "size": 0, "path": directory}
            if is_recursive or not below:
                entries[path] = _describe_entry(file)
        if not entries and prefix:
            return _refuse(404, "EntryNotFound", f"{folder} does not exist")
        start = int(request.query.get("cursor", "0"))
        answer = _send_json(list(entries.values())[start : start + self._page])
        if start + self._page < len(entries):
            base = urlsplit(request.target).path
            host = request.headers.get("host", "")
            recursive = str(is_recursive).lower()
            link = f"http://{host}{base}?recursive={recursive}&cursor={start + self._page}"
            answer.headers["link"] = f'<{link}>; rel="next"'
        return answer

    def _answer_resolved(self, request: Request, name: str, revision: str, path: str, *, storage: str) -> Answer:
        """A file at the hub. `storage`: origin of the storage; empty: the request is for the hub's own cache."""
        repository = self._find(request, name, of_files=True)
        if isinstance(repository, Answer):
            repository.site = "resolve"
            return repository
        commit = repository.find_commit(revision)
        if commit is None:
            return _refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}", "resolve")
        head = {"x-repo-commit": commit}
        file = repository.commits[commit].get(path)
        if file is None:
            missing = _refuse(404, "EntryNotFound", "Entry not found", "resolve")
            missing.headers |= head
            return missing
        head["accept-ranges"] = "bytes"
        if file.is_lfs:
            query = f"Signature={sign(file.sha256)}&Expires=4102444800"
            location = f"{storage}/repos/{name}/{file.sha256}?{query}"
            head |= {"x-linked-etag": f'"{file.etag}"', "x-linked-size": str(file.size), "location": location}
            return Answer(302, head, f"Found. Redirecting to {location}".encode(), "resolve", path)
        if storage:
            location = f"/api/resolve-cache/models/{name}/{commit}/{quote(path)}"
            return Answer(307, head | {"location": location}, b"Temporary Redirect", "resolve", path)
        return _send_file(request, file, "resolve", head | {"etag": f'"{file.etag}"'})

    def _answer_manifest(self, request: Request, name: str, tag: str) -> Answer:
        """What `llama-server -hf` of 2025 asked: which files a quantisation is."""
        repository = self._find(request, name, of_files=True)
        if isinstance(repository, Answer):
            return repository
        files = repository.commits[repository.head]
        models = [path for path in files if path.endswith(".gguf") and "mmproj" not in path and "imatrix" not in path]
        wanted = ("Q4_K_M", "Q4_0") if tag == "latest" else (tag,)
        named = [
            path
            for want in wanted
            for path in models
            if (found := _QUANT.search(path)) and found[1].upper() == want.upper()
        ]
        chosen = named[0] if named else models[0] if models and tag == "latest" else None
        if chosen is None:
            return _send_json({"error": "The specified tag is not available in the repository."}, status=400)
        manifest: dict[str, Any] = {"schemaVersion": 2, "ggufFile": _describe_sibling(files[chosen])}
        projectors = [path for path in files if path.endswith(".gguf") and "mmproj" in path]
        if projectors:
            manifest["mmprojFile"] = _describe_sibling(files[projectors[-1]])
        return _send_json(manifest)


def sign(digest: str) -> str:
    """The signature of an address in the storage."""
    return hashlib.sha256(f"signed {digest}".encode()).hexdigest()[:24]


def _describe_model(repository: HubRepository, commit: str, *, with_blobs: bool) -> dict[str, Any]:
    files = repository.commits[commit].values()
    return {
        "_id": "0" * 24,
        "id": repository.name,
        "modelId": repository.name,
        "author": repository.name.partition("/")[0],
        "sha": commit,
        "lastModified": "2026-01-02T03:04:05.000Z",
        "createdAt": "2026-01-02T03:04:05.000Z",
        "private": repository.private,
        "gated": "manual" if repository.gated else False,
        "disabled": False,
        "downloads": repository.downloads,
        "likes": 1,
        "tags": [
            *sorted({each.path.rpartition(".")[2] for each in files} & {"gguf", "safetensors"}),
            f"license:{repository.licence}",
        ],
        "siblings": [_describe_sibling(file) if with_blobs else {"rfilename": file.path} for file in files],
    }


def _describe_sibling(file: HubFile) -> dict[str, Any]:
    sibling: dict[str, Any] = {"rfilename": file.path, "blobId": file.git_sha1, "size": file.size}
    if file.is_lfs:
        sibling["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return sibling


def _describe_entry(file: HubFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": file.git_sha1, "size": file.size, "path": file.path}
    if file.is_lfs:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return entry


def _send_json(content: object, status: int = 200) -> Answer:
    return Answer(status, {"content-type": "application/json; charset=utf-8"}, json.dumps(content).encode())


def _refuse(status: int, code: str | None, message: str, site: Site = "api") -> Answer:
    answer = _send_json({"error": message}, status)
    answer.site = site
    answer.headers["x-error-message"] = message
    if code is not None:
        answer.headers["x-error-code"] = code
    return answer


def _send_file(request: Request, file: HubFile, site: Site, headers: Mapping[str, str]) -> Answer:
    content = file.read()
    head = {"content-type": "application/octet-stream", "accept-ranges": "bytes", **headers}
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or found.groups() == ("", ""):
        return Answer(200, head, content, site, file.path, content)
    first, last = found.groups()
    start = int(first) if first else max(0, len(content) - int(last))
    end = min(len(content), int(last) + 1 if first and last else len(content))
    if start >= end:
        return Answer(416, head | {"content-range": f"bytes */{len(content)}"}, b"", site, file.path, content)
    head["content-range"] = f"bytes {start}-{end - 1}/{len(content)}"
    return Answer(206, head, content[start:end], site, file.path, content)


CHUNK_BYTES = 16 * 1024
HUGE_BYTES = 10**17
"""What a file of the fault `huge` claims to have."""
SLICE_S = 0.02
"""Seconds between two parts of a slow answer."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    server: str
    """`hub` or `storage`."""
    method: str
    target: str
    """Path and query."""
    headers: dict[str, str]
    """By name in lower case."""
    status: int
    """Of the answer."""


class FakeHub:
    """A hub with its storage, from `start` to `close`; a context manager does both. The public fields may be changed
    while it runs."""

    def __init__(
        self,
        repositories: Iterable[HubRepository] | None = None,
        *,
        tokens: Iterable[str] = ("hf_tester",),
        faults: FaultPlan | None = None,
        bytes_per_s: float | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        page: int = 1000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`repositories`: None for generated ones of every kind. `tokens`: those that are known. `bytes_per_s`: speed
        of each answer; None: as fast as it can. `port`: of the hub; 0: any. `page`: entries of one answer about a tree.
        `tls`: certificate of both servers; None: they speak plain HTTP."""
        every = make_repositories() if repositories is None else repositories
        self.repositories = {each.name: each for each in every}
        self.faults = faults or FaultPlan()
        self.bytes_per_s = bytes_per_s
        self.closing = threading.Event()
        self._answers = HubAnswers(self.repositories, frozenset(tokens), page)
        self._lock = threading.Lock()
        self._seen: list[SeenRequest] = []
        self._scheme = "http" if tls is None else "https"
        self._servers = {
            "hub": _Server((host, port), self, "hub", tls),
            "storage": _Server((host, 0), self, "storage", tls),
        }

    @property
    def endpoint(self) -> str:
        """Address of the hub, without a slash at its end: `HF_ENDPOINT`."""
        return self._origin("hub")

    @property
    def storage(self) -> str:
        return self._origin("storage")

    @property
    def requests(self) -> list[SeenRequest]:
        """All requests so far, in the order of their answers' beginnings."""
        with self._lock:
            return list(self._seen)

    def clear_requests(self) -> None:
        with self._lock:
            self._seen.clear()

    def add(self, repository: HubRepository) -> None:
        """Serve one more repository, or another one of the same name."""
        self.repositories[repository.name] = repository

    def store(self, content: bytes) -> str:
        """Serve a file besides the repositories. Returns its address, which redirects to the storage."""
        repository = HubRepository(f"stored/{hashlib.sha256(content).hexdigest()[:16]}", {"model.gguf": content})
        self.add(repository)
        return f"{self.endpoint}/{repository.name}/resolve/{repository.head}/model.gguf"

    def start(self) -> Self:
        """Serve. The ports are taken since the hub was made."""
        for name, server in self._servers.items():
            threading.Thread(target=server.serve_forever, args=(0.01,), name=f"fake-{name}", daemon=True).start()
        return self

    def close(self) -> None:
        """End all answers that are under way, and both servers. Call it once, after `start`."""
        self.closing.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
            server.end_connections()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answer(self, server: str, request: Request) -> tuple[Answer, Fault | None]:
        """The answer to a request, and what shall go wrong with it. The request is noted."""
        if server == "storage":
            answer = self._answers.find_stored(request)
        else:
            answer = self._answers.answer(request, self.storage)
        fault = self.faults.take(answer.site, answer.path)
        if fault is not None:
            answer = _spoil(answer, fault, request)
        with self._lock:
            self._seen.append(SeenRequest(server, request.method, request.target, dict(request.headers), answer.status))
        return answer, fault

    def _origin(self, name: str) -> str:
        host, port = self._servers[name].server_address[:2]
        return f"{self._scheme}://{host!s}:{port}"


def _spoil(answer: Answer, fault: Fault, request: Request) -> Answer:
    """The answer with what is wrong in its head or its bytes."""
    head, body, whole = dict(answer.headers), answer.body, answer.whole
    if fault.kind == "status":
        return Answer(fault.status, _refusal_head(fault), b"a fault on request", answer.site, answer.path)
    if fault.kind == "redirect":
        return Answer(302, {"location": fault.location or request.target}, b"", answer.site, answer.path)
    if fault.kind == "other_etag":
        head |= {"etag": f'"{"0" * 64}"', "x-linked-etag": f'"{"0" * 64}"'}
    elif fault.kind == "other_commit":
        head["x-repo-commit"] = "f" * 40
    elif fault.kind == "encoded":
        head["content-encoding"] = "gzip"
    elif fault.kind == "wrong_bytes" and body:
        at = min(fault.after_bytes, len(body) - 1)
        body = body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]
    elif whole is not None and answer.status == 206:
        return _spoil_range(answer, fault, head, whole)
    return Answer(answer.status, head, body, answer.site, answer.path, whole)


def _spoil_range(answer: Answer, fault: Fault, head: dict[str, str], whole: bytes) -> Answer:
    body, status = answer.body, answer.status
    start = int(head["content-range"].removeprefix("bytes ").partition("-")[0])
    if fault.kind == "ignored_range":
        del head["content-range"]
        body, status = whole, 200
    elif fault.kind == "other_total":
        head["content-range"] = f"bytes {start}-{start + len(body) - 1}/{len(whole) + 7}"
    elif fault.kind == "huge":
        head["content-range"] = f"bytes {start}-{start + len(body) - 1}/{HUGE_BYTES}"
    elif fault.kind == "other_range":
        moved = start + 1 if start + len(body) < len(whole) else max(0, start - 1)
        body = whole[moved : moved + len(body)]
        head["content-range"] = f"bytes {moved}-{moved + len(body) - 1}/{len(whole)}"
    return Answer(status, head, body, answer.site, answer.path, whole)


def _refusal_head(fault: Fault) -> dict[str, str]:
    named = {"retry-after": fault.retry_after, "x-error-code": fault.error_code}
    return {"content-type": "text/plain", **{name: value for name, value in named.items() if value is not None}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], hub: FakeHub, name: str, tls: ssl.SSLContext | None) -> None:
        self.hub = hub
        self.name = name
        self._tls = tls
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        connection: socket.socket = request
        with self._guard:
            self._connections.add(connection)
        try:
            with suppress(OSError, ValueError):
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                super().finish_request(connection, client_address)
                if self._tls is not None:
                    connection.close()
        finally:
            with self._guard:
                self._connections.discard(request)

    def end_connections(self) -> None:
        with self._guard:
            connections = list(self._connections)
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: the requests are in `FakeHub.requests`."""

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer, fault = self.server.hub.answer(self.server.name, Request(self.command, self.path, headers))
        if fault is not None and fault.kind == "no_head":
            self._end(resets=fault.resets)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        body, after = self._send_length(answer, fault)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(body, fault)
        if after:
            self._end(resets=False)

    def _send_length(self, answer: Answer, fault: Fault | None) -> tuple[bytes, bool]:
        """Announce the length. Returns the body, and whether the connection ends after it."""
        body, kind = answer.body, None if fault is None else fault.kind
        if kind == "no_length":
            self.send_header("connection", "close")
            return body, True
        announced = len(body)
        if kind == "short_length":
            announced = max(0, announced - 100)
        elif kind == "long_length":
            announced += 100
        self.send_header("content-length", str(announced))
        if kind == "more_bytes":
            body += b"more than was announced" * 20
        return body, kind in ("short_length", "long_length", "more_bytes")

    def _send_body(self, body: bytes, fault: Fault | None) -> None:
        if fault is not None and fault.kind in ("drop", "stall"):
            self.wfile.write(body[: fault.after_bytes])
            if fault.kind == "stall":
                self.server.hub.closing.wait(60)
            self._end(resets=fault.resets)
            return
        speed = fault.bytes_per_s if fault is not None and fault.kind == "slow" else self.server.hub.bytes_per_s
        chunk = CHUNK_BYTES if speed is None else max(1, int(speed * SLICE_S))
        for start in range(0, len(body), chunk):
            self.wfile.write(body[start : start + chunk])
            if speed is not None and self.server.hub.closing.wait(SLICE_S):
                return

    def _end(self, *, resets: bool) -> None:
        self.close_connection = True
        with suppress(OSError):
            if resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.connection.close()
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
