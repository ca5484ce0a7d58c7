"""/v1/tenants: what tenants have stored. Without the scope `admin`, a caller sees and deletes its own tenant alone."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from controller.schema.errors import RoundhouseError
from retrieval.api.requests import Handlers, answer_model, read_caller
from retrieval.documents.service import DocumentService
from retrieval.documents.views import build_tenant
from retrieval.schema.documents import DeletedTenant, TenantList


class TenantRoutes:
    """The handlers of `/v1/tenants`, over one DocumentService. They check the scope `admin` themselves, by the header
    of the gateway: without it, a caller has its own tenant alone. Every handler raises RoundhouseError
    `invalid_request` for a request that names no tenant."""

    def __init__(self, service: DocumentService) -> None:
        self._service = service

    def handlers(self) -> Handlers:
        """Return the handlers of this group by (method, path), for `create_app`."""
        return {
            ("GET", "/v1/tenants"): self.list_tenants,
            ("DELETE", "/v1/tenants/{tenant_id:path}"): self.delete_tenant,
        }

    async def list_tenants(self, request: Request) -> Response:
        """Answer the tenants that have documents, by name: all for a caller with the scope `admin`, else the caller's
        own alone. The list may be empty. Raises sqlite3.Error if the catalog fails."""
        caller = read_caller(request)
        tenants = await self._service.list_tenants(None if caller.is_admin else caller.tenant)
        return answer_model(TenantList(data=[build_tenant(each) for each in tenants]), caller)

    async def delete_tenant(self, request: Request) -> Response:
        """Delete all documents, files and vector stores of a tenant, and answer how many documents there were.

        Raises RoundhouseError `tenant_not_found` where the tenant has neither documents nor files, and, without the
        scope `admin`, for every tenant but the caller's own; `storage_full` or `storage_failed`.
        """
        caller, tenant = read_caller(request), request.path_params["tenant_id"]
        if not caller.is_admin and tenant != caller.tenant:
            raise RoundhouseError("tenant_not_found", f"The tenant {tenant!r:.100} has stored nothing.")
        count = await self._service.delete_tenant(tenant)
        return answer_model(DeletedTenant(id=tenant, deleted=True, documents=count), caller)
