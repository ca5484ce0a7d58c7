"""Whether the gateway's address can be had: found out before anything is started."""

from __future__ import annotations

import os
import socket

from controller.cli.exit_codes import CommandError, ExitCode


def check_port_free(host: str, port: int) -> int:
    """The port, or a free one for 0, after binding it for a moment. Raises CommandError with one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the gateway does: connections of an earlier run that are still closing do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            # Two sockets that reuse an address may both be bound to it; only one may listen.
            probe.listen(1)
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise CommandError(
            f"cannot listen on {host}: {error.strerror}; --host names the address", ExitCode.USAGE
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        message = f"cannot listen on {host}:{port}: {reason}; choose another with --host or --port"
        raise CommandError(message, ExitCode.ADDRESS_TAKEN) from None
