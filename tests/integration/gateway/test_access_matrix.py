"""Every method and path of the gateway, and every spelling of them, with every sort of key: what is let in is what
`tests.support.access_table` says, and nothing else is reached."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from gateway.api import chat, models
from gateway.app import Gateway, create_gateway
from gateway.exchange.services import ApiSpec
from gateway.ingress.route_access import Access, UndeclaredRouteError, require_access
from gateway.routing.live_routes import LiveRoutes
from gateway.settings import GatewaySettings
from tests.support.access_table import MAY_BE_OPEN, list_differences, list_expected


def declarations(gateway: Gateway) -> list[tuple[str, str, Access]]:
    """Of everything that it serves, by the web framework and without it."""
    direct = [
        (method.decode(), path.decode(), opener.args[0].scope)
        for (method, path), opener in gateway.inference._openers.items()
    ]
    return [*gateway.app.access.list_declarations(), *direct]


def test_every_route_demands_what_was_decided() -> None:
    declared = declarations(create_gateway(GatewaySettings(), None))
    assert list_differences(declared) == []
    assert {path for (_, path), access in list_expected().items() if access == "open"} == {"/health", "/metrics"}
    assert [path for _, path, access in declared if access == "open" and not MAY_BE_OPEN.fullmatch(path)] == []


def test_what_engines_serve_is_declared_to_the_framework_too() -> None:
    """It answers other methods of these paths, and describes them."""
    gateway = create_gateway(GatewaySettings(), None)
    framework = {(method, path): access for method, path, access in gateway.app.access.list_declarations()}
    for method, path, access in declarations(gateway):
        assert framework[method, path] == access


def test_a_gateway_with_a_route_that_declares_nothing_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_route(monkeypatch, lambda: None)
    with pytest.raises(UndeclaredRouteError, match=r"no access is declared for POST /models$"):
        create_gateway(GatewaySettings(), None)


def test_a_route_that_nobody_decided_about_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_route(monkeypatch, require_access("any_key")(lambda: None))
    declared = declarations(create_gateway(GatewaySettings(), None))
    assert list_differences(declared) == ["POST /models: declared any_key, decided None"]


def _add_route(monkeypatch: pytest.MonkeyPatch, endpoint: Any) -> None:
    declare = models.declare

    def declare_one_more(app: FastAPI, live: LiveRoutes) -> None:
        declare(app, live)
        app.post("/models")(endpoint)

    monkeypatch.setattr(models, "declare", declare_one_more)


def test_an_inference_route_that_declares_nothing_cannot_be_made() -> None:
    """They are made where their modules are imported: the gateway does not start."""
    with pytest.raises(TypeError, match="scope"):
        ApiSpec("/v1/streams")  # type: ignore[call-arg]


@pytest.mark.parametrize("is_documented", [True, False])
def test_an_inference_route_that_nobody_decided_about_is_found(
    monkeypatch: pytest.MonkeyPatch, is_documented: bool
) -> None:
    """Also one that the framework does not know of."""
    [*known] = chat.APIS
    extra = ApiSpec("/v1/streams", scope="inference")
    monkeypatch.setattr(chat, "APIS", (*known, extra))
    declare = chat.declare

    def declare_one_more(app: FastAPI) -> None:
        declare(app)
        app.post(extra.path)(require_access(extra.scope)(lambda: None))

    if is_documented:
        monkeypatch.setattr(chat, "declare", declare_one_more)
    declared = declarations(create_gateway(GatewaySettings(), None))
    assert list_differences(declared) == ["POST /v1/streams: declared inference, decided None"]


def test_a_route_that_opens_to_another_scope_is_found() -> None:
    declared = [one for one in declarations(create_gateway(GatewaySettings(), None)) if one[1] != "/slots"]
    assert list_differences([*declared, ("GET", "/slots", "inference")]) == [
        "GET /slots: declared inference, decided admin"
    ]
    assert list_differences(declared) == ["GET /slots: declared None, decided admin"]
