"""The list of variables says what the programs read."""

from __future__ import annotations

from common.settings import (
    CONTROLLER_VARIABLES,
    GATEWAY_VARIABLES,
    OTHER_VARIABLES,
    PREFIX,
    RETRIEVAL_VARIABLES,
    TRANSFERS_VARIABLES,
)
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings
from retrieval.settings import RetrievalSettings
from transfers.settings import TransfersSettings


def test_it_lists_the_settings_of_the_programs() -> None:
    for settings, listed in (
        (ControllerSettings, CONTROLLER_VARIABLES),
        (GatewaySettings, GATEWAY_VARIABLES),
        (RetrievalSettings, RETRIEVAL_VARIABLES),
        (TransfersSettings, TRANSFERS_VARIABLES),
    ):
        assert {f"{PREFIX}{name.upper()}" for name in settings.model_fields} == listed, settings


def test_no_variable_is_listed_twice() -> None:
    assert not OTHER_VARIABLES & (CONTROLLER_VARIABLES | GATEWAY_VARIABLES | RETRIEVAL_VARIABLES | TRANSFERS_VARIABLES)
