"""Properties of resumable streams: whatever is sent, read, stopped, replaced, removed and restarted, in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assistant.streams.registry import OVERHEAD_BYTES, StreamRegistry
from assistant.streams.resumable_streams import recover_streams
from assistant.streams.stream import ResumableStream, StreamState
from assistant.streams.stream_folder import StreamFolder
from contract.errors import RoundhouseError
from tests.support.campaign import campaign_count
from tests.support.outcomes import present

RING_BYTES: Final = 300
MAX_BYTES: Final = 5 * (OVERHEAD_BYTES + RING_BYTES)
TTL_S: Final = 20.0
PATH: Final = "/v1/chat/completions"
LOST: Final = b"data: lost\n\n"
RESTARTED: Final = b"gateway_restarted"

tenants = st.sampled_from(("a", "b"))
ids = st.sampled_from(("x", "x::m", "x::m::n", "y"))
events = st.lists(st.integers(0, 120), min_size=1, max_size=4).map(
    lambda sizes: b"".join(b"data: %b\n\n" % (b"." * size) for size in sizes)
)


@dataclass
class Known:
    """What the model knows of one stream: the bytes that it ever had, and no ring."""

    began_at: float
    sent: bytes = b""
    state: StreamState = StreamState.LIVE
    ended_at: float = 0.0

    @property
    def is_live(self) -> bool:
        """It goes on."""
        return self.state is StreamState.LIVE

    @property
    def kept_at(self) -> int:
        """Offset of the first byte that is kept."""
        if len(self.sent) <= RING_BYTES:
            return 0
        end = self.sent.find(b"\n\n", max(0, len(self.sent) - RING_BYTES - 2)) + 2
        return end if end < len(self.sent) else len(self.sent) - RING_BYTES


@dataclass(eq=False)
class Producer:
    """Stands for the request of a stream: `stop` tells the error, and ends the stream."""

    machine: StreamsMachine
    stream: ResumableStream
    known: Known
    is_loading: bool = False
    client_id: bytes = b""

    def stop(self, error: RoundhouseError) -> None:
        """See StreamProducer."""
        self.machine.append(self.stream, self.known, b"data: %b\n\ndata: [DONE]\n\n" % error.entry.code.encode())
        self.known.state, self.known.ended_at = StreamState.STOPPED, self.machine.now
        self.machine.registry.end_stream(self.stream, StreamState.STOPPED, self.machine.now, self.machine.now)


@dataclass(eq=False)
class Reader:
    """Reads one stream from some offset on."""

    stream: ResumableStream
    known: Known
    began: int
    keeps_up: bool
    """Takes events as they come where it has all before them, as the client of the request does."""
    seen: bytes = b""
    is_awake: bool = True
    is_over: bool = False
    is_lost: bool = False

    def take_events(self, events: bytes, offset: int) -> None:
        """See StreamReader."""
        if self.keeps_up and offset == self.began + len(self.seen):
            self.seen += events
        else:
            self.is_awake = True

    def wake(self) -> None:
        """See StreamReader."""
        self.is_awake = True

    def read_once(self) -> None:
        """Take one step."""
        found, is_end = self.stream.read(self.began + len(self.seen), LOST)
        if is_end:
            self.is_over, self.is_lost = True, bool(found)
            self.stream.readers.discard(self)
        elif not found:
            self.is_awake = False
        else:
            self.seen += found
            assert found.endswith(b"\n")


@dataclass
class Model:
    """The rules, written down once more: streams by tenant and id, and what is in memory."""

    streams: dict[tuple[str, str], Known] = field(default_factory=dict)

    def used_bytes(self) -> int:
        """As the registry counts."""
        sizes = (RING_BYTES if known.is_live else len(known.sent) - known.kept_at for known in self.streams.values())
        return sum(size + OVERHEAD_BYTES for size in sizes)

    def evict(self, wanted: int, spared: Known | None) -> bool:
        """Remove what ended first until `wanted` bytes are free."""
        while self.used_bytes() + wanted > MAX_BYTES:
            ended = [(known.ended_at, key) for key, known in self.streams.items() if not known.is_live]
            ended = [(at, key) for at, key in ended if self.streams[key] is not spared]
            if not ended:
                return False
            del self.streams[min(ended)[1]]
        return True


class StreamsMachine(RuleBasedStateMachine):
    """The registry and the files, against the model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rh-streams"))
        self.now = 1000.0
        self.model = Model()
        self.readers: list[Reader] = []

    @initialize()
    def begin(self) -> None:
        """As a gateway begins, with what is there."""
        self.registry = StreamRegistry(ring_bytes=RING_BYTES, max_bytes=MAX_BYTES, ttl_s=TTL_S)
        self.files = StreamFolder(self.folder, RING_BYTES)
        self.recovered = [each.stream for each in recover_streams(self.files, self.registry, self.now, self.now)]

    def teardown(self) -> None:
        """Leave nothing."""
        self.files.close()
        shutil.rmtree(self.folder)

    def append(self, stream: ResumableStream, known: Known, sent: bytes) -> None:
        """Send events."""
        known.sent += sent
        stream.append(sent)

    def live(self) -> list[tuple[ResumableStream, Known]]:
        """All that go on."""
        found = [(self.registry.find_stream(*key), known) for key, known in self.model.streams.items()]
        return [(stream, known) for stream, known in found if stream is not None and known.is_live]

    @rule(tenant=tenants, name=ids)
    def post(self, tenant: str, name: str) -> None:
        """A request with an id: it replaces, is let in, or is refused."""
        self.now += 1
        previous = self.model.streams.get((tenant, name))
        freed = 0
        if previous is not None:
            freed = OVERHEAD_BYTES + (RING_BYTES if previous.is_live else len(previous.sent) - previous.kept_at)
        fits = self.model.evict(RING_BYTES + OVERHEAD_BYTES - freed, previous)
        try:
            stream = self.registry.open_stream(tenant, name, model="m", path=PATH, request_id="r", now=self.now)
        except RoundhouseError as error:
            _is_full(error)
            assert not fits
            return
        assert fits
        if previous is not None and previous.is_live:
            raise AssertionError("the producer has ended it")
        known = self.model.streams[tenant, name] = Known(self.now)
        stream.producer = Producer(self, stream, known)
        file = present(self.files.new_file(stream, None))
        stream.keep_in_file(file)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), sent=events)
    def generate(self, data: st.DataObject, sent: bytes) -> None:
        """The engine goes on."""
        self.append(*data.draw(st.sampled_from(self.live())), sent)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), state=st.sampled_from((StreamState.DONE, StreamState.CUT)))
    def end(self, data: st.DataObject, state: StreamState) -> None:
        """It comes to its end."""
        self.now += 1
        stream, known = data.draw(st.sampled_from(self.live()))
        self.append(stream, known, b"data: [DONE]\n\n")
        known.state, known.ended_at = state, self.now
        self.registry.end_stream(stream, state, self.now, self.now)

    @rule(tenant=tenants, name=ids, share=st.floats(0, 1), keeps_up=st.booleans())
    def open_reader(self, tenant: str, name: str, share: float, *, keeps_up: bool) -> None:
        """Somebody reads from any byte that is kept."""
        stream, known = self.registry.find_stream(tenant, name), self.model.streams.get((tenant, name))
        if stream is not None and known is not None:
            began = known.kept_at + round(share * (len(known.sent) - known.kept_at))
            reader = Reader(stream, known, began, keeps_up)
            stream.readers.add(reader)
            self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """One reader takes one step."""
        reader = data.draw(st.sampled_from(self.readers))
        if not reader.is_over:
            reader.read_once()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """One reader leaves."""
        reader = data.draw(st.sampled_from(self.readers))
        reader.stream.readers.discard(reader)
        self.readers.remove(reader)

    @rule(tenant=tenants, name=ids)
    def delete(self, tenant: str, name: str) -> None:
        """An explicit stop."""
        self.now += 1
        stream, known = self.registry.find_stream(tenant, name), self.model.streams.get((tenant, name))
        assert (stream is None) == (known is None)
        if stream is None or known is None:
            return
        if known.state in (StreamState.DONE, StreamState.CUT):
            del self.model.streams[tenant, name]
        self.registry.stop_stream(stream)
        assert self.registry.was_removed(tenant, name) == ((tenant, name) not in self.model.streams)

    @rule(later=st.floats(0, TTL_S))
    def collect_garbage(self, later: float) -> None:
        """Time goes on, and what is over goes."""
        self.now += later
        read = {id(reader.known) for reader in self.readers if not reader.is_over}
        for key, known in list(self.model.streams.items()):
            if not known.is_live and known.ended_at + TTL_S <= self.now and id(known) not in read:
                del self.model.streams[key]
        while self.registry.remove_expired(self.now, 2):
            pass

    @rule(torn=st.sampled_from((b"", b"data: to")))
    def kill(self, torn: bytes) -> None:
        """The process dies without a word, perhaps within a write; another one begins."""
        self.now += 1
        self.files.close()
        self.readers.clear()
        self._set_file_times(torn)
        self.begin()
        for key, known in list(self.model.streams.items()):
            if known.is_live and not known.sent:
                del self.model.streams[key]
            elif known.is_live:
                known.state, known.ended_at = StreamState.CUT, self.now
            elif known.ended_at + TTL_S <= self.now:
                del self.model.streams[key]
        for stream in self.recovered:
            known = self.model.streams[stream.tenant, stream.id]
            told = stream.ring.read_all()
            if RESTARTED in told:
                last = told[told.rindex(b'data: {"error"') :]
                if not known.sent.endswith(last):
                    known.sent += last
        self._drop_what_has_no_room()

    def _set_file_times(self, torn: bytes) -> None:
        """What the clock of the files would have said; and a write that was cut."""
        for kept in self.files.list_kept():
            known = self.model.streams[kept.header.tenant, kept.header.id]
            if kept.state is StreamState.LIVE:
                with kept.path.open("ab") as file:
                    file.write(torn)
            os.utime(kept.path, (known.ended_at, known.ended_at))
        self.files.close()

    def _drop_what_has_no_room(self) -> None:
        """Errors at their ends make streams longer: those that ended first may have had no room beside the others."""
        recovered = {(stream.tenant, stream.id) for stream in self.recovered}
        while self.model.used_bytes() > MAX_BYTES:
            del self.model.streams[min((known.ended_at, key) for key, known in self.model.streams.items())[1]]
        for key in set(self.model.streams) - recovered:
            raise AssertionError(f"{key} is lost")

    @invariant()
    def every_stream_is_as_the_model_says(self) -> None:
        for tenant in ("a", "b"):
            for name in ("x", "x::m", "x::m::n", "y"):
                stream, known = self.registry.find_stream(tenant, name), self.model.streams.get((tenant, name))
                assert (stream is None) == (known is None), (tenant, name)
                if stream is not None and known is not None:
                    assert stream.state is known.state
                    assert stream.ring.end_offset == len(known.sent)
                    assert stream.ring.first_offset == known.kept_at
                    assert stream.ring.read_all() == known.sent[known.kept_at :]

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.registry.used_bytes == self.model.used_bytes() <= MAX_BYTES
        live = sum(known.is_live for known in self.model.streams.values())
        assert (self.registry.live_count, self.registry.ended_count) == (live, len(self.model.streams) - live)

    @invariant()
    def nobody_is_told_of_others(self) -> None:
        for tenant in ("a", "b"):
            found = self.registry.find_variants(tenant, "x")
            own = {name for owner, name in self.model.streams if owner == tenant and name.split("::")[0] == "x"}
            assert [stream.id for stream in found] == sorted(own)
            assert all(stream.tenant == tenant for stream in found)

    @invariant()
    def each_reader_has_a_part_of_its_stream(self) -> None:
        for reader in self.readers:
            end = reader.began + len(reader.seen)
            assert reader.seen == reader.known.sent[reader.began : end]
            if reader.is_over and not reader.is_lost:
                assert end == len(reader.known.sent), "an end that is none"
            if not (reader.is_awake or reader.is_over):
                assert end == len(reader.known.sent), "it sleeps, and there is more"

    @invariant()
    def files_hold_what_is_kept_and_nothing_else(self) -> None:
        paths = [path for path in (self.folder / "streams").glob("*") if path.name != "lock"]
        begun = [known for known in self.model.streams.values() if known.sent]
        assert len(paths) == len(begun)
        for path in paths:
            assert path.stat().st_size <= 2 * RING_BYTES + 700
            assert path.stat().st_mode & 0o777 == 0o600


def _is_full(error: RoundhouseError) -> None:
    assert error.entry.code == "streams_full"


TestStreams = StreamsMachine.TestCase
TestStreams.settings = settings(max_examples=campaign_count(25, 1_500), stateful_step_count=50)
