"""Why a container cannot start: what its image requires of the driver, variables of the dynamic loader that it sets,
and the daemon's error messages in plain words. Pure.

CUDA images have a requirement in `NVIDIA_REQUIRE_CUDA`: alternatives separated by spaces, of which one must be
fulfilled, each of conditions such as `driver>=535` joined by commas, which must all hold. NVIDIA's container toolkit
refuses the start if no alternative is fulfilled: libnvidia-container `src/cli/dsl.c` and `configure.c`, and in
nvidia-container-toolkit `internal/config/image/cuda_image.go` and `internal/requirements/`. The toolkit takes a
condition literally, although CUDA could run an application of the same major version on an older driver (minor
version compatibility). Since Docker 29 (moby/moby#50228) this check is skipped if the host has CDI devices.

NVIDIA's container toolkit runs its hooks on the host as root, with the container's environment and in the container's
root folder. Up to 1.17.7, an image with `LD_PRELOAD=/proc/self/cwd/its.so` could so run code there (CVE-2025-23266).

The error messages are those of Docker Engine 20.10 to 29 (moby `daemon/`), of runc and of NVIDIA's container toolkit
(on requirements: libnvidia-container `src/cli/dsl.c`, nvidia-container-toolkit `internal/requirements`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from controller.hosts import GpuDriver
from controller.runtimes.base import StartError

_PREFIX: Final = "LD_"
_SEARCH_PATH: Final = "LD_LIBRARY_PATH"
"""Variable that the images of CUDA set, and so those of vLLM and llama.cpp. For a hook, its absolute paths are folders
of the host, which is harmless; paths that lead back into the container are refused."""
_INTO_CONTAINER: Final = ("/proc", "/dev")
"""Folders through which a path can lead into the container: /proc/self/cwd, and /dev/fd, a link to /proc."""


def find_loader_problem(image: str, image_env: Sequence[str], own_env: Mapping[str, str]) -> str | None:
    """Return why a container with GPUs must not be made of this image, and what to do; None if it may. `image_env` are
    the image's variables (`KEY=value`). Those that the definition sets itself (`own_env`) replace them, and are
    trusted."""
    variables = dict(each.partition("=")[::2] for each in image_env)
    for name, value in variables.items():
        if name in own_env or not name.startswith(_PREFIX) or not value:
            continue
        if name == _SEARCH_PATH and not _leads_into_container(value):
            continue
        return (
            f"image {image} sets {name}, which NVIDIA's hooks would follow on the host as root (CVE-2025-23266), so it"
            f" gets no GPUs: take another image, or set {name} in the definition's `env` (empty: none)"
        )
    return None


def _leads_into_container(search_path: str) -> bool:
    return any(_is_inside(folder) for folder in search_path.replace(";", ":").split(":"))


def _is_inside(folder: str) -> bool:
    """Return whether a folder of a search path may lead into the container. A relative or empty one does: it counts
    from the hook's current folder, which is the container's root."""
    if not folder.startswith("/"):
        return True
    plain = "/" + posixpath.normpath(folder).lstrip("/")
    return "$" in folder or any(plain == each or plain.startswith(f"{each}/") for each in _INTO_CONTAINER)


_REQUIRE_PREFIX: Final = "NVIDIA_REQUIRE_"
_REQUIRE_CUDA: Final = "NVIDIA_REQUIRE_CUDA"
_REQUIRE_JETPACK: Final = "NVIDIA_REQUIRE_JETPACK"
_DISABLE_REQUIRE: Final = "NVIDIA_DISABLE_REQUIRE"
_CUDA_VERSION: Final = "CUDA_VERSION"
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""Texts that Go's `strconv.ParseBool` accepts as true."""

_CONDITION: Final = re.compile(r"(?P<property>[^<>=!]+)(?P<operator>[<>=!]+)(?P<value>[^<>=!]+)")
_VERSION: Final = re.compile(r"\d+(\.\d+)*")
_COMPARISONS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}
_ORDERINGS: Final[Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {
    **_COMPARISONS,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_OLDEST_DRIVERS: Final[Mapping[int, int]] = {11: 450, 12: 525, 13: 580}
"""CUDA's major version to the oldest driver that runs it
(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""
_ANY_MINOR: Final = 999


def find_driver_problem(
    image: str, image_env: Sequence[str], own_env: Mapping[str, str], driver: GpuDriver | None
) -> str | None:
    """Return why NVIDIA's container toolkit would refuse to start the image on this host, and what to do. None: at
    least one brand of the host's GPUs fulfils all requirements, or may, since a requirement that cannot be checked here
    counts as fulfilled. `image_env` are the image's variables (`KEY=value`), `own_env` those of the definition, which
    replace them. `driver` None: not known, so the result is None."""
    requirements = list_requirements(image_env, own_env)
    if driver is None or _is_allowed(requirements, driver):
        return None
    [unfulfilled_requirement, *_] = [each for each in requirements if not _is_allowed([each], driver)] or requirements
    first_alternative = unfulfilled_requirement.split()[0]
    problem = f"image {image} asks for {first_alternative}, and {_describe_driver(driver)}"
    if _is_allowed(requirements, _with_any_minor_version(driver)):
        return (
            f"{problem}: update the driver, or take an image of an earlier CUDA (docs/images.md), or, as the driver's "
            f'CUDA is of the same major version, try {_DISABLE_REQUIRE}: "1" in the definition\'s `env`'
        )
    return (
        f"{problem}: update the driver{_describe_oldest_driver(first_alternative)}, or take an image of an earlier "
        "CUDA (docs/images.md)"
    )


def list_requirements(image_env: Sequence[str], own_env: Mapping[str, str]) -> list[str]:
    """Return the driver requirements of a container with these variables, such as `cuda>=12.4`. All must be fulfilled.
    Empty if it has none, or if `NVIDIA_DISABLE_REQUIRE` turns them off. `image_env` are the image's variables
    (`KEY=value`), `own_env` those of the definition, which replace them."""
    variables = {**dict(each.partition("=")[::2] for each in image_env), **own_env}
    if variables.get(_DISABLE_REQUIRE) in _TRUE:
        return []
    requirements = [
        value
        for name, value in variables.items()
        if name.startswith(_REQUIRE_PREFIX) and not name.startswith(_REQUIRE_JETPACK)
    ]
    # Images from before CUDA 9, and images that set only CUDA_VERSION.
    if not variables.get(_REQUIRE_CUDA) and (version := _parse_version(variables.get(_CUDA_VERSION, ""))) is not None:
        major, minor = (*version, 0, 0)[:2]
        requirements.append(f"cuda>={major}.{minor}")
    return [each for each in requirements if each.strip()]


def is_fulfilled(requirement: str, driver: GpuDriver, brand: str | None) -> bool | None:
    """Return whether a GPU of this brand with this driver fulfils a requirement; None if that is not known. An empty
    requirement is fulfilled. `brand` is the toolkit's name of the brand; None means unknown. The result may also be
    None because of a condition on `arch`, on a property that is unknown here or that the driver does not report, or
    because of a syntax error, none of which raises."""
    alternatives = [[each for each in term.split(",") if each] for term in requirement.split(" ")]
    return _any_of(
        [_all_of([_check_condition(each, driver, brand) for each in factors]) for factors in alternatives if factors]
    )


def _is_allowed(requirements: Sequence[str], driver: GpuDriver) -> bool:
    """Return False only if no brand of the host's GPUs can fulfil all requirements."""
    brands = driver.brands or (None,)
    return any(all(is_fulfilled(each, driver, brand) is not False for each in requirements) for brand in brands)


def _any_of(values: Sequence[bool | None]) -> bool | None:
    if not values or True in values:
        return True
    return None if None in values else False


def _all_of(values: Sequence[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def _check_condition(condition: str, driver: GpuDriver, brand: str | None) -> bool | None:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return None
    name, operator, value = match["property"].lower(), match["operator"], match["value"]
    if name == "brand":
        compare_brands = _COMPARISONS.get(operator)
        return None if brand is None or compare_brands is None else compare_brands(brand.lower(), value.lower())
    known_version = _parse_version({"cuda": driver.cuda_version, "driver": driver.version}.get(name) or "")
    asked_version, compare_versions = _parse_version(value), _ORDERINGS.get(operator)
    if known_version is None or asked_version is None or compare_versions is None:
        return None
    return compare_versions(known_version, asked_version)


def _parse_version(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a version such as `12.8.1`, without zeros at the end; None if it is no version."""
    if not _VERSION.fullmatch(text) or len(text) > 64:
        return None
    numbers = [int(each) for each in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _with_any_minor_version(driver: GpuDriver) -> GpuDriver:
    version = _parse_version(driver.cuda_version or "")
    return replace(driver, cuda_version=f"{version[0]}.{_ANY_MINOR}") if version else driver


def _describe_driver(driver: GpuDriver) -> str:
    words = f"this host's NVIDIA driver is {driver.version or 'of a version that it does not tell'}"
    return words if driver.cuda_version is None else f"{words}, which runs CUDA up to {driver.cuda_version}"


def _describe_oldest_driver(alternative: str) -> str:
    match = re.match(r"cuda>=?(\d+)", alternative, re.IGNORECASE)
    oldest_driver = _OLDEST_DRIVERS.get(int(match[1][:9])) if match else None
    return "" if match is None or oldest_driver is None else f" (CUDA {match[1]} needs {oldest_driver} or later)"


NO_NVIDIA: Final = "this host's Docker has no NVIDIA runtime: install the NVIDIA Container Toolkit"

_NO_GPU_SUPPORT: Final = re.compile(r"could not select device driver|no known GPU vendor found", re.IGNORECASE)

_START: Final[tuple[tuple[str, str, bool], ...]] = (
    (
        r"nvidia-container-cli: device error: (?P<what>[^\s:]+): unknown device|unresolvable CDI devices (?P<cdi>\S+)",
        "this host has no GPU {what}",
        False,
    ),
    (
        r"nvidia-container-cli: initialization error|libnvidia-ml\.so",
        "the NVIDIA driver of this host is not loaded",
        False,
    ),
    (
        r"unsatisfied condition: (?P<what>arch ?[<>=!]+ ?[\d.]+)",
        "this host's GPU is not one that image {image} is made for, which asks for {what}",
        True,
    ),
    (
        # Releases of the toolkit differ in which condition they name. In all of them, the driver is older than the
        # first condition requires.
        r"unsatisfied condition: (?P<what>\w+ ?[<>=!]+ ?[\w.]+)",
        "this host's NVIDIA driver is too old for image {image}, which asks for {what}: update the driver, or take an "
        "image of an earlier CUDA (docs/images.md)",
        True,
    ),
    (r"docker-init.*not found", "this host's Docker lacks its docker-init program", False),
    (
        r"bind source path does not exist: (?P<what>\S+)",
        "the models folder {what} does not exist where the Docker daemon runs",
        False,
    ),
    (r"network (?P<what>\S+) not found|no such network", "Docker network {what} is missing", False),
    (r"port is already allocated|address already in use", "port taken", False),
    (r"no space left on device", "the disk of the Docker daemon is full", False),
    (r"minimum memory limit", "memory_mib is too small for Docker", True),
    (r"cannot allocate memory", "out of memory: the host has none left to start it", False),
    (r"invalid reference format", "image {image} is not a valid image reference", True),
    (r"no such image", "image {image} is missing", False),
)

_PULL: Final[tuple[tuple[str, str], ...]] = (
    (r"invalid reference format", "is not a valid image reference"),
    (r"toomanyrequests|rate limit", "was not pulled: its registry allows no more pulls for now"),
    (r"unauthorized|authentication required|denied", "is not in its registry, or needs a `docker login`"),
    (r"manifest unknown|not found|does not exist|no such image", "is not in its registry"),
    (r"no space left on device", "was not pulled: the disk of the Docker daemon is full"),
    (
        r"no such host|dial tcp|connection refused|i/o timeout|(timeout|deadline) exceeded|network is unreachable",
        "was not pulled: its registry cannot be reached",
    ),
    (r"no matching manifest", "was not pulled: it is not made for this machine's kind of processor"),
)


def no_gpu_support(message: str) -> bool:
    """Return whether the daemon's message about a refusal means that this Docker Engine cannot give GPUs to any
    container."""
    return _NO_GPU_SUPPORT.search(message) is not None


def start_error(message: str, image: str | None) -> StartError:
    """Build (not raise) the error of a refused create or start: plain words first, then the daemon's own message. For a
    message that is not known here, the daemon's alone. The error is permanent if the message says that this image,
    definition or Docker Engine can never work here."""
    if no_gpu_support(message):
        return StartError(f"{NO_NVIDIA} (Docker: {message})", permanent=True, plain=NO_NVIDIA)
    for pattern, template, permanent in _START:
        if match := re.search(pattern, message, re.IGNORECASE):
            groups = match.groupdict()
            subject = groups.get("what") or groups.get("cdi") or ""
            plain_message = template.format(image=image, what=subject.rstrip(",;.:"))
            return StartError(f"{plain_message} (Docker: {message})", permanent=permanent, plain=plain_message)
    return StartError(f"Docker did not start it: {message}", plain="Docker did not start it")


def pull_error(message: str, image: str) -> StartError:
    """Build (not raise) the error of a failed pull: plain words first, then the registry's own message. It is never
    permanent."""
    for pattern, explanation in _PULL:
        if re.search(pattern, message, re.IGNORECASE):
            plain = f"image {image} {explanation}"
            return StartError(f"{plain} ({message})", plain=plain)
    return StartError(f"image {image} was not pulled: {message}", plain=f"image {image} was not pulled")
