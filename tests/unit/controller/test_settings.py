"""The controller's settings, and how a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.settings import ControllerSettings, SettingsError, load_settings
from gateway.settings import GatewaySettings
from retrieval.settings import RetrievalSettings
from tests.support.doc_tables import SETTINGS, rows_of, setting_rows, shared_setting_rows


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*ControllerSettings.model_fields, *GatewaySettings.model_fields, *RetrievalSettings.model_fields]:
        monkeypatch.delenv(f"ROUNDHOUSE_{name.upper()}", raising=False)


def test_every_setting_is_documented_and_described() -> None:
    assert rows_of("settings.md", "Several programs") == shared_setting_rows()
    for program, settings in SETTINGS.items():
        assert rows_of("settings.md", program.capitalize()) == setting_rows(settings)
        assert all(field.description for field in settings.model_fields.values())


def test_what_is_given_goes_before_the_environment_and_that_before_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_PORT", "9000")
    monkeypatch.setenv("ROUNDHOUSE_RUNTIME", "docker")
    settings = load_settings(port=9001, desired=None, runtime=None)
    assert (settings.port, settings.runtime, settings.desired) == (9001, "docker", Path("desired-state"))


def test_models_may_lie_in_several_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(load_settings().models) == "models"
    assert str(load_settings(models=Path("/srv/m")).models) == "/srv/m"
    monkeypatch.setenv("ROUNDHOUSE_MODELS", "/srv/models,~/.cache/huggingface/hub")
    roots = load_settings().models.absolute()
    assert roots.folders == (Path("/srv/models"), Path("/home/ann/.cache/huggingface/hub"))
    assert roots.home == Path("/home/ann")


def test_trusted_declarations_are_names_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().trusted_declarations == frozenset()
    monkeypatch.setenv("ROUNDHOUSE_TRUSTED_DECLARATIONS", " env, api_key_file,,")
    assert load_settings().trusted_declarations == {"env", "api_key_file"}


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_INSTANCE", "")
    monkeypatch.setenv("ROUNDHOUSE_PORT", "")
    assert (load_settings().instance, load_settings().port) == (None, 8080)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("PORT", "http", "ROUNDHOUSE_PORT: must be a whole number, is `http`"),
        ("PORT", "70000", "ROUNDHOUSE_PORT: must be at most 65535, is `70000`"),
        (
            "RUNTIME",
            "dokcer",
            "ROUNDHOUSE_RUNTIME: must be `process`, `docker` or `auto`, is `dokcer`; did you mean `docker`?",
        ),
        ("INSTANCE", "My House", "ROUNDHOUSE_INSTANCE: must have the form ^[a-z0-9]{1,16}$, is `My House`"),
        ("STOP_TIMEOUT_S", "-1", "ROUNDHOUSE_STOP_TIMEOUT_S: must be at least 0, is `-1`"),
        ("RESYNC_S", "soon", "ROUNDHOUSE_RESYNC_S: must be a number, is `soon`"),
        ("CONTROLLER_LISTEN", "8090", "ROUNDHOUSE_CONTROLLER_LISTEN: must be `unix:<path>` or `host:port`, is `8090`"),
        ("CONTROLLER_LISTEN", "h:0", "ROUNDHOUSE_CONTROLLER_LISTEN: must be `unix:<path>` or `host:port`, is `h:0`"),
        ("HOST", " , ", "ROUNDHOUSE_HOST: names no address"),
        ("MODELS", " , ", "ROUNDHOUSE_MODELS: names no folder"),
        ("CONTROLLER_LISTEN", "unix:", "ROUNDHOUSE_CONTROLLER_LISTEN: names no path after `unix:`"),
        (
            "TRUSTED_DECLARATIONS",
            "env,imgae",
            "ROUNDHOUSE_TRUSTED_DECLARATIONS: there is no field `imgae`; did you mean `image`?",
        ),
        ("HOSTS", "local:a,local:a", "ROUNDHOUSE_HOSTS: names a host twice"),
        (
            "HOSTS",
            "local:a,b",
            "ROUNDHOUSE_HOSTS: `b` is no `local:NAME`, with a name of lower case letters, digits, dots and dashes",
        ),
        ("HOSTS", "ray:10.0.0.1", "ROUNDHOUSE_HOSTS: `ray:10.0.0.1` is no `ray:ADDRESS:PORT`, which stands alone"),
        (
            "HOSTS",
            "ray:a:1,local:b",
            "ROUNDHOUSE_HOSTS: `ray:a:1,local:b` is no `ray:ADDRESS:PORT`, which stands alone",
        ),
        ("TRUSTED_DECLARATIONS", "mcp_command", "ROUNDHOUSE_TRUSTED_DECLARATIONS: there is no field `mcp_command`"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str
) -> None:
    monkeypatch.setenv(f"ROUNDHOUSE_{variable}", value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert str(raised.value) == line


def test_of_several_hosts_the_gateway_is_asked_at_one_that_this_machine_reaches() -> None:
    settings = load_settings(host="gateway.egress, 127.0.0.1", port=81)
    assert settings.gateway_hosts == ("gateway.egress", "127.0.0.1")
    assert settings.gateway_url(is_tls=False) == "http://127.0.0.1:81"
    assert load_settings(host="0.0.0.0").gateway_url(is_tls=False) == "http://127.0.0.1:8080"
    assert load_settings(host="::").gateway_url(is_tls=True) == "https://[::1]:8080"


def test_hosts_are_named_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().hosts == ()
    monkeypatch.setenv("ROUNDHOUSE_HOSTS", "local:a, local:b.c-1")
    assert load_settings().hosts == ("a", "b.c-1")


def test_hosts_over_ray_are_named_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("ray:10.0.0.1:8093", "ray:[fd00::1]:8093"):
        monkeypatch.setenv("ROUNDHOUSE_HOSTS", value)
        settings = load_settings()
        assert settings.hosts == (value,)
        assert settings.model_dump(include={"hosts"}) == {"hosts": value}


def test_every_wrong_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_PORT", "x")
    monkeypatch.setenv("ROUNDHOUSE_RESYNC_S", "0")
    words = "ROUNDHOUSE_PORT: must be a whole number, is `x`; ROUNDHOUSE_RESYNC_S: must be more than 0, is `0`"
    with pytest.raises(SettingsError, match=f"^{words}$"):
        load_settings()


def test_a_socket_path_that_no_socket_can_have_is_told_before_anything_listens() -> None:
    with pytest.raises(SettingsError, match=r"ROUNDHOUSE_CONTROLLER_LISTEN.*107 bytes"):
        load_settings(state=Path("/" + "s" * 100))


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        (None, "unix:state/controller.sock"),
        ("unix:/run/rh.sock", "unix:/run/rh.sock"),
        ("127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("0.0.0.0:8090", "http://127.0.0.1:8090"),
        ("[::]:8090", "http://[::1]:8090"),
        ("controller.control:8090", "http://controller.control:8090"),
    ],
)
def test_where_the_controller_is_reached(listen: str | None, url: str) -> None:
    assert load_settings(controller_listen=listen, gateway_token_file=Path("token")).controller_url == url


def test_who_listens_on_a_port_has_a_token_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_CONTROLLER_LISTEN", "127.0.0.1:8090")
    with pytest.raises(SettingsError, match="ROUNDHOUSE_GATEWAY_TOKEN_FILE: must be set where"):
        load_settings()
    monkeypatch.setenv("ROUNDHOUSE_GATEWAY_TOKEN_FILE", "/run/token")
    assert load_settings().gateway_token_file == Path("/run/token")
