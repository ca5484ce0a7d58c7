"""What CUDA's driver sees, without anything but Python and libcuda.so.1; also run in containers, as a text.

`python cuda_devices.py` prints one JSON object: `error`, or `devices`, the uuids in CUDA's order.
`python cuda_devices.py --hold UUID --mib N` (or `--leave N`) takes plain memory of one GPU, prints `{"held": bytes}`,
and holds it until its input ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from typing import Any

MIB = 2**20


class CudaError(Exception):
    """A call of CUDA's driver that failed, or a library that does not load."""


class Uuid(ctypes.Structure):
    """CUuuid."""

    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


def load_library() -> Any:
    """libcuda.so.1, initialised. Raises CudaError."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(str(error)) from error
    call(library, "cuInit", 0)
    return library


def call(library: Any, name: str, *arguments: Any) -> None:
    """One call. Raises CudaError, with CUDA's own name of the error where it has one."""
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(f"{name}: {code} {(text.value or b'').decode()}".strip())


def list_devices(library: Any) -> list[str]:
    """The uuids of the devices, as `nvidia-smi -L` writes them; of a MIG instance `MIG-...`."""
    count = ctypes.c_int()
    call(library, "cuDeviceGetCount", ctypes.byref(count))
    return [read_uuid(library, number) for number in range(count.value)]


def read_uuid(library: Any, number: int) -> str:
    """The uuid of one device."""
    device, uuid, name = ctypes.c_int(), Uuid(), ctypes.create_string_buffer(256)
    call(library, "cuDeviceGet", ctypes.byref(device), number)
    call(library, "cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
    call(library, "cuDeviceGetName", name, 256, device)
    kind = "MIG" if b" MIG " in name.value else "GPU"
    digits = bytes(uuid.bytes).hex()
    return f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def hold_memory(library: Any, uuid: str, mib: int | None, leave_mib: int) -> int:
    """Take memory of a device, and keep it while this process lives. `mib` None: all but `leave_mib`. Gives bytes."""
    device, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    call(library, "cuDeviceGet", ctypes.byref(device), list_devices(library).index(uuid))
    call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(library, "cuCtxSetCurrent", context)
    call(library, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    wanted = free.value - leave_mib * MIB if mib is None else mib * MIB
    held, piece = 0, 256 * MIB
    # In pieces: the last megabytes are not in one.
    while held < wanted and piece >= MIB:
        pointer = ctypes.c_uint64()
        size = min(piece, wanted - held)
        if library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            piece //= 2
        else:
            held += size
    return held


def main() -> int:
    """Print the devices, or hold memory. 1: CUDA does not work here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hold", metavar="UUID")
    parser.add_argument("--mib", type=int)
    parser.add_argument("--leave", type=int, default=0)
    given = parser.parse_args()
    try:
        library = load_library()
        if given.hold:
            answer: dict[str, Any] = {"held": hold_memory(library, given.hold, given.mib, given.leave)}
        else:
            answer = {"devices": list_devices(library)}
    except (CudaError, ValueError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps(answer), flush=True)
    if given.hold:
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
