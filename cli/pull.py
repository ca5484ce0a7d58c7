"""`roundhouse pull`: download a model."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ControllerUrl, Json, State, controller_url
from cli.output import CommandError, ExitCode, count_words, print_error, print_json, print_line, size_words

if TYPE_CHECKING:
    from cli.admin_client import AdminClient
    from contract.downloads import Download
    from contract.model_files import InspectedModel, MemoryForecast, ModelDownloadOrder


def pull(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="What to download: USER/REPO:QUANT, hf:USER/REPO/FILE, ollama:NAME:TAG, https://...#sha256=HEX, "
            "file:/PATH.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the model, for --declare; default: from REF.")
    ] = None,
    is_declared: Annotated[
        bool, typer.Option("--declare", help="Declare the model at run time once it is here, so that it is served.")
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="BACKEND", help="Backend that serves it; default: from the file."),
    ] = None,
    pickle: Annotated[
        bool, typer.Option("--pickle", help="Also take files that run code when they are loaded (pickle).")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the download of REF that is under way.")] = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Download a model into the models folder.

    Says before it starts what the model is, what memory it takes, and where it fits. Ctrl-C ends the watching, not the
    download. A download that was broken off goes on. Exit code 0: it is here, and with --declare declared. 1: it
    failed. 3: no controller answers.
    """
    from contract.model_files import ModelDownloadOrder  # pydantic takes 100 ms

    if name is not None and not is_declared:
        raise CommandError("--as names the model of --declare: add that", ExitCode.USAGE)
    try:
        order = ModelDownloadOrder(reference=reference, include_pickle=pickle, backend=backend)
    except ValueError:
        raise CommandError("REF is empty, or too long", ExitCode.USAGE) from None
    url = controller_url(controller, state)
    if cancel:
        return asyncio.run(_cancel(url, order))
    request = _Pull(order, name, is_declared, as_json)
    try:
        return asyncio.run(request.run(url))
    except KeyboardInterrupt:
        if request.is_ordered:
            print_error(f"the download goes on; `roundhouse pull {shlex.quote(reference)} --cancel` ends it")
        return ExitCode.INTERRUPTED


@dataclass
class _Pull:
    """One `pull`: look, order, watch, declare."""

    order: ModelDownloadOrder
    name: str | None
    is_declared: bool
    as_json: bool
    is_ordered: bool = False

    async def run(self, url: str) -> ExitCode:
        from cli.admin_client import AdminClient  # aiohttp takes 150 ms
        from cli.following import DownloadFollower, open_view

        async with AdminClient(url) as client:
            found = await client.inspect_download(self.order)
            name = self.name or found.name
            _print_inspection(found)
            if self.is_declared:
                await self._check_declaration(client, name, found)
            ordered = await client.order_download(self.order)
            self.is_ordered = True
            with open_view() as view:
                ended = await DownloadFollower(client, ordered, view.show_download).wait_for_end()
            _check_end(ended)
            if self.is_declared:
                await client.put_declaration("models", name, found.fields)
        self._print_result(ended, found, name)
        return ExitCode.DONE

    async def _check_declaration(self, client: AdminClient, name: str, found: InspectedModel) -> None:
        """Raise CommandError where the declaration cannot succeed, before gigabytes are fetched for it."""
        from cli.admin_client import RequestRefusedError  # aiohttp

        if found.forecast.backend is None:
            raise CommandError(f"it cannot be declared: {found.forecast.reason}", ExitCode.USAGE)
        earlier = (await client.list_declarations()).models.get(name)
        if earlier is not None and earlier.fields.get("source") == found.inspection.pinned:
            return
        try:
            await client.get_model(name)
        except RequestRefusedError as error:
            if error.error_code != "unknown_model":
                raise
        else:
            raise CommandError(f"a model {name} is declared already: choose another name with --as")
        problems = (await client.run_dry_run({}, {name: found.fields})).problems
        if problems:
            raise CommandError(f"it cannot be declared: {problems[0].field}: {problems[0].message}")

    def _print_result(self, ended: Download, found: InspectedModel, name: str) -> None:
        if self.as_json:
            print_json(
                {
                    "download": ended.model_dump(mode="json"),
                    "inspection": found.inspection.model_dump(mode="json"),
                    "forecast": found.forecast.model_dump(mode="json"),
                    "name": name,
                    "fields": found.fields,
                    "declared": self.is_declared,
                }
            )
            return
        print_line(f"model_path: {ended.main}")
        if ended.projector is not None:
            print_line(f"projector: {ended.projector}")
        print_line(f"source: {ended.pinned}")
        if self.is_declared:
            print_line(f"{name}: declared; `roundhouse status --wait` waits until it serves")
        else:
            print_error("to serve it, name it in a desired-state file, or ask again with --declare")


def _print_inspection(found: InspectedModel) -> None:
    inspection = found.inspection
    here = inspection.total_bytes - inspection.missing_bytes
    here_words = f", {size_words(here)} of it here already" if here else ""
    words = f"{count_words(len(inspection.files), 'file')}, {size_words(inspection.total_bytes)}{here_words}"
    print_error(f"{inspection.reference}: {words}; {size_words(inspection.free_bytes)} are free for downloads")
    print_error(f"memory: {_memory_words(found.forecast)}")


def _memory_words(forecast: MemoryForecast) -> str:
    """Return what the model takes, and where it fits. The MiB are those of the device that the summary names first."""
    devices = sorted(
        forecast.devices,
        key=lambda fit: (not (fit.gpus and fit.fits), not (fit.gpus and fit.fits_alone), bool(fit.gpus)),
    )
    if not devices:
        return forecast.summary
    each = "on each GPU, " if len(devices[0].gpus) > 1 else ""
    return f"{devices[0].needed_mib} MiB, {each}at the default context; {forecast.summary}"


def _check_end(ended: Download) -> None:
    if ended.state == "cancelled":
        raise CommandError("the download was cancelled")
    if ended.state == "failed":
        message = ended.error.message if ended.error is not None else "no reason is known"
        step = ended.error.next_steps[0] if ended.error is not None and ended.error.next_steps else ""
        raise CommandError(f"the download failed: {message.rstrip('.')}. {step}".rstrip())


async def _cancel(url: str, order: ModelDownloadOrder) -> ExitCode:
    from cli.admin_client import AdminClient  # aiohttp takes 150 ms
    from contract.downloads import FINAL_STATES
    from contract.model_reference import InvalidReferenceError, parse_reference

    try:
        canonical = str(parse_reference(order.reference))
    except InvalidReferenceError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    async with AdminClient(url) as client:
        under_way = [
            each
            for each in (await client.list_downloads()).downloads
            if canonical in (each.reference, each.pinned) and each.state not in FINAL_STATES
        ]
        if not under_way:
            raise CommandError(f"no download of {canonical} is under way")
        for each in under_way:
            ended = await client.cancel_download(each.id)
            print_line(f"{ended.reference}: {ended.state}")
    return ExitCode.DONE
