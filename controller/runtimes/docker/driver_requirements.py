"""Checks whether the host's NVIDIA driver fulfils the requirements of an image. Pure.

CUDA images have a requirement in `NVIDIA_REQUIRE_CUDA`: alternatives separated by spaces, of which one must be
fulfilled, each of conditions such as `driver>=535` joined by commas, which must all hold. NVIDIA's container toolkit
refuses the start if no alternative is fulfilled: libnvidia-container `src/cli/dsl.c` and `configure.c`, and in
nvidia-container-toolkit `internal/config/image/cuda_image.go` and `internal/requirements/`. The toolkit takes a
condition literally, although CUDA could run an application of the same major version on an older driver (minor version
compatibility). Since Docker 29 (moby/moby#50228) this check is skipped if the host has CDI devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from controller.gpus import GpuDriver

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
    """Return why NVIDIA's container toolkit would refuse to start the image on this host, and what to do.

    None: at least one brand of the host's GPUs fulfils all requirements, or may, since a requirement that cannot be
    checked here counts as fulfilled. `image_env` are the image's variables (`KEY=value`), `own_env` those of the
    definition, which replace them. `driver` None: not known, so the result is None.
    """
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
    (`KEY=value`), `own_env` those of the definition, which replace them.
    """
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
    requirement is fulfilled.

    `brand` is the toolkit's name of the brand; None means unknown. The result may also be None because of a condition
    on `arch`, on a property that is unknown here or that the driver does not report, or because of a syntax error, none
    of which raises.
    """
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
