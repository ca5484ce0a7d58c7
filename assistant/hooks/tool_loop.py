"""The loop of a response whose `tools` name MCP servers: rounds of the model, each a request of its own, and between
them calls, which the gateway runs while no slot is held (ADR 27).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from assistant.storage.responses import StoredResponses
from assistant.tools.runner import ToolRunner
from common.log_formats import tag_request
from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.exchange.client_response import JSON_LINE
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ConditionalHook, ExchangeHooks, Trigger
from gateway.exchange.inner_requests import InnerAnswer, InnerCall, OpenInner, RoundClient, UsedTokens, fail_by_round
from gateway.exchange.progress_hooks import PROGRESS_HOOKS
from gateway.exchange.session_hooks import SESSION_HOOKS, DecisionTeller
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LARGE_BYTES
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.mcp import (
    BUILT_IN,
    MCP_PATH,
    OfferedServer,
    OfferedTool,
    failed_server,
    failed_tool,
    function_name,
    invalid_call,
    is_mcp,
    read_arguments,
    read_mcp_tools,
)
from gateway.protocols.responses.tool_rounds import (
    ROUND_OVER,
    CallResult,
    RoundsWriter,
    RoundWriter,
    RunCall,
    ToolRounds,
    listed_labels,
    own_items,
    too_many_calls,
)
from gateway.server.body_budget import BodyBudget
from gateway.sessions import SESSION_FIELD
from gateway.tenancy.api_keys import Caller, find_document_tenant
from gateway.tenancy.rate_limits import RateLimitEntry

logger = logging.getLogger(__name__)


MOST_AT_ONCE: Final = 16
"""Calls of one response that run at the same time."""
_INVALID: Final = frozenset({"tool_not_found", "tool_not_allowed", "tool_arguments_invalid", "tools_disabled"})
"""Codes of calls that no tool takes."""


COPIES: Final = 2
"""How often a loop has its conversation in memory: decoded, from its beginning to its end, and as the body of a
round."""
_MIB: Final = 1024 * 1024


class LoopMemory:
    """The bytes that one loop of tools holds of the gateway's budget for request bodies: `COPIES` times the size of its
    conversation; nothing for a conversation of `LARGE_BYTES` (256 KiB) at most. Call `give_back` when the loop ends."""

    __slots__ = ("_budget", "_held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        """Hold nothing yet."""
        self._budget = budget
        self._held_bytes = 0

    def hold(self, size: int) -> None:
        """Hold room for a conversation of `size` bytes as JSON, at once. It may have grown since the last call; what is
        held never shrinks.

        Raises:
            RoundhouseError: `tool_rounds_full`: the loops of the gateway would hold too much together. What is held
                already stays held.
        """
        more = COPIES * size - self._held_bytes
        if size <= LARGE_BYTES or more <= 0:
            return
        if not self._budget.hold(more):
            most = self._budget.max_held_bytes / COPIES / _MIB
            message = (
                f"The conversation has {size / _MIB:.1f} MiB, and those of all responses whose tools the gateway runs "
                f"may have {most:.1f} MiB together."
            )
            raise RoundhouseError("tool_rounds_full", message)
        self._held_bytes += more

    def give_back(self) -> None:
        """Give back all that is held, and so let in bodies that wait for room. May be called repeatedly."""
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._budget.give_back(held_bytes)


@dataclass(frozen=True, slots=True)
class ToolLoops:
    """What all loops of a gateway share: what opens rounds, the memory budget, the tools and the stored responses."""

    open_inner: OpenInner
    """Opens the rounds."""
    budget: BodyBudget
    """For the memory of large bodies, of which the conversations take a part."""
    runner: ToolRunner
    responses: StoredResponses


class ToolLoop:
    """Answers one request for a response by rounds of the model. Made when the request is read.

    Its task ends with the request: when the response is complete, the client leaves (unless the request outlives its
    client), its time is over, or it is cancelled. A round or a call that is under way ends with it.
    """

    __slots__ = (
        "_client",
        "_context",
        "_decision",
        "_entry",
        "_exchange",
        "_free_calls",
        "_loops",
        "_memory",
        "_rounds",
        "_session_fields",
        "_task",
        "_used",
    )

    def __init__(self, exchange: Exchange, loops: ToolLoops, session_fields: Fields) -> None:
        """`session_fields`: fields of the client's request that name its session, which its engines do not get."""
        self._exchange = exchange
        self._loops = loops
        self._memory = LoopMemory(loops.budget)
        self._session_fields = session_fields
        self._context: ResponseContext = exchange.request.state
        self._client = RoundClient(exchange)
        self._decision: DecisionTeller | None = DecisionTeller(exchange.answer)
        """Tells the client what was decided on its session; None: the first round is over, whose decision it is."""
        self._rounds: ToolRounds
        self._task: asyncio.Task[None] | None = None
        self._entry: RateLimitEntry | None = None
        self._used = UsedTokens()
        self._free_calls = asyncio.Semaphore(MOST_AT_ONCE)

    def begin(self, exchange: Exchange) -> bool:
        """Begin the loop as a task, which answers the request. Returns True, and so asks no engine for the request
        itself. A hook of `before_admission`: called once, when the request is checked and counted.

        Raises:
            RoundhouseError: `invalid_request`: the request approves a call of a tool that it does not have.
                `tool_rounds_full`: there is no memory for the conversation.
        """
        context, request = self._context, exchange.request
        assert context.mcp is not None
        exchange.add_hooks(ExchangeHooks(on_end=(self._end,)))
        self._memory.hold(request.size + exchange.extra_text_bytes)
        items = own_items(request.fields, context.referenced_items)
        labels = listed_labels([*context.history, *items])
        writer = RoundsWriter(request.outline_fields, context, is_stream=exchange.is_stream, listed_labels=labels)
        fields = {**request.fields, **self._session_fields}
        self._rounds = ToolRounds(fields, context.history, items, writer, context.mcp)
        context.writer = writer
        exchange.free_body()  # the rounds have bodies of their own
        exchange.set_header_lines(exchange.services.now())
        for on_admitted in exchange.hooks.on_admitted:
            on_admitted(exchange)
        self._client.follow_client()
        self._entry = exchange.account.take_entry()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._settle)  # a task that is cancelled before its first step runs no `finally`
        return True

    def _end(self, _: Exchange) -> None:
        task, self._task = self._task, None
        self._context.writer = None  # it refers back
        self._client.let_go()
        self._memory.give_back()
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _run(self) -> None:
        exchange = self._exchange
        try:
            run = self._loops.responses.get_run(self._context.id)
            if run is not None and run.saved is not None:
                await asyncio.shield(run.saved)  # a response that cannot be stored could not be fetched later
            await self._run_loop()
        except RoundhouseError as error:
            exchange.fail_request(error)
        except Exception:
            request_id = exchange.answer.request_id
            logger.exception("request %s failed", request_id, extra=tag_request(request_id))
            exchange.fail_request(RoundhouseError("internal_error", "The gateway failed on this request."))

    async def _run_loop(self) -> None:
        exchange, rounds = self._exchange, self._rounds
        approved = rounds.take_approved()
        if approved:
            for each in approved:
                self._send(rounds.begin_approved(each))
            await self._run_calls([each.call for each in approved])
        while not rounds.is_over:
            exchange.renew_route()  # the key may be gone by now
            fields, writer = rounds.next_round()
            used_before = self._used.completion
            answer = await self._run_round(fields, writer)
            if self._fails(answer, writer):
                return
            events, calls = rounds.end_round(writer, self._used.completion - used_before)
            self._send(events)
            if calls:
                await self._run_calls(calls)
        self._end_answer(rounds.end_rounds())

    async def _run_round(self, fields: Fields, writer: RoundWriter) -> InnerAnswer:
        """Have the model answer once, and pass on what it says. Returns when its slot is free again.

        Raises:
            RoundhouseError: `tool_rounds_full`: the results of tools have made the conversation too large.
        """
        exchange = self._exchange
        body = json_bytes(fields)
        self._memory.hold(len(body) + exchange.extra_text_bytes)
        client = exchange.client
        call = InnerCall(
            exchange.api.path.encode(),
            client.headers,
            exchange.services.now,
            query=client.query,
            take_part=self._take_part,
        )
        context = ResponseContext(
            id=self._context.id,
            created_at=self._context.created_at,
            clock=self._context.clock,
            new_id=self._context.new_id,
            history=self._context.history,
            conversation_id=self._context.conversation_id,
            found_files=self._context.found_files,
            mcp=self._context.mcp,
            writer=writer,
            may_lack_input=True,
            is_open_responses=self._context.is_open_responses,
            session_name=_name_session(self._context),
        )
        hooks = ExchangeHooks(on_request=(partial(_set_context, context=context, outer=exchange),))
        hooks += PROGRESS_HOOKS + SESSION_HOOKS
        hooks += ExchangeHooks(before_send=(self._tell_decision,), on_end=(self._used.add,))
        handler = self._loops.open_inner(call, exchange.caller, hooks, exchange.answer.request_id)
        call.handler = handler
        try:
            if not call.response_complete:
                self._client.begin_round(handler)
                handler.take_body(body)
            return await call.answered
        finally:
            self._client.end_round(handler)
            self._decision = None
            call.lose_client()

    def _tell_decision(self, inner: Exchange, _route: ModelRoute, _endpoint: Endpoint) -> None:
        """Tell the client what was decided on the first round. Called before each attempt of a round."""
        if self._decision is not None:
            self._decision.tell(inner.session)

    async def _run_calls(self, calls: Sequence[RunCall]) -> None:
        """Run calls at once, and pass on the end of each when it comes."""
        self._exchange.renew_route()  # the key may have lost the tool by now
        most = self._exchange.services.settings.max_tool_calls
        async with asyncio.TaskGroup() as group:
            for number, call in enumerate(calls):
                refusal = self._rounds.refuse_call(call) if number < most else too_many_calls(most)
                if refusal is None:
                    group.create_task(self._finish_call(call))
                else:
                    self._send(self._rounds.take_result(call, refusal))

    async def _finish_call(self, call: RunCall) -> None:
        async with self._free_calls:
            result = await self._run_call(call)
        self._send(self._rounds.take_result(call, result))

    async def _run_call(self, call: RunCall) -> CallResult:
        exchange, arguments = self._exchange, read_arguments(call.arguments)
        assert call.tool is not None
        assert arguments is not None
        tenant = find_document_tenant(exchange.caller, exchange.client.headers)
        try:
            result = await self._loops.runner.call_tool(
                exchange.caller,
                call.tool.full_name,
                arguments,
                request_id=exchange.answer.request_id,
                document_tenant=tenant,
            )
        except RoundhouseError as error:
            if error.entry.code in _INVALID:
                return CallResult(error.message, invalid_call(error.message))
            return CallResult(error.message, failed_server(error.entry.status, error.message))
        return CallResult(result.text, failed_tool(result.text) if result.is_error else None)

    def _take_part(self, part: bytes) -> None:
        """Take a part of a round's stream: whole events, or a comment."""
        exchange = self._exchange
        if exchange.is_ended or part in (ROUND_OVER, exchange.answer.dialect.heartbeat):
            return
        if part.startswith(b":"):
            if exchange.is_stream:
                exchange.answer.send_comment(part, exchange.services.now())
        else:
            self._send(part)

    def _send(self, events: bytes) -> None:
        if events and self._exchange.is_stream and not self._exchange.is_ended:
            self._exchange.answer.send_events(events)

    def _end_answer(self, last_events: bytes) -> None:
        exchange = self._exchange
        if exchange.is_ended:
            return
        if exchange.is_stream:
            if not exchange.answer.status:
                self._send(last_events)
                last_events = b""
            exchange.answer.end_response(last_events)
        else:
            assert self._context.response is not None
            exchange.answer.send_whole(200, JSON_LINE, encode_json(self._context.response))
        exchange.close()

    def _fails(self, answer: InnerAnswer, writer: RoundWriter) -> bool:
        """End the request with the error of a round; return False if it had none."""
        exchange = self._exchange
        if exchange.is_ended:
            return True
        if answer.body and answer.status >= 400:
            error = decode_json(answer.body)["error"]
        elif writer.error is not None:
            error = writer.error
        elif answer.is_broken or writer.finish is None:
            exchange.fail_request(RoundhouseError("engine_disconnected", "The engine's answer broke off."))
            return True
        else:
            return False
        fail_by_round(exchange, error, answer.lines)
        return True

    def _settle(self, _: asyncio.Task[None]) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            self._used.settle(entry, self._exchange.services.now())


def _name_session(context: ResponseContext) -> str:
    """Return the name of the session of all rounds, where the client names none: the one that the requests will have
    which continue the response, or, if it cannot be continued, the response's own."""
    return context.input_items[0]["id"] if context.input_items else context.id


def _set_context(exchange: Exchange, _: ModelRoute, *, context: ResponseContext, outer: Exchange) -> None:
    """Complete a round's request. `outer`: the client's request, of which it is a round."""
    exchange.request.state = context
    exchange.set_extra_text(outer.extra_text_bytes)
    if outer.hides_paths:
        exchange.hide_paths()


_NOT_REACHABLE: Final = "The MCP server {name} is not reachable now."


def _find_servers(exchange: Exchange, _: ModelRoute, runner: ToolRunner) -> None:
    tools = exchange.request.outline_fields.get("tools")
    if isinstance(tools, list) and any(map(is_mcp, tools)):
        context: ResponseContext = exchange.request.state
        servers = _list_servers(runner, exchange.caller, _list_urls(exchange))
        context.mcp = read_mcp_tools(exchange.request.fields, servers)


def _list_urls(exchange: Exchange) -> dict[str, str]:
    """Return the addresses by which a request may name a server, to the server's name: that of a declared server that
    the controller does not run; and the gateway's own, as the client writes it, to an empty text: any server's."""
    hosts = [value.decode("latin-1") for name, value in exchange.client.headers if name == b"host"]
    declared = exchange.services.live.current.mcp_servers
    paths = {MCP_PATH, exchange.services.settings.path_prefix + MCP_PATH}
    urls = {f"{scheme}://{host}{path}": "" for host in hosts for scheme in ("http", "https") for path in paths}
    return urls | {each.url: each.name for each in declared if each.url is not None and each.replica is None}


def _open_loop(exchange: Exchange, route: ModelRoute, loops: ToolLoops) -> None:
    _find_servers(exchange, route, loops.runner)
    context: ResponseContext = exchange.request.state
    if context.mcp is not None and not context.may_lack_input:
        session = exchange.request.outline_fields.get(SESSION_FIELD)
        session_fields = {} if session is None else {SESSION_FIELD: session}
        loop = ToolLoop(exchange, loops, session_fields)
        exchange.add_hooks(ExchangeHooks(before_admission=(loop.begin,)))


def _list_servers(runner: ToolRunner, caller: Caller, urls: Mapping[str, str]) -> dict[str, OfferedServer]:
    """Return the servers of which the caller may call anything, by their labels. `urls`: see `_list_urls`."""
    tools: dict[str, list[OfferedTool]] = {}
    for spec in runner.list_tools(caller):
        label = BUILT_IN if spec.server is None else spec.server
        name = spec.name if spec.server is None else spec.name.removeprefix(function_name(label, ""))
        offered = OfferedTool(label, name, spec.description, spec.parameters, spec.writes)
        tools.setdefault(label, []).append(offered)
    servers = {label: OfferedServer(label, tuple(each)) for label, each in tools.items()}
    for label in runner.list_down(caller):
        servers.setdefault(label, OfferedServer(label, (), _NOT_REACHABLE.format(name=label)))
    return {
        label: server._replace(urls=tuple([url for url, name in urls.items() if name in (label, "")]))
        for label, server in servers.items()
    }


_TOOLS: Final = Trigger(frozenset(("tools",)))


def counted_tool_hooks(runner: ToolRunner) -> ExchangeHooks:
    """Return the hooks of `/v1/responses/input_tokens` and `/compact`, which read a request as for a response and make
    none: tools of the MCP servers that it names become part of its prompt, and none is called. Add them after
    `response_hooks`, which set the request's `ResponseContext`."""
    return ExchangeHooks(on_request=(ConditionalHook(partial(_find_servers, runner=runner), _TOOLS),))


def tool_loop_hooks(loops: ToolLoops) -> ExchangeHooks:
    """Return the hooks that answer a request for a response whose `tools` name MCP servers by a `ToolLoop`. Add them
    after all hooks that answer the request or keep its stream themselves."""
    return ExchangeHooks(on_request=(ConditionalHook(partial(_open_loop, loops=loops), _TOOLS),))
