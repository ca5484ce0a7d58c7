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
    """The handlers of one service."""

    def __init__(self, service: DocumentService) -> None:
        self._service = service

    def handlers(self) -> Handlers:
        """Return the handlers of this group."""
        return {
            ("GET", "/v1/tenants"): self.list_tenants,
            ("DELETE", "/v1/tenants/{tenant_id:path}"): self.delete_tenant,
        }

    async def list_tenants(self, request: Request) -> Response:
        """Answer the tenants that the caller may see."""
        caller = read_caller(request)
        tenants = await self._service.list_tenants(None if caller.is_admin else caller.tenant)
        return answer_model(TenantList(data=[build_tenant(each) for each in tenants]), caller)

    async def delete_tenant(self, request: Request) -> Response:
        """Delete a tenant; another one than the caller's is unknown without the right to see it."""
        caller, tenant = read_caller(request), request.path_params["tenant_id"]
        if not caller.is_admin and tenant != caller.tenant:
            raise RoundhouseError("tenant_not_found", f"The tenant {tenant!r:.100} has stored nothing.")
        count = await self._service.delete_tenant(tenant)
        return answer_model(DeletedTenant(id=tenant, deleted=True, documents=count), caller)
