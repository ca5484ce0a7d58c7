"""Any sequence of reads: what is in force follows the files, and a removal is confirmed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.status import Problem
from contract.tools import McpServer, PlainTool
from controller.config.debounce import CONFIRM_S, DebouncedState, debounce
from controller.config.parse import ParsedFolder
from controller.config.validate import DeclaredTools
from controller.engines.stub import StubDefinition
from tests.support.campaign import campaign_count

NAMES = ("a", "b", "c")
BROKEN = ParsedFolder(problems=(Problem(file="f", message="broken"),))


@st.composite
def good_reads(draw: st.DrawFn) -> ParsedFolder:
    names = draw(st.sets(st.sampled_from(NAMES)))
    free = [*(name for name in NAMES if name not in names), "x", "y"]
    definitions = {}
    for name in sorted(names):
        aliases = draw(st.lists(st.sampled_from(free), unique=True, max_size=2)) if free else []
        free = [each for each in free if each not in aliases]
        definitions[name] = StubDefinition(backend="stub", aliases=aliases)
    servers = draw(st.sets(st.sampled_from(NAMES)))
    tools = draw(st.sets(st.sampled_from(("calculate", "current_time"))))
    return ParsedFolder(
        definitions,
        {name: {"backend": "stub"} for name in names},
        tools=DeclaredTools(
            {name: PlainTool() for name in tools},
            {name: {} for name in tools},
            {name: McpServer(command=[name]) for name in servers},
            {name: {"command": [name]} for name in servers},
        ),
        discover=draw(st.booleans()),
        digest="d",
    )


READS = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.one_of(good_reads(), good_reads(), st.just(BROKEN))), min_size=1, max_size=12
)


@settings(max_examples=campaign_count(40, 1_000))
@given(READS)
def test_every_read_keeps_the_promises(reads: list[tuple[float, ParsedFolder]]) -> None:
    now = 1000.0
    settled: DebouncedState | None = None
    agreed_since: dict[str, float] = {}
    servers_since: dict[str, float] = {}
    for pause, parsed in reads:
        now += pause
        before, settled = settled, debounce(settled, parsed, now)
        is_first = before is None or not parsed.is_valid
        models: set[str] = set() if before is None else set(before.definitions)
        servers: set[str] = set() if before is None else set(before.tools.servers)
        agreed_since = {} if is_first else agreeing(agreed_since, models - set(parsed.definitions), now)
        servers_since = {} if is_first else agreeing(servers_since, servers - set(parsed.tools.servers), now)
        check(before, parsed, settled, agreed_since, servers_since, now)


def agreeing(since: dict[str, float], gone: set[str], now: float) -> dict[str, float]:
    """Since when every read agreed that what is in force is gone: counted here once more, in the simplest way."""
    return {name: since.get(name, now) for name in gone}


def check(
    before: DebouncedState | None, parsed: ParsedFolder, after: DebouncedState | None, models_since: dict[str, float],
    servers_since: dict[str, float], now: float,
) -> None:  # fmt: skip
    if after is None:
        assert before is None
        assert not parsed.is_valid
        return
    assert set(after.declared_models) == set(after.definitions)
    assert set(after.tools.declared_servers) == set(after.tools.servers)
    if not parsed.is_valid:
        assert before is not None
        assert (after.definitions, after.tools) == (before.definitions, before.tools)
        return
    assert after.tools.tools == parsed.tools.tools, "built-in tools come and go at once"
    before, servers = before or DebouncedState({}, {}), set(after.tools.servers)
    for known, declared, in_force, missing, since in (
        (set(before.definitions), set(parsed.definitions), set(after.definitions), set(after.missing), models_since),
        (set(before.tools.servers), set(parsed.tools.servers), servers, set(after.missing_servers), servers_since),
    ):
        confirmed = {name for name, first in since.items() if now - first >= CONFIRM_S}
        assert in_force == (known - confirmed) | declared
        assert missing == in_force - declared
    assert (after.wake_at is None) == (
        not after.missing and not after.missing_servers and after.discover == parsed.discover
    )
    assert after.discover or not parsed.discover
    assert after.wake_at is None or after.wake_at > now
    names = [*after.definitions, *(alias for each in after.definitions.values() for alias in each.aliases)]
    assert len(names) == len(set(names)), "two models have one name"


@settings(max_examples=campaign_count(25, 600))
@given(READS, good_reads())
def test_the_files_have_their_way_when_they_rest(reads: list[tuple[float, ParsedFolder]], last: ParsedFolder) -> None:
    now, settled = 1000.0, None
    for pause, parsed in reads:
        now += pause
        settled = debounce(settled, parsed, now)
    settled = debounce(settled, last, now)
    assert settled is not None
    if settled.wake_at is not None:
        settled = debounce(settled, last, now + CONFIRM_S)
        assert settled is not None
    assert settled == DebouncedState(last.definitions, last.declared_models, tools=last.tools, discover=last.discover)
