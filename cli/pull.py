"""`roundhouse search`, `pull` and `serve`: find a model on the hub, download one, and serve one."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.options import ControllerUrl, Json, NoWait, State, Timeout, controller_url
from cli.output import (
    CommandError,
    ExitCode,
    count_words,
    ends_by_unload,
    explain_error,
    one_line,
    print_error,
    print_json,
    print_line,
    print_table,
    size_words,
)

if TYPE_CHECKING:
    from cli.admin_client import AdminClient, Transition
    from contract.admin import AdminModel
    from contract.downloads import Download
    from contract.model_files import (
        FileDeclaration,
        FileDeclarationOrder,
        InspectedModel,
        MemoryForecast,
        ModelDownloadOrder,
        OfferedModel,
        OfferedRepository,
    )


def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words that the names of repositories have.")],
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=20, help="Repositories at most.")] = 5,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Find models on the Hugging Face hub.

    For each model: the REF that pull and serve take, its size, about the memory that it takes and where it fits, and
    whether it is here. The most downloaded repositories come first. Exit code 1: the hub cannot be asked. 3: no
    controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms
    from contract.downloads import LONGEST_WORDS, SearchOrder  # pydantic takes 100 ms

    try:
        order = SearchOrder(words=" ".join(words), limit=limit)
    except ValueError:
        raise CommandError(
            f"WORDS are empty, longer than {LONGEST_WORDS} characters, or have control characters", ExitCode.USAGE
        ) from None
    found = ask_admin(controller_url(controller, state), lambda client: client.search_models(order))
    if as_json:
        print_json(found)
        return ExitCode.DONE
    rows = [_choice_cells(choice) for each in found.repositories for choice in each.choices]
    if rows:
        print_table(("REF", "QUANTISATION", "SIZE", "FITS", "HERE"), rows)
    for line in (line for each in found.repositories for line in _repository_lines(each)):
        print_error(line)
    if rows:
        reference = shlex.quote(rows[0][0])
        print_error(f"`roundhouse pull {reference}` downloads one, `roundhouse serve {reference}` also serves it")
    elif not found.repositories:
        print_error(f"the hub has no model in GGUF or safetensors with {order.words!r} in its name")
    return ExitCode.DONE


def _choice_cells(choice: OfferedModel) -> tuple[str, ...]:
    here = f"used by {', '.join(choice.used_by)}" if choice.used_by else "yes" if choice.is_present else "-"
    quantisation = choice.quantisation or choice.format
    if choice.projector is not None:
        quantisation += " + mmproj"
    return choice.reference, quantisation, size_words(choice.size), choice.forecast.summary, here


def _repository_lines(found: OfferedRepository) -> Iterator[str]:
    """Yield what is worth knowing of a repository beside its models."""
    if found.reason is not None:
        yield f"{found.repository}: {found.reason}"
    if found.is_gated:
        yield f"{found.repository}: gated: accept its terms on the hub, and set `ROUNDHOUSE_HUB_TOKEN_FILE`"
    if found.left_out:
        yield f"{found.repository}: {count_words(found.left_out, 'more model')}, which the hub's page lists"


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
        request.print_if_it_goes_on()
        return ExitCode.INTERRUPTED


@dataclass
class _Pull:
    """One `pull`: look, order, watch, declare. `name`: that of the model that is to be declared; None: from what it
    is. `is_declared`: whether it is declared here; else the caller does so, or nobody. `is_ordered`: whether its
    download is, or may be, under way."""

    order: ModelDownloadOrder
    name: str | None
    is_declared: bool
    as_json: bool
    is_ordered: bool = False

    async def run(self, url: str) -> ExitCode:
        from cli.admin_client import AdminClient  # aiohttp takes 150 ms

        async with AdminClient(url) as client:
            ended, found = await self.fetch(client)
            name = self.name or found.name
            if self.is_declared:
                await client.put_declaration("models", name, found.fields)
        self._print_result(ended, found, name)
        return ExitCode.DONE

    async def fetch(self, client: AdminClient) -> tuple[Download, InspectedModel]:
        """Say what the model is, order the download, show how far it is, and return it at its end, with what was found
        before. Raises CommandError where it does not succeed, or the model could not be declared."""
        from cli.following import DownloadFollower, open_view

        found = await self.inspect(client)
        self.is_ordered = True  # as far as this process knows: Ctrl-C may come before the answer
        ordered = await client.order_download(self.order)
        with open_view() as view:
            ended = await DownloadFollower(client, ordered, view.show_download).wait_for_end()
        self.is_ordered = False
        _check_end(ended)
        return ended, found

    async def inspect(self, client: AdminClient) -> InspectedModel:
        """Say what the model is, and return it. Raises CommandError where it could not be declared."""
        found = await client.inspect_download(self.order)
        _print_inspection(found)
        if self.is_declared:
            await self._check_declaration(client, self.name or found.name, found)
        elif self.name is not None:
            row = await _find_declared(client, self.name)
            if row is not None and found.inspection.main != row.definition.get("model_path"):
                raise _name_taken(self.name)
        return found

    def print_if_it_goes_on(self) -> None:
        """Say how to end the download that is under way, if one is."""
        if self.is_ordered:
            reference = shlex.quote(self.order.reference)
            print_error(f"the download goes on; `roundhouse pull {reference} --cancel` ends it")

    async def _check_declaration(self, client: AdminClient, name: str, found: InspectedModel) -> None:
        """Raise CommandError where the declaration cannot succeed, before gigabytes are fetched for it."""
        if found.forecast.backend is None:
            raise CommandError(f"it cannot be declared: {found.forecast.reason}", ExitCode.USAGE)
        earlier = (await client.list_declarations()).models.get(name)
        if earlier is not None and earlier.fields.get("source") == found.inspection.pinned:
            return
        if await _find_declared(client, name) is not None:
            raise _name_taken(name)
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


async def _find_declared(client: AdminClient, name: str) -> AdminModel | None:
    """Return the row of the model that is declared under a name or an alias; None: there is none, as where one is only
    served because its file is there, which gives its name up."""
    from cli.admin_client import RequestRefusedError  # aiohttp

    try:
        row = await client.get_model(name)
    except RequestRefusedError as error:
        if error.error_code != "unknown_model":
            raise
        return None
    return None if row.declared_by == "discovery" else row


def _name_taken(name: str) -> CommandError:
    return CommandError(f"a model {name} is declared already: choose another name with --as")


def _print_inspection(found: InspectedModel) -> None:
    inspection = found.inspection
    here = inspection.total_bytes - inspection.missing_bytes
    here_words = f", {size_words(here)} of it here already" if here else ""
    words = f"{count_words(len(inspection.files), 'file')}, {size_words(inspection.total_bytes)}{here_words}"
    print_error(f"{inspection.reference}: {words}; {size_words(inspection.free_bytes)} are free for downloads")
    print_error(f"memory: {_memory_words(found.forecast)}")


def _memory_words(forecast: MemoryForecast, context: str = "at the default context") -> str:
    """Return what the model takes, and where it fits. The MiB are those of the device that the summary names first.
    `context`: at which context, in words."""
    devices = sorted(
        forecast.devices,
        key=lambda fit: (not (fit.gpus and fit.fits), not (fit.gpus and fit.fits_alone), bool(fit.gpus)),
    )
    if not devices:
        return forecast.summary
    each = "on each GPU, " if len(devices[0].gpus) > 1 else ""
    return f"{devices[0].needed_mib} MiB, {each}{context}; {forecast.summary}"


def _check_end(ended: Download) -> None:
    if ended.state == "cancelled":
        raise CommandError("the download was cancelled")
    if ended.state == "failed":
        if (error := ended.error) is None:
            raise CommandError("the download failed: no reason is known")
        message, steps = explain_error(error.message, error.code, error.next_steps, error.model_dump())
        raise CommandError(" ".join([f"the download failed: {message.rstrip('.')}.", *steps[:1]]))


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


TRY: Final[Mapping[str, tuple[str, str]]] = {
    "llama_server_embedding": ("embeddings", '"input": "Hello"'),
    "llama_server_reranking": ("rerank", '"query": "Hello", "documents": ["Hi", "No"]'),
}
"""Route below `/v1/`, and fields of a request, by the field that makes a model serve nothing else."""
_CHAT: Final = ("chat/completions", '"messages": [{"role": "user", "content": "Hello"}]')


def serve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|REF",
            help="A model file or folder in a models folder, by any path that leads there; else what `pull` takes.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the model; default: from the file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be declared.")] = False,
    no_wait: NoWait = False,
    timeout: Timeout = 600.0,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Serve a model: declare its file with what that says of itself.

    That is the backend, embeddings or rankings, a projector beside it, and the GPUs and the context that fit. A REF is
    downloaded first. Prints the lines that declare the same in a desired-state file, and a request to try. Ctrl-C ends
    the waiting, not the load. Exit code 0: it is loaded. 1: it cannot be served, or the load failed. 2: it is still
    loading. 3: no controller answers.
    """
    request = _Serve(target, name, dry_run, None if no_wait else timeout, as_json)
    try:
        return asyncio.run(request.run(controller_url(controller, state)))
    except KeyboardInterrupt:
        if request.pull is not None:
            request.pull.print_if_it_goes_on()
        if request.served is not None:
            print_error(f"{request.served} goes on loading; {ends_by_unload(request.served)}")
        return ExitCode.INTERRUPTED


@dataclass
class _Serve:
    """One `serve`: find the file or download it, declare, wait, say what to try."""

    target: str
    name: str | None
    dry_run: bool
    wait_s: float | None
    as_json: bool
    pull: _Pull | None = None
    served: str | None = None

    async def run(self, url: str) -> ExitCode:
        from cli.admin_client import AdminClient  # aiohttp takes 150 ms

        async with AdminClient(url) as client:
            path = await self._find_file(client) or await self._download(client)
            if path is None:
                return ExitCode.DONE  # a dry run: what the reference is was said
            declared = await client.declare_model_file(self._order(path, dry_run=True))
            if declared.reason is not None:
                raise CommandError(f"{declared.path} is not served: {declared.reason}")
            if self.dry_run:
                self._print(declared, None)
                return ExitCode.DONE
            if declared.declared is None:
                declared = await client.declare_model_file(self._order(path))
            self.served = declared.name
            transition = await self._wait(client, declared)
            self._print(declared, transition)
            if transition.verdict is ExitCode.DONE and not self.as_json:
                addresses = (await client.get_status()).gateway_addresses
                print_error(f"try it: {_try_words(declared, addresses)}")
        return transition.verdict

    def _order(self, path: str, *, dry_run: bool = False) -> FileDeclarationOrder:
        from contract.model_files import FileDeclarationOrder

        try:
            return FileDeclarationOrder(model=path, name=self.name, dry_run=dry_run)
        except ValueError:
            raise CommandError(
                f"{self.name!r:.100} is no name of a model: it begins with a letter or a digit, and has letters, "
                "digits and ._:/@+- only",
                ExitCode.USAGE,
            ) from None

    async def _find_file(self, client: AdminClient) -> str | None:
        """Return the path by which the controller knows the file; None: nothing lies there. Raises CommandError for a
        file outside of the models folders, with the command that copies it."""
        from cli.admin_client import RequestRefusedError

        here = Path(self.target)
        if here.exists():
            folders = [Path(each) for each in (await client.list_model_files()).folders]
            for spelling in (here.absolute(), here.resolve()):
                for folder in folders:
                    if spelling.is_relative_to(folder) or spelling.is_relative_to(folder.resolve()):
                        root = folder if spelling.is_relative_to(folder) else folder.resolve()
                        return str(folder / spelling.relative_to(root))
            raise CommandError(
                f"{here} lies outside the models folder {folders[0]}, where engines may read; copy it there: "
                f"`{_copy_words(here, folders[0], self.name)}`"
            )
        try:
            await client.declare_model_file(self._order(self.target, dry_run=True))
        except RequestRefusedError as error:
            if error.error_code != "invalid_declaration":
                raise
            return None
        return self.target

    async def _download(self, client: AdminClient) -> str | None:
        """Return the path of the model that REF is, once it is here; None: a dry run, in which it is only looked at."""
        from contract.model_files import ModelDownloadOrder
        from contract.model_reference import InvalidReferenceError, parse_reference

        try:
            parse_reference(self.target)
        except InvalidReferenceError as error:
            raise CommandError(
                f"{self.target!r:.200} is neither a file here or in a models folder (`roundhouse models` lists them) "
                f"nor a reference: {error}",
                ExitCode.USAGE,
            ) from None
        self.pull = _Pull(ModelDownloadOrder(reference=self.target), self.name, False, self.as_json)
        if self.dry_run:
            found = await self.pull.inspect(client)
            if self.as_json:
                print_json(found.model_dump(mode="json", include={"inspection", "forecast"}))
            return None
        ended, _ = await self.pull.fetch(client)
        return ended.main

    async def _wait(self, client: AdminClient, declared: FileDeclaration) -> Transition:
        from cli.admin_client import Transition, TransitionGoal
        from cli.following import follow_row, wait_for_transition
        from contract.status import ModelState

        goal = TransitionGoal(ModelState.LOADED)
        if declared.declared == "before":  # it may be waiting for a request, or unloaded
            request = client.load_model(declared.name, {}, self.wait_s)
        elif self.wait_s is None:
            return Transition(ExitCode.PENDING, await client.get_model(declared.name))
        else:
            request = follow_row(client, declared.name, goal, self.wait_s)
        if self.wait_s is None:
            return await request
        return await wait_for_transition(client, declared.name, request, goal, self.wait_s)

    def _print(self, declared: FileDeclaration, transition: Transition | None) -> None:
        if self.as_json:
            model = None if transition is None else transition.row.model_dump(mode="json")
            print_json({"declaration": declared.model_dump(mode="json"), "model": model})
            return
        from cli.load import failure_lines
        from controller.config.yaml12 import write_yaml

        for line in _fact_lines(declared):
            print_error(line)
        print_line(write_yaml({"models": {declared.name: declared.fields}}).rstrip("\n"))
        if declared.declared != "before":
            print_error("these lines in a desired-state file declare it for good; then the file rules")
        if transition is None:
            return
        row = transition.row
        if transition.verdict is ExitCode.FAILED:
            for line in failure_lines(row):
                print_error(line)
            return
        ready = f"{row.loaded_replicas} of {count_words(row.replicas, 'replica')} ready"
        print_error("; ".join((f"{row.name}: {row.runtime_state.value}, {ready}", *map(one_line, row.blocked))))


def _copy_words(source: Path, folder: Path, name: str | None) -> str:
    """Return the commands that copy a model into a models folder and serve it there, as `name`, if given. What
    links lead to is copied under the names of the links: in the Hugging Face cache the files themselves have none.
    Reads the disk."""
    from controller.artifacts.read import list_files

    source = Path(os.path.abspath(source)) if source.name in ("", "..") else source  # noqa: PTH100 - `..` has no name
    is_folder = source.is_dir()
    paths = [source] if is_folder else sorted(list_files(source))
    words = ["cp", *(["-rL"] if is_folder else []), *(shlex.quote(str(each)) for each in paths)]
    copied = shlex.quote(str(folder / paths[0].name))
    name_words = "" if name is None else f" --as {shlex.quote(name)}"
    return f"{' '.join(words)} {shlex.quote(str(folder))}/ && roundhouse serve {copied}{name_words}"


def _fact_lines(declared: FileDeclaration) -> Iterator[str]:
    """Yield what is worth knowing of a declaration made from a file."""
    if declared.declared == "before":
        yield f"{declared.path} is declared already, as {declared.name}"
    if declared.forecast is not None and declared.forecast.devices:
        context = "with this context" if declared.context is not None else "at the default context"
        yield f"memory: {_memory_words(declared.forecast, context)}"
    if declared.context is not None and declared.trained_context is not None:
        yield f"context: {declared.context} of the {declared.trained_context} tokens that it was trained for"
    if declared.projector is not None:
        yield f"images or sound: by {declared.projector}"
    if declared.has_chat_template is False and not TRY.keys() & declared.fields.keys():
        yield "the file has no chat template: chats are written in llama-server's default one (ChatML)"


def _try_words(declared: FileDeclaration, addresses: Sequence[str]) -> str:
    route, fields = next((each for field, each in TRY.items() if declared.fields.get(field)), _CHAT)
    body = shlex.quote(f'{{"model": "{declared.name}", {fields}}}')
    address = next(iter(addresses), "http://127.0.0.1:8080")
    return f"curl -s {address}/v1/{route} -H 'Content-Type: application/json' -d {body}"
