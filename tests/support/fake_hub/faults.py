"""What goes wrong, and at which request."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

Site = Literal["api", "resolve", "storage"]
"""What a request is for: the hub's lists, a file at the hub (which redirects), or a file in the storage behind it."""
FaultKind = Literal[
    "status",
    "drop",
    "short_length",
    "long_length",
    "other_total",
    "huge",
    "other_range",
    "ignored_range",
    "slow",
    "stall",
    "wrong_bytes",
    "other_etag",
    "other_commit",
    "redirect",
    "no_length",
    "encoded",
    "no_head",
    "more_bytes",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with one answer."""

    kind: FaultKind
    site: Site = "storage"
    status: int = 503
    """Of `status`."""
    retry_after: str | None = None
    """Header `Retry-After` of `status`; None: it is left out."""
    error_code: str | None = None
    """Header `X-Error-Code` of `status`; None: it is left out."""
    after_bytes: int = 0
    """Of `drop` and `stall`: bytes of the body that come before; of `wrong_bytes`: position of the byte."""
    resets: bool = False
    """Of `drop`: whether the connection is reset, and not closed."""
    bytes_per_s: float = 100_000
    """Of `slow`."""
    location: str = ""
    """Of `redirect`; empty: the address that was asked for, which never ends."""
    path: str | None = None
    """End of the path in the repository; None: any."""
    skip: int = 0
    """Requests for which it waits first."""
    times: int = 1
    """Requests that it hits; 0: all."""


@dataclass(slots=True)
class _Pending:
    fault: Fault
    skip: int
    left: int


class FaultPlan:
    """The faults to come, each for the next request that it is for. Safe for threads."""

    def __init__(self, *faults: Fault) -> None:
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self.hit: list[Fault] = []
        """The faults that happened, in order."""
        self._hit = threading.Condition(self._lock)
        self.add(*faults)

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._pending.extend(_Pending(fault, fault.skip, fault.times) for fault in faults)

    def clear(self) -> None:
        """Let nothing more go wrong."""
        with self._lock:
            self._pending.clear()

    def take(self, site: Site, path: str) -> Fault | None:
        """The fault of a request; None: it is answered well."""
        with self._lock:
            for pending in self._pending:
                fault = pending.fault
                if fault.site != site or (fault.path is not None and not path.endswith(fault.path)):
                    continue
                if pending.skip:
                    pending.skip -= 1
                    continue
                if pending.left == 1:
                    self._pending.remove(pending)
                elif pending.left:
                    pending.left -= 1
                self.hit.append(fault)
                self._hit.notify_all()
                return fault
            return None

    def wait_hit(self) -> None:
        """Block until a fault has happened. Fails when none does in time."""
        with self._hit:
            assert self._hit.wait_for(lambda: self.hit, 30), "no fault happened"
