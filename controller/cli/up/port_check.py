"""Checks before anything is started that the gateway's addresses are free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from common.listening import ListenError, bind_listeners
from controller.cli.exit_codes import CommandError, ExitCode


def check_port_free(hosts: Sequence[str], port: int) -> int:
    """Bind and listen for a moment at every host, and return the port; where `port` is 0, one that was free at every
    host.

    Afterwards nothing is bound, so another program may take the port. Raises CommandError with ExitCode.ADDRESS_TAKEN
    where an address cannot be listened on, with ExitCode.USAGE where a host name has no address.
    """
    with ExitStack() as stack:
        try:
            # Bind as the gateway does, so that closing connections of an earlier run do not count.
            listeners = [stack.enter_context(listener) for listener in bind_listeners(hosts, port)]
        except ListenError as error:
            if error.is_unresolved:
                message, code = f"cannot listen on {error.host}: {error}; --host names the address", ExitCode.USAGE
            else:
                message, code = _describe_taken(f"{error.host}:{port}", str(error)), ExitCode.ADDRESS_TAKEN
            raise CommandError(message, code) from None
        for listener in listeners:
            try:
                # With address reuse, two sockets may be bound to one address, but only one may listen.
                listener.listen(1)
            except OSError as error:
                ip, bound_port = listener.getsockname()[:2]
                message = _describe_taken(f"{ip}:{bound_port}", os.strerror(error.errno or 0))
                raise CommandError(message, ExitCode.ADDRESS_TAKEN) from None
        return int(listeners[0].getsockname()[1])


def _describe_taken(address: str, reason: str) -> str:
    return f"cannot listen on {address}: {reason}; choose another with --host or --port"
