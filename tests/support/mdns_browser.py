"""A program that browses for `_localllm._tcp` with zeroconf's own browser: `python -m tests.support.mdns_browser`.

It prints a JSON line for each service that it finds, and one with `removed` for each that says goodbye. With `--canary
ADDRESS` it advertises a service `canary` of its own from that address.
"""

from __future__ import annotations

import argparse
import json
import sys

from zeroconf import ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

TYPE = "_localllm._tcp.local."


class _Printer(ServiceListener):
    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        info = zc.get_service_info(type_, name)
        assert info is not None
        texts = {key.decode(): value.decode() if value is not None else None for key, value in info.properties.items()}
        found = {"name": name, "addresses": info.parsed_addresses(), "port": info.port, "txt": texts}
        print(json.dumps(found), flush=True)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        pass

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        print(json.dumps({"removed": name}), flush=True)


def main() -> None:
    """Browse, or advertise the canary, until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--canary", metavar="ADDRESS")
    canary = parser.parse_args().canary
    zeroconf = Zeroconf()
    if canary is not None:
        zeroconf.register_service(
            ServiceInfo(TYPE, f"canary.{TYPE}", port=1, parsed_addresses=[canary], server="canary.local.")
        )
    else:
        ServiceBrowser(zeroconf, TYPE, _Printer())
    sys.stdin.read()
    zeroconf.close()


if __name__ == "__main__":
    main()
