"""Clients operate a real Roundhouse by MCP and have it run tools, by two keys: the campaign `mcp` with small counts and
without Claude Code."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.campaign import campaign_seed
from tests.support.mcp_operators import OperatedSite

pytestmark = [pytest.mark.engines, pytest.mark.slow]


async def test_what_clients_do_and_see(folder: Path) -> None:
    site, chance = OperatedSite(folder / "site"), random.Random(campaign_seed())
    async with site.started():
        await site.check_scopes()
        assert sum((await site.walk(chance, 12)).values()) >= 12
        for _ in range(6):
            await site.respond(chance)
        for _ in range(2):
            await site.approve(chance)
