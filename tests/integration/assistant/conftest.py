"""What tests of the gateway have, those of the assistant have, too."""

from tests.integration.gateway.conftest import engine, gateway, kind, rest, site

__all__ = ["engine", "gateway", "kind", "rest", "site"]
