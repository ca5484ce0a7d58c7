"""Builds the gateway's page in a checkout, in the background, once the first model is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from controller.cli.up.announce import Announcer

BUILD_SCRIPT: Final = Path(__file__).resolve().parents[3] / "web" / "build"
"""What builds the page in a checkout. An installed wheel has no such file, and holds the built page."""
OFF_WORDS: Final = frozenset({"0", "f", "false", "n", "no", "off"})
"""Values of `ROUNDHOUSE_PAGE`, in lower case, by which the gateway serves no page."""
_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"}
)
_PREFIXES: Final = ("PIP_", "npm_config_", "NPM_CONFIG_", "XDG_")
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "no_proxy", "all_proxy"})
_ENDS_WITHIN_S: Final = 3.0
_PAUSE_S: Final = 0.05


def is_wanted(environ: Mapping[str, str], script: Path = BUILD_SCRIPT) -> bool:
    """Return whether `up` builds the page: it runs from a checkout, and neither is the page off nor does a setting name
    a folder that somebody else builds."""
    is_off = environ.get("ROUNDHOUSE_PAGE", "").strip().lower() in OFF_WORDS
    return not is_off and not environ.get("ROUNDHOUSE_PAGE_FOLDER") and os.access(script, os.X_OK)


def build_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that the build gets: what pip and npm need to reach a registry, and none that
    holds a secret of Roundhouse's, because the build runs packages that others wrote."""
    return {
        name: value
        for name, value in environ.items()
        if name in _VARIABLES or name.lower() in _PROXIES or name.startswith(_PREFIXES)
    }


class PageBuild:
    """Builds the page by the script `web/build` while Roundhouse runs, at the lowest priority of processor and disk.
    Prints a line for the operator when the build begins, and one when the page is served or why it is not."""

    def __init__(
        self, gateway_url: str, announcer: Announcer, environ: Mapping[str, str], script: Path = BUILD_SCRIPT
    ) -> None:
        """`gateway_url`: where the page is served, without a path. `environ`: of `up`."""
        self._gateway_url = gateway_url
        self._announcer = announcer
        self._environ = build_variables(environ)
        self._script = script

    async def run(self) -> None:
        """Build the page if it is not built from the present sources. Cancelling it ends the build and what the build
        started. Raises nothing for a build that fails."""
        try:
            if await self._run_script("--is-current") != "":
                self._announcer.print_note("the page is built in the background, at low priority; models are served")
                if (reason := await self._run_script("--background")) != "":
                    self._announcer.print_note(reason.removeprefix("roundhouse: "))
                    return
        except OSError as error:
            self._announcer.print_note(f"the page was not built: {error}")
            return
        self._announcer.print_result("page", f"The page is at {self._gateway_url}/", url=f"{self._gateway_url}/")

    async def _run_script(self, option: str) -> str:
        """Return the last line of what it said against a success; empty: it succeeded."""
        process = await self._start(option)
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            await _end_group(process)
            raise
        if process.returncode == 0:
            return ""
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the page was not built: {self._script} ended with status {process.returncode}"

    async def _start(self, option: str) -> Process:
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *(self._script, "--python", sys.executable, option),
                env=self._environ,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=PIPE,
                start_new_session=True,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # asyncio itself would kill the script alone, and leave what the script has started by now.
            with suppress(OSError):
                await _end_group(await starting)
            raise


async def _end_group(process: Process) -> None:
    """End the process and its process group, and wait for their end, or for a few seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _send_group(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDS_WITHIN_S):
                # Only the leader is a child, whose end an event tells of.
                await process.wait()
                while _send_group(process.pid, 0):  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE_S)
                return


def _send_group(group: int, number: int) -> bool:
    """Send the signal to the group, and return whether the group had a process; signal 0 only asks."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
