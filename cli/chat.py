"""`roundhouse chat` and `roundhouse run`: a conversation with a model, and one answer for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from cli.options import ControllerUrl, GatewayUrl, Json, ModelArgument, State
from cli.output import (
    CommandError,
    ExitCode,
    duration_words,
    is_terminal,
    print_error,
    print_json,
    print_line,
    print_piece,
)

if TYPE_CHECKING:
    from rich.status import Status

    from cli.gateway_client import GatewayAddress, GatewayClient

System: TypeAlias = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="What the model is told before the conversation.")
]
GroundedInDocuments: TypeAlias = Annotated[
    bool, typer.Option("--documents", help="Answer from your documents; stderr has the sources after each answer.")
]
COMMANDS: Final[Mapping[str, str]] = {
    "/clear": "forget the conversation",
    "/system TEXT": "tell the model this before the conversation; without TEXT nothing",
    "/model NAME": "go on with another model",
    "/help": "show these commands",
    "/quit": "end, as Ctrl-D does",
}
"""Commands of a conversation, with what each does."""


def run(
    name: ModelArgument,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What the model is asked; `-` reads it from stdin.")],
    system: System = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, metavar="N", help="Longest answer. Default: the model's own.")
    ] = None,
    documents: GroundedInDocuments = False,
    gateway: GatewayUrl = None,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Ask a model once, and print its answer.

    stdout has the answer, as it comes, and nothing else. A model with `autoload` is loaded first. Exit code 0: the
    answer is whole, or ended at --max-tokens, which stderr says. 1: the model has not answered, or the answer broke
    off. 3: no gateway answers.
    """
    text = _read_text(sys.stdin.read) if prompt == "-" else prompt
    if not text.strip():
        raise CommandError("the prompt is empty", ExitCode.USAGE)
    body = Conversation(name, system, documents=documents).ask(text) | (
        {} if max_tokens is None else {"max_tokens": max_tokens}
    )

    pieces: list[str] = []

    async def ask() -> AnswerEnd:
        async with _open_client(await _find_gateway(gateway, controller, state)) as client:
            return await _print_answer(client, body, pieces, is_shown=not as_json)

    end = asyncio.run(ask())
    if as_json:
        grounds = {"sources": list(end.sources or ())} if documents else {}
        print_json({"model": name, "text": "".join(pieces), "finish_reason": end.reason, **grounds})
    return ExitCode.DONE


def chat(
    name: ModelArgument,
    system: System = None,
    documents: GroundedInDocuments = False,
    gateway: GatewayUrl = None,
    controller: ControllerUrl = None,
    state: State = None,
) -> int:
    """Talk to a model.

    Each line is a message; the model is told the whole conversation, which is kept until the end of the program.
    `/help` lists commands. Ctrl-C stops an answer, Ctrl-D or `/quit` ends. Lines may come from a pipe; the first
    message without an answer then ends the program. A model with `autoload` is loaded first. Exit code 1: the model
    cannot be asked, or has not answered. 3: no gateway answers.
    """
    address = asyncio.run(_find_gateway(gateway, controller, state))
    talk = _Talk(address, Conversation(name, system, documents=documents))
    talk.check_model(name)
    return talk.run()


class Conversation:
    """The messages of one `roundhouse chat`, of which each request sends all: the system's text, then the user's and
    the model's in turn. Kept in memory alone. Pure."""

    def __init__(self, model: str, system: str | None = None, *, documents: bool = False) -> None:
        """`system`: what the model is told before everything; None or empty: nothing. `documents`: whether the tenant's
        documents are searched for each answer."""
        self.model = model
        self.system = system
        self._grounds = {"rag": True} if documents else {}
        self._messages: list[dict[str, str]] = []

    def ask(self, text: str) -> dict[str, Any]:
        """Add a message of the user, and return the body of the request for its answer."""
        self._messages.append({"role": "user", "content": text})
        before = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*before, *self._messages], **self._grounds}

    def note_answer(self, text: str) -> None:
        """Add the model's answer to the last message, whole or as far as it came. An empty one takes that message back,
        so that it may be asked again."""
        if text:
            self._messages.append({"role": "assistant", "content": text})
        else:
            self._messages.pop()

    def clear(self) -> None:
        """Forget all messages; what the model is told before them stays."""
        self._messages.clear()


class AnswerEnd(NamedTuple):
    """Why an answer ended, and the passages of documents that it was given, as its stream says at the end."""

    reason: str | None
    """Why it ended, in the API's word; None: the answer does not say."""
    sources: Sequence[Mapping[str, Any]] | None
    """Passages of documents that the model was given, as the answer has them; None: none were asked for."""


class _Talk:
    """One `chat` at a terminal or a pipe. Blocks; no event loop may run in this thread."""

    def __init__(self, address: GatewayAddress, conversation: Conversation) -> None:
        self._address = address
        self._conversation = conversation
        self._is_typed = is_terminal(sys.stdin)

    def run(self) -> ExitCode:
        """Answer each line until there is none. Raises CommandError where one of a pipe has no answer."""
        if self._is_typed:
            with suppress(ImportError):
                import_module("readline")  # `input` then edits lines, and has a history
            print_error(f"talking to {self._conversation.model}; /help lists commands, Ctrl-D ends")
        while True:
            try:
                line = self._read_line()
            except KeyboardInterrupt:
                if not self._is_typed:
                    raise
                print_line("")
                continue
            if line is None or line.strip() == "/quit":
                return ExitCode.DONE
            try:
                self._handle(line.strip())
            except CommandError as error:
                if not self._is_typed:
                    raise
                print_error(str(error))
            except KeyboardInterrupt:
                if not self._is_typed:
                    raise
                print_error("stopped")

    def check_model(self, name: str) -> None:
        """Raise CommandError unless the gateway lets this client ask the model."""

        async def check() -> None:
            async with _open_client(self._address) as client:
                await client.check_model(name)

        asyncio.run(check())

    def _read_line(self) -> str | None:
        """Return the next line; None: there is none."""
        if self._is_typed and is_terminal(sys.stdout):
            try:
                return input("> ")
            except EOFError:
                print_line("")
                return None
        if self._is_typed:  # stdout has answers alone
            typer.echo("> ", nl=False, err=True)
        return _read_text(sys.stdin.readline) or None

    def _handle(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if not line:
            return
        if not line.startswith("/"):
            self._answer(line)
        elif command == "/clear":
            self._conversation.clear()
        elif command == "/system":
            self._conversation.system = rest.strip() or None
        elif command == "/model" and rest.strip():
            self.check_model(rest.strip())
            self._conversation.model = rest.strip()
        elif command == "/help":
            for usage, words in COMMANDS.items():
                print_error(f"{usage:<14} {words}")
        else:
            raise CommandError(f"{line}: there is no such command; they are {', '.join(COMMANDS)}", ExitCode.USAGE)

    def _answer(self, text: str) -> None:
        body, pieces = self._conversation.ask(text), list[str]()

        async def ask() -> None:
            async with _open_client(self._address) as client:
                await _print_answer(client, body, pieces)

        try:
            asyncio.run(ask())
        finally:
            self._conversation.note_answer("".join(pieces))


def _read_text(read: Callable[[], str]) -> str:
    """Return what `read`, a method of stdin, reads."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise CommandError(f"stdin is not UTF-8: {error.reason} at byte {error.start}", ExitCode.USAGE) from None


async def _find_gateway(gateway: str | None, controller: str | None, state: Path | None) -> GatewayAddress:
    from cli.gateway_client import find_gateway  # aiohttp takes 150 ms

    return await find_gateway(gateway, controller, state)


def _open_client(address: GatewayAddress) -> GatewayClient:
    from cli.gateway_client import GatewayClient  # aiohttp

    return GatewayClient(address)


async def _print_answer(
    client: GatewayClient, body: Mapping[str, Any], pieces: list[str], *, is_shown: bool = True
) -> AnswerEnd:
    """Print the answer to stdout as it comes (not without `is_shown`), with a line break at its end, and what it waits
    for to stderr, if that is a terminal. `pieces` gets the text as it comes. stderr has the sources after it (not
    without `is_shown`). Raises CommandError where there is no answer, none with a text, or it broke off."""
    reason: str | None = None
    sources: Sequence[Mapping[str, Any]] | None = None
    try:
        async with _show_waiting() as show:
            events = client.stream_chat(body, lambda progress: show(waiting_words(progress)))
            async with aclosing(events):
                async for event in events:
                    sources = event.get("sources", sources)
                    for choice in event.get("choices") or ():
                        delta, reason = choice.get("delta") or {}, choice.get("finish_reason") or reason
                        if piece := delta.get("content"):
                            show(None)
                            pieces.append(piece)
                            if is_shown:
                                print_piece(piece)
                        elif delta.get("reasoning_content"):
                            show("thinking")
    finally:
        if is_shown and pieces and not pieces[-1].endswith("\n"):
            print_line("")
    if not pieces:
        raise CommandError(f"{body['model']} answered without a text ({reason or 'no reason is known'})")
    if reason == "length":
        print_error("the answer is cut: it has as many tokens as it may have")
    if is_shown and sources is not None:
        print_error(source_words(sources))
    return AnswerEnd(reason, sources)


def source_words(sources: Sequence[Mapping[str, Any]]) -> str:
    """Return in a line which files an answer's passages are from, each with the passages' numbers. `sources`: as an
    answer has them. Pure."""
    numbers: dict[str, list[str]] = {}
    for source in sources:
        numbers.setdefault(source.get("filename") or source["document_id"], []).append(f"[{source['number']}]")
    files = (f"{name} {' '.join(cited)}" for name, cited in numbers.items())
    return f"sources: {', '.join(files)}" if numbers else "sources: none; no document has a fitting passage"


def _usual_wait(p50_ms: object, p90_ms: object) -> str:
    if not (isinstance(p50_ms, int) and isinstance(p90_ms, int)):
        return ""
    usual, long = duration_words(max(1000, p50_ms) / 1000), duration_words(max(1000, p90_ms) / 1000)
    return f", usually {usual}" + (f" to {long}" if usual != long else "")


def waiting_words(progress: Mapping[str, Any]) -> str:
    """Return in words what a request waits for, by a progress report of the gateway. A report of a kind that this
    version does not know gives "waiting". Pure."""
    model, share = progress.get("model", "the model"), progress.get("progress")
    percent = f", {round(100 * share)} %" if isinstance(share, int | float) else ""
    match progress.get("stage"):
        case "load":
            reason = f" ({progress['reason']})" if progress.get("reason") else ""
            return f"{model} is {progress.get('state', 'loading')}{percent}{reason}"
        case "queue":
            wait = _usual_wait(progress.get("wait_p50_ms"), progress.get("wait_p90_ms"))
            place = progress.get("queue_position")
            return f"waiting in the queue of {model}" + (f", place {place}" if place is not None else "") + wait
        case "prefill":
            return f"{model} reads the prompt{percent}"
    return "waiting"


@asynccontextmanager
async def _show_waiting() -> AsyncIterator[Callable[[str | None], None]]:
    """Async context manager that yields a function, which shows words on the last line of stderr, in place of those
    before; None takes them away. It shows nothing where stderr is no terminal."""
    if not is_terminal(sys.stderr):
        yield lambda words: None
        return
    from rich.console import Console  # 50 ms

    console, status = Console(stderr=True), list["Status"]()

    def show(words: str | None) -> None:
        while status and words is None:
            status.pop().stop()
        if words is not None and not status:
            status.append(console.status(""))
            status[0].start()
        if words is not None:
            status[0].update(words.replace("[", "\\["))

    try:
        yield show
    finally:
        show(None)
