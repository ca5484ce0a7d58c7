"""Launches llama.cpp's own server, embedded through xllamacpp: `python -m worker llama_server --
LLAMA-SERVER-FLAGS...`.

Endpoint, probes, metrics and the check of the API key (LLAMA_API_KEY) are llama.cpp's. xllamacpp's `Server()` holds the
GIL while it loads, so that no Python signal handler runs, and says little when it fails. So it runs in a forked child:
the launcher can end it at any moment, survives its crashes, and says in one plain line why it ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.errors import LoadError
from worker.launchers.child_process import Ending, run_launcher, supervise
from worker.launchers.llama_server_flags import (
    DEVICES,
    INSTEAD,
    Adapter,
    Member,
    Setting,
    UsageError,
    Value,
    parse_flags,
    value_of,
)
from worker.preflight import check_gguf, open_listener

_FILES = ("model.path", "mmproj.path", "speculative.draft.mparams.path")
_ERROR_LINE = re.compile(
    r"[\d.]+ E (?P<text>.+)"
    r"|(?P<fatal>.*(GGML_ASSERT|terminate called|std::bad_alloc).*|error while handling argument .+)"
)
_BIND_FAILED = "couldn't bind"
_REFUSAL = 'error while handling argument "--device"'
_GPU_TYPES = ("GGML_BACKEND_DEVICE_TYPE_GPU", "GGML_BACKEND_DEVICE_TYPE_IGPU")


def run(arguments: Sequence[str]) -> int:
    """Host llama.cpp's server with these flags until a signal or its end, and return the worker's exit code: 0 after a
    signal, 2 for wrong flags, 3 for a taken port, else 1. For a code other than 0, the last line on stderr says why.
    Blocks. Call once, in the main thread."""

    def prepare() -> Sequence[Setting]:
        settings = parse_flags(arguments, os.environ)
        check_preflight(settings)
        return settings

    return run_launcher(
        prepare,
        lambda settings: explain_ending(supervise(lambda ready: _host(settings, ready), first_error), settings),
    )


def check_preflight(settings: Sequence[Setting]) -> None:
    """Check model files, package and port before llama.cpp starts; the port is not kept. Raises LoadError or
    PortTakenError."""
    for attribute in _FILES:
        path = value_of(settings, attribute)
        if isinstance(path, Path):
            check_gguf(path)
    adapters = value_of(settings, "lora_adapters")
    for adapter in adapters if isinstance(adapters, list) else ():
        if isinstance(adapter, Adapter):
            check_gguf(Path(adapter.path))
    if importlib.util.find_spec("xllamacpp") is None:
        raise LoadError("No module named 'xllamacpp': install the extra `embedded`, or name a llama-server program")
    port = value_of(settings, "port")
    hosts = value_of(settings, "hostnames") or ["127.0.0.1"]
    assert isinstance(port, int)
    assert isinstance(hosts, list)
    for host in hosts:
        open_listener(str(host), port).close()


def first_error(line: str) -> str | None:
    """Return the error that a line of llama.cpp's log reports, on one line; None if it reports none. Of a whole log,
    the first error is the cause of the others."""
    match = _ERROR_LINE.match(line)
    if match is None:
        return None
    return " ".join((match["text"] or match["fatal"]).split())


def explain_ending(ending: Ending, settings: Sequence[Setting]) -> tuple[int, str | None]:
    """Return the worker's exit code, and one plain line that says why the server ended. If a signal to the worker asked
    for the end, they are 0 and None."""
    if ending.asked_for:
        return 0, None
    cause = f": {ending.first_error}" if ending.first_error and not ending.was_ready else ""
    if _BIND_FAILED in cause:
        return 3, f"port {value_of(settings, 'port')} is taken{cause}"
    doing = "serving" if ending.was_ready else f"loading {value_of(settings, 'model.path')}"
    return 1, ending.explain("llama-server", doing, cause)


def check_devices(named_devices: Sequence[str], devices: Iterable[Mapping[str, Any]]) -> None:
    """Check that the named devices are exactly the GPUs that llama.cpp sees; `["none"]`: that it sees none. `devices`
    come from `xllamacpp.get_device_info`; those that are no GPUs are ignored.

    Raises:
        UsageError: a named device is missing, in llama-server's own words; or llama.cpp sees a GPU that is not named.
    """
    seen_gpus = [each["name"] for each in devices if each["type"].name in _GPU_TYPES]
    wanted_gpus = [] if named_devices == ["none"] else named_devices
    if missing_gpu := next((name for name in wanted_gpus if name not in seen_gpus), None):
        raise UsageError(f"{_REFUSAL}: invalid device: {missing_gpu}")
    if other_gpus := [name for name in seen_gpus if name not in wanted_gpus]:
        others = ", ".join(other_gpus)
        raise UsageError(
            f"{_REFUSAL}: the embedded llama-server uses each GPU that it sees, so {others} too: {INSTEAD}"
        )


def apply_settings(settings: Iterable[Setting], params: Any, xllamacpp: Any) -> None:
    """Set the settings, in order, on `params`, an xllamacpp `CommonParams`; except the devices, for which it has no
    field. Raises AttributeError if this version of xllamacpp lacks one."""
    for setting in settings:
        if setting.attribute == DEVICES:
            continue
        *owners, name = setting.attribute.split(".")
        owner = params
        for part in owners:
            owner = getattr(owner, part)
        setattr(owner, name, _native(setting.value, xllamacpp))


def _native(value: Value | Adapter, xllamacpp: Any) -> Any:
    if isinstance(value, Member):
        return getattr(getattr(xllamacpp, value.enum), value.name)
    if isinstance(value, Adapter):
        return xllamacpp.CommonAdapterLoraInfo(value.path, value.scale)
    if isinstance(value, list):
        return [_native(item, xllamacpp) for item in value]
    return str(value) if isinstance(value, Path) else value


def _host(settings: Sequence[Setting], ready: int) -> None:
    xllamacpp = importlib.import_module("xllamacpp")
    named_devices = value_of(settings, DEVICES)
    if isinstance(named_devices, list):
        # Only in the child, because CUDA does not survive a fork.
        try:
            check_devices([str(name) for name in named_devices], xllamacpp.get_device_info())
        except UsageError as error:
            sys.stderr.write(f"{error}\n")
            return
    params = xllamacpp.CommonParams()
    apply_settings(settings, params, xllamacpp)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:  # llama.cpp's log says why
        _flush_log(xllamacpp)
        return
    os.write(ready, b"\n")
    while server:
        signal.pause()


def _flush_log(xllamacpp: Any) -> None:
    # llama.cpp logs in a thread of its own, where the reason may still be queued. llama-server's main() ends with this
    # call, which xllamacpp does not wrap; a build without these symbols may lose the last lines.
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    with contextlib.suppress(AttributeError):
        log = library["_Z15common_log_mainv"]  # common_log_main()
        flush = library["_Z16common_log_flushP10common_log"]  # common_log_flush(common_log *)
        log.restype = ctypes.c_void_p
        flush.argtypes = [ctypes.c_void_p]
        flush(log())
