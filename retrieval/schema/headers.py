"""Headers between the gateway and retrieval, besides that of their token (`common.internal_tokens`). Neither takes them
from clients."""

from __future__ import annotations

from typing import Final

TENANT_HEADER: Final = "x-roundhouse-tenant"
"""In requests of the gateway to retrieval: the tenant, percent-encoded UTF-8."""
ADMIN_HEADER: Final = "x-roundhouse-admin"
"""In requests of the gateway to retrieval: `1` if the caller may see and delete other tenants."""
BACKGROUND_HEADER: Final = "x-roundhouse-background"
"""In requests of retrieval to the gateway: `1` where every other request goes first, as for the embeddings of documents
that nobody waits for."""
ANSWERED_TENANT_HEADER: Final = "x-tenant-id"
"""In answers to clients: the tenant that the request was resolved to."""
