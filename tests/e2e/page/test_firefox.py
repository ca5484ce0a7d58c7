"""One walk by Debian's Firefox: a conversation, by the keyboard."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.support.firefox import open_firefox, require_firefox
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]
ENTER = "\ue007"
"""Of WebDriver."""


async def test_firefox_shows_an_answer_and_complains_of_nothing(page_stack: RoundhouseStack) -> None:
    require_firefox()
    async with open_firefox() as tab:
        await tab.open(page_stack.url + "/")
        await tab.wait_for(
            "document.querySelector('textarea') !== null && !document.querySelector('textarea').disabled"
        )
        await tab.type_into("textbox", "Message", f"Hello from Firefox{ENTER}")
        await tab.wait_for(f"document.body.innerText.includes({SENTENCE!r})")
        told = [each["params"] for each in tab.events if each["method"] == "log.entryAdded"]
        assert [each["text"] for each in told if each["level"] == "error"] == []
        asked = [each["params"]["request"] for each in tab.events if each["method"] == "network.beforeRequestSent"]
        assert {urlsplit(each["url"]).netloc for each in asked} == {urlsplit(page_stack.url).netloc}
