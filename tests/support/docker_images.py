"""The four images, built for tests on the Docker Engine that answers, without a registry.

The base is a Debian made by debootstrap, dressed down as slim images are; llama-server's base adds llama.cpp as built
by `.ci/engines`, laid out as its own image has it. Everything is named by a hash over what went in, so that a second
run finds it, and what no recent run used is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.ci_cache import REPOSITORY, cached_build
from tests.support.packages import PACKAGES as SOURCE_PACKAGES

PREFIX = "roundhouse-test"
"""Images are `roundhouse-test/NAME:HASH`; a container of such an image is a test's own and may be removed."""
NAMES = ("controller", "gateway", "worker", "llama-server")
GENERATIONS_KEPT = 3
"""Per image, so that a run on one state of the tree does not take the images of another run away."""

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "libgomp1", "libvulkan1", "libxext6", "python3", "python3-venv")
_STRIPPED = (
    *("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man"),
    *("var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log"),
)
_SOURCES = (
    *SOURCE_PACKAGES,
    "requirements",
    "images",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
_MORE_SOURCES = {"gateway": ("web",)}
"""What an image is made from beside that."""
_LEFT_OUT = ("__pycache__", "built", "node_modules")
"""Folders that the build context does not hold; `built` is the page, which the build makes itself."""
_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PIP_FORWARDED = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


class ImagesUnavailableError(RuntimeError):
    """The images cannot be made here. The message says why, in one line."""


def cache_dir() -> Path:
    """Where what is slow to make is kept, outside the work tree; `.ci/engines` uses the same folder."""
    if named := os.environ.get("ROUNDHOUSE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roundhouse"


def ensure_base() -> str:
    """The reference of the test base image; 90 s the first time on a machine, seconds the first time on an engine."""
    rootfs_key = _hash(SUITE, *PACKAGES, *_STRIPPED)
    base = f"{PREFIX}/base:{_hash(rootfs_key, _host_ca_bundle())}"
    if _present([base]):
        return base
    with _lock():
        if not _present([base]):
            rootfs = f"{PREFIX}/rootfs:{rootfs_key}"
            _docker("import", str(_rootfs_tarball(rootfs_key)), rootfs)
            _build_layer(base, f"FROM {rootfs}\nCOPY ca.crt {_CA_BUNDLE}\n", {"ca.crt": _host_ca_bundle()})
    return base


def ensure_images() -> dict[str, str]:
    """References of the four images by name, of the tree as it is now. Under a second when nothing changed."""
    base, engines = ensure_base(), _engines_dir()
    images = {name: f"{PREFIX}/{name}:{_inputs_hash(name, base, engines.name)}" for name in NAMES}
    if _present(list(images.values())):
        return images
    with _lock():
        bases = _engine_bases(base, engines)
        for name, image in images.items():
            if not _present([image]):
                _build(name, image, bases[name], bases["worker-build"])
        _prune({base, *bases.values(), *images.values()})
    return images


def _inputs_hash(name: str, base: str, engines_key: str) -> str:
    """Hash over all that can change the image: what the build context holds, its base, the engines in it."""
    parts: list[str | bytes] = [name, base, engines_key, (REPOSITORY / ".dockerignore").read_bytes()]
    sources = ("images/llama-server",) if name == "llama-server" else (*_SOURCES, *_MORE_SOURCES.get(name, ()))
    for source in sources:
        for path in _files(REPOSITORY / source):
            parts += [str(path.relative_to(REPOSITORY)), path.read_bytes()]
    return _hash(*parts)


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [each for each in folders if each not in _LEFT_OUT]
        found.extend(Path(folder, each) for each in names)
    return sorted(found)


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:12]


def _host_ca_bundle() -> bytes:
    """What this machine trusts, so that pip inside a build reaches what pip outside does."""
    path = Path(os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or _CA_BUNDLE)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImagesUnavailableError(f"no CA bundle at {path}: install ca-certificates ({error.strerror})") from error


def _engines_dir() -> Path:
    found = cached_build("engines")
    if not found.is_dir():
        raise ImagesUnavailableError("llama.cpp is not built yet: run .ci/engines once (about four minutes)")
    return found


def _engine_bases(base: str, engines: Path) -> dict[str, str]:
    """Base images by image name, and `worker-build`: the base with the wheel, which the final worker must not hold."""
    app = f"{PREFIX}/llama-cpp:{_hash(base, engines.name)}"
    wheels = f"{PREFIX}/wheels:{_hash(base, engines.name)}"
    for image, folder, target in ((app, "app", "/app"), (wheels, "wheels", "/wheels")):
        if not _present([image]):
            files = {f"{folder}/{path.name}": path.read_bytes() for path in (engines / folder).iterdir()}
            _build_layer(image, f"FROM {base}\nCOPY {folder} {target}\n", files)
    return {"controller": base, "gateway": base, "worker": base, "worker-build": wheels, "llama-server": app}


def _build(name: str, image: str, base: str, worker_build: str) -> None:
    tag = image.rpartition(":")[2]
    command = ["images/build", "--prefix", PREFIX, "--tag", tag, "--base", f"{name}={base}"]
    if name != "llama-server":
        npm = _npm_settings() if name == "gateway" else {}
        for setting, value in {"PIP_CERT": _CA_BUNDLE, **_pip_settings(), **npm}.items():
            command += ["--build-arg", f"{setting}={value}"]
    if name == "worker":
        command += ["--build-arg", f"BUILD_IMAGE={worker_build}"]
    _output([*command, name], cwd=REPOSITORY)


def _pip_settings() -> dict[str, str]:
    """This machine's package indexes, as build arguments. One in a local folder means nothing inside a build."""
    found: dict[str, str] = {}
    for line in _output([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        key, _, value = line.partition("=")
        variable = "PIP_" + key.rpartition(".")[2].upper().replace("-", "_")
        if variable in _PIP_FORWARDED:
            found[variable] = os.environ.get(variable, value.strip("'\"").replace("\\n", " "))
    reachable = {name: [url for url in urls.split() if not url.startswith("file:")] for name, urls in found.items()}
    return {name: " ".join(urls) for name, urls in reachable.items() if urls}


def _npm_settings() -> dict[str, str]:
    """This machine's npm registry, as a build argument; without one, npm's own is meant."""
    variable = "NPM_CONFIG_REGISTRY"
    named = os.environ.get(variable.lower()) or os.environ.get(variable)
    files = (path for path in (Path.home() / ".npmrc", Path("/etc/npmrc")) if path.is_file())
    lines = (line.partition("=") for path in files for line in path.read_text().splitlines())
    set_by_file = (value.strip() for key, _, value in lines if key.strip() == "registry")
    registry = named or next(set_by_file, "")
    return {variable: registry} if registry else {}


def _rootfs_tarball(key: str) -> Path:
    tarball = cache_dir() / "base" / f"{SUITE}-{key}.tar.gz"
    if tarball.exists():
        return tarball
    if os.geteuid() != 0:
        raise ImagesUnavailableError("the test base image is made by debootstrap, which needs root")
    tarball.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tarball.parent) as work:
        root, packed = Path(work) / "root", Path(work) / "packed.tar.gz"
        _output(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)])
        for folder in _STRIPPED:
            _output(["find", str(root / folder), "-mindepth", "1", "-delete"])
        _output(["tar", "-C", str(root), "--numeric-owner", "-czf", str(packed), "."])
        packed.replace(tarball)
    return tarball


def _build_layer(image: str, dockerfile: str, files: dict[str, bytes]) -> None:
    """Build a few files onto an image, the context going through the pipe. All get mode 0755: some are programs."""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, content in {"Dockerfile": dockerfile.encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    _docker("build", "--tag", image, "-", stdin=context.getvalue())


def _prune(current: set[str]) -> None:
    """Remove test images older than the last generations; one that a container uses stays."""
    listed = _docker("images", "--filter", f"reference={PREFIX}/*", "--format", "{{.Repository}}:{{.Tag}}").split()
    kept: dict[str, int] = {}
    for image in listed:
        repository = image.rpartition(":")[0]
        kept[repository] = kept.get(repository, 0) + 1
        if image not in current and kept[repository] > GENERATIONS_KEPT:
            subprocess.run(["docker", "rmi", image], capture_output=True, check=False)
    _docker("image", "prune", "--force", "--filter", "label=dev.roundhouse.stage=build", "--filter", "until=24h")


def _present(images: Sequence[str]) -> bool:
    """Whether all images are there; raises when no engine answers."""
    try:
        command = ["docker", "image", "inspect", "--format", "{{.Id}}", *images]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ImagesUnavailableError("there is no docker command here") from error
    if found.returncode != 0 and "No such image" not in found.stderr:
        raise ImagesUnavailableError(f"no Docker Engine answers: {found.stderr.strip().splitlines()[-1]}")
    return found.returncode == 0


def _docker(*arguments: str, stdin: bytes | None = None) -> str:
    return _output(["docker", *arguments], stdin=stdin)


def _output(command: Sequence[str], *, cwd: Path | None = None, stdin: bytes | None = None) -> str:
    """A command's standard output; its failure is an ImagesUnavailableError with its last lines."""
    # The classic builder is what every supported engine has; with BuildKit the same files build as well.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    try:
        done = subprocess.run(command, input=stdin or b"", cwd=cwd, env=environment, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ImagesUnavailableError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        shown = "\n".join(lines[-20:])
        raise ImagesUnavailableError(f"`{' '.join(command[:3])} ...` failed with status {done.returncode}:\n{shown}")
    return done.stdout.decode().strip()


@contextmanager
def _lock() -> Iterator[None]:
    """One builder at a time on this machine."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for name, image in ensure_images().items():
        print(f"{name}\t{image}")
