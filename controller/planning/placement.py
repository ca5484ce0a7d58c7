"""Placing replicas on hosts, on their GPUs and in their main memory. Pure.

A replica's GPUs lie on one host. Invariants: the claims on a GPU never exceed its memory, nor those on main memory what
engines may take of it. For a GPU that shares main memory, both claims count together. A replica whose need of GPU
memory is unknown shares its GPUs with no other. A replica on GPUs also claims main memory, where its need is known. One
replica per GPU loads or stops at a time, because engines size themselves by the memory that is free then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from controller.hosts import Gpu, GpuProcess, Host, HostState, UnreadGpu, is_memory_key
from controller.planning.actions import WAITING_FOR_ROOM
from controller.planning.hosts import find_file_sources
from controller.state import (
    DesiredModel,
    Failure,
    FetchKey,
    ObservedReplica,
    ObservedState,
    OpKind,
    Phase,
    PreflightKey,
    PullKey,
    ReplicaKey,
    Requirement,
)

RELEASE_S: Final = 60.0
"""Seconds that memory of an ended engine may still be in use before that counts as a failure."""
FOREIGN_USE: Final = 0.1
"""Share of a GPU's memory that other processes may use while the GPU counts as empty for a replica of unknown need."""
_UNKNOWN: Final = Requirement()
NAMED = 3
"""Maximum number of processes that a reason names; the others are counted."""


def advise_smaller(change: str) -> str:
    """Return what to do about a model that takes more memory than there is. `change`: what to change in its
    definition, as a command."""
    return f"{change}, or take a smaller model"


@dataclass(slots=True)
class ClaimLedger:
    """Claims on GPUs and main memory, as they add up while one plan is made. All sizes are MiB.

    A claim is the memory that one replica reserves. The ledger checks nothing: claims may exceed the memory.
    """

    claimed_mib: dict[str, int] = field(default_factory=dict)
    """GPU uuid, or `memory_key` of a host, to claimed MiB."""
    busy_replicas: dict[str, str] = field(default_factory=dict)
    """GPU uuid to the name of the replica that loads or stops there."""
    released_mib: dict[str, int] = field(default_factory=dict)
    """GPU uuid to the MiB still in use by replicas that this ledger counts as gone."""
    models_by_gpu: dict[str, set[str]] = field(default_factory=dict)
    """GPU uuid to the names of models with a replica there."""
    unified_gpus: Mapping[str, str] = field(default_factory=dict)
    """Uuids of GPUs that share main memory, to the key of that memory."""
    leaving: tuple[ObservedReplica, ...] = ()
    """Replicas whose claims this ledger has and that are about to end. `place_or_wait` waits for their room."""
    sleepers: dict[str, ObservedReplica] = field(default_factory=dict)
    """Sleeping replicas whose claims are in the ledger, by name."""
    waits_for_busy: bool = True
    """Whether there is no room on a busy GPU. False: the ledger says where room will be, whoever loads there now."""
    replica_counts: dict[str, int] = field(default_factory=dict)
    """Host to the number of replicas there. A host without a name is left out."""
    hosts_by_model: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Model to the host of each of its replicas. A host without a name is left out."""

    @classmethod
    def of(cls, observed: ObservedState) -> ClaimLedger:
        """Return a new ledger with the claims of all running replicas, of created ones with an operation under way, and
        of started ones that are not observed yet. Ended replicas, and created ones without an operation, claim nothing.
        A replica that was never ready, or has an operation under way, keeps its GPUs busy."""
        ledger = cls(unified_gpus=unified_keys(observed.hosts))
        seen_names = set()
        # In the order of their names, so that whoever counts as busy is the same in whatever order they were seen.
        for replica in sorted(observed.replicas, key=lambda each: each.name):
            seen_names.add(replica.name)
            operation = observed.pending.get(replica.name)
            if replica.phase is Phase.EXITED or (replica.phase is Phase.CREATED and operation is None):
                continue
            is_unsettled = replica.ready_since is None or operation is not None
            claims = replica.claims if operation is None else booked_claims(replica, observed)
            busy_with = replica.name if is_unsettled else None
            ledger.add_claims(claims, model=replica.id.model, host=replica.host, busy_with=busy_with)
            if replica.sleep is not None and replica.is_asleep and operation is None and replica.silent is None:
                ledger.sleepers[replica.name] = replica
        for name, operation in sorted(observed.pending.items()):
            if name not in seen_names and operation.kind is OpKind.START:
                ledger.add_claims(operation.claims, model=operation.id.model, host=operation.host, busy_with=name)
        return ledger

    def add_claims(
        self, claims: Mapping[str, int], *, model: str | None = None, host: str = "", busy_with: str | None = None
    ) -> None:
        """Add a replica's claims, MiB by GPU uuid or `memory_key`, without a check whether they fit.

        `model`: None leaves `models_by_gpu` and the counts alone. `host`: where the replica runs. `busy_with`: the
        replica's name, if it loads or stops and its GPUs are busy with that; None: they are not.
        """
        if model is not None and host:
            self.replica_counts[host] = self.replica_counts.get(host, 0) + 1
            self.hosts_by_model[model] = (*self.hosts_by_model.get(model, ()), host)
        for uuid, mib in claims.items():
            self.claimed_mib[uuid] = self.claimed_mib.get(uuid, 0) + mib
            if model is not None:
                self.models_by_gpu.setdefault(uuid, set()).add(model)
            if busy_with is not None and not is_memory_key(uuid):
                self.busy_replicas[uuid] = busy_with

    def book_wake(self, replica: ObservedReplica, claims: Mapping[str, int]) -> None:
        """Put the claims of a replica that wakes in the place of those that it has asleep, and its GPUs are busy."""
        if self.sleepers.pop(replica.name, None) is not None:
            for uuid, mib in replica.claims.items():
                self.claimed_mib[uuid] -= mib
        self.add_claims(claims, model=replica.id.model, host=replica.host, busy_with=replica.name)

    def claimed_on(self, key: str) -> int:
        """Return the MiB claimed of a GPU (by uuid) or of main memory (by `memory_key`); 0 for an unknown key.

        Main memory and all GPUs that share it (`unified_gpus`) count as one: each key returns the sum of their claims.
        """
        return self._sum_mib(self.claimed_mib, key)

    def released_on(self, key: str) -> int:
        """Return the MiB still in use, by replicas that this ledger counts as gone, of a GPU (by uuid) or of main
        memory. Main memory and GPUs that share it count as one, as in `claimed_on`."""
        return self._sum_mib(self.released_mib, key)

    def _sum_mib(self, mib_by_key: Mapping[str, int], key: str) -> int:
        """Sum over `key` and whatever is the same memory."""
        if not self.unified_gpus or not is_memory_key(memory := self.unified_gpus.get(key, key)):
            return mib_by_key.get(key, 0)
        sharing = (mib_by_key.get(uuid, 0) for uuid, shared in self.unified_gpus.items() if shared == memory)
        return mib_by_key.get(memory, 0) + sum(sharing)

    def find_busy_neighbour(self, replica: ObservedReplica) -> str | None:
        """Return the name of another replica that loads or stops on one of the GPUs that `replica` claims; None: there
        is none. Only the last one booked on each GPU is known."""
        others = (self.busy_replicas.get(uuid, replica.name) for uuid in replica.claims)
        return next((name for name in others if name != replica.name), None)

    def copy_without(self, claims: Iterable[Mapping[str, int]]) -> ClaimLedger:
        """Return an independent copy without the given claims, whose memory counts as still in use (`released_mib`).

        `copy_without(())` copies all. The names of busy replicas and of models stay as they are.
        """
        models = {uuid: set(names) for uuid, names in self.models_by_gpu.items()}
        copy = ClaimLedger(
            dict(self.claimed_mib),
            dict(self.busy_replicas),
            dict(self.released_mib),
            models,
            self.unified_gpus,
            self.leaving,
            dict(self.sleepers),
            self.waits_for_busy,
            dict(self.replica_counts),
            dict(self.hosts_by_model),
        )
        for each in claims:
            for uuid, mib in each.items():
                copy.claimed_mib[uuid] = copy.claimed_mib.get(uuid, 0) - mib
                copy.released_mib[uuid] = copy.released_mib.get(uuid, 0) + mib
        return copy

    def copy_without_replicas(self, replicas: Collection[ObservedReplica], observed: ObservedState) -> ClaimLedger:
        """Return an independent copy without the claims of these replicas, whose memory counts as still in use
        (`released_mib`): on a GPU the MiB that the driver reports for the replica, else an estimate that is at least
        its claim; of main memory its claim. They are not among the `leaving` of the copy."""
        copy = self.copy_without(())
        copy.leaving = tuple(each for each in self.leaving if each not in replicas)
        for replica in replicas:
            copy.sleepers.pop(replica.name, None)
            for uuid, mib in booked_claims(replica, observed).items():
                copy.claimed_mib[uuid] = copy.claimed_mib.get(uuid, 0) - mib
        for replica in replicas:
            for uuid, mib in booked_claims(replica, observed).items():
                held_mib = self._held_mib(replica, uuid, mib, observed)
                copy.released_mib[uuid] = copy.released_mib.get(uuid, 0) + held_mib
        return copy

    def copy_as_promised(self, leaving: Collection[ObservedReplica], observed: ObservedState) -> ClaimLedger:
        """Return an independent copy that says where room will be: without the claims of the replicas that are
        `leaving`, with the memory of GPUs that an engine left less than 60 s (`RELEASE_S`) ago counted as released, and
        with no GPU busy."""
        copy = self.copy_without_replicas(leaving, observed)
        copy.waits_for_busy = False
        for gpu in observed.gpus or ():
            if observed.at - observed.left_at.get(gpu.uuid, -RELEASE_S) < RELEASE_S:
                copy.released_mib[gpu.uuid] = max(gpu.used_mib, copy.released_mib.get(gpu.uuid, 0))
        return copy

    def _held_mib(self, replica: ObservedReplica, uuid: str, claim_mib: int, observed: ObservedState) -> int:
        gpu = next((gpu for gpu in observed.gpus or () if gpu.uuid == uuid), None)
        if gpu is None:
            return claim_mib
        known_mibs = [each.mib for each in gpu.processes or () if each.replica == replica.name and each.mib is not None]
        operation = observed.pending.get(replica.name)
        is_ending = operation is not None and not operation.kind.is_coming
        if known_mibs and is_ending and uuid not in self.unified_gpus:
            # Its processes end one after the other, and each is gone from the list before its memory is free.
            others_mib = sum(each.mib or 0 for each in gpu.processes or () if each.replica != replica.name)
            return max(sum(known_mibs), min(claim_mib, gpu.used_mib - others_mib))
        if known_mibs:
            return sum(known_mibs)
        if uuid in self.unified_gpus:
            return claim_mib  # the rest of main memory is the whole host's
        # What nobody else has claimed is most likely its own.
        return max(claim_mib, gpu.used_mib - (self.claimed_mib.get(uuid, 0) - claim_mib))


@dataclass(frozen=True, slots=True)
class Placement:
    """The host, GPUs and memory for one replica. `claims`: MiB to reserve, by GPU uuid and the host's `memory_key`,
    which is left out where the need of main memory is unknown. Nothing is reserved until the claims are added to a
    ledger."""

    claims: Mapping[str, int]
    sleeper: ObservedReplica | None = None
    """The replica to wake there. None means that one is started."""
    host: str = ""
    """Name of the host, as in `Host.name`."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why a replica cannot be placed now. `waiting`: it may be later without an edit or an eviction: once others have
    loaded, stopped or released memory, a host answers again or can read its GPUs again, or a backoff is over. False:
    nothing that is under way makes room for it; so, too, where a host can read some of its GPUs and not all."""

    reason: str
    waiting: bool = False
    is_releasing: bool = field(default=False, compare=False)
    """Whether all that is missing is memory in use that an engine left less than 60 s (`RELEASE_S`) ago."""
    is_busy: bool = field(default=False, compare=False)
    """Whether there is room, on a GPU where another replica loads or stops."""


@dataclass(frozen=True, slots=True)
class StartHistory:
    """The failures of earlier starts, preflights, image pulls and copies of one replica's model, host by host: which
    hosts they bar, and which they make a second choice. `now`: Unix time in seconds. `recheck_s`: see
    `PreflightResult.is_fresh`. `failed_keys`: replicas whose failure this plan reports, and the observation lacks."""

    model: DesiredModel
    index: int
    observed: ObservedState
    now: float
    recheck_s: float
    failed_keys: Collection[ReplicaKey] = ()

    def bars_host(self, host: str) -> bool:
        """Return whether a start on the host is not tried: it has just failed there, or its backoff runs there."""
        if not self.failed_keys and not self.observed.failures:
            return False
        key = ReplicaKey(self.model.name, self.index, self.model.spec_hash, host)
        failure = self.observed.failures.get(key)
        return key in self.failed_keys or (failure is not None and failure.must_wait(self.now))

    def avoids_host(self, host: str) -> bool:
        """Return whether the host is left out while there is another one that is neither barred nor avoided: the
        preflight, the pull of its image or the copy of its files has failed there."""
        key = FetchKey(self.model.name, self.model.spec_hash, host)
        fetch = self.observed.fetches.get(key) if self.observed.fetches else None
        if fetch is not None and fetch.must_wait(self.now):
            return True
        result = self.observed.preflights.get(PreflightKey(self.model.name, self.model.spec_hash, host))
        if result is None or result.ok:
            return False
        if result.missing_image is None:
            found = self.observed.find_host(host)
            is_copied = found is not None and find_file_sources(self.model.name, found, self.observed)
            return not is_copied and result.is_fresh(self.now, self.recheck_s)  # it is checked anew after the copy
        pull = self.observed.pulls.get(PullKey(result.missing_image, host))
        return pull is not None and pull.must_wait(self.now)


def place_or_wait(
    model: DesiredModel, observed: ObservedState, ledger: ClaimLedger, history: StartHistory | None = None
) -> Placement | NoRoom:
    """Find GPUs and main memory as `place_replica` does. Where there is no room, and there will be once the replicas of
    `ledger.leaving` have ended and their memory is free, the `NoRoom` is `waiting`, and its reason names them."""
    placement = place_replica(model, observed, ledger, history)
    if isinstance(placement, Placement) or placement.waiting or not ledger.leaving:
        return placement
    promised = place_replica(model, observed, ledger.copy_as_promised(ledger.leaving, observed), history)
    if isinstance(promised, NoRoom) and not promised.waiting:
        return placement
    return NoRoom(explain_leaving(ledger.leaving), waiting=True)


def explain_never_fits(model: DesiredModel, observed: ObservedState) -> str | None:
    """Return, as the second half of a sentence, why a replica of the model has no room on any host whatever is
    unloaded: what it needs, what there is, and what to do. None: it has room, or its memory or some GPU is not known.
    Of `observed`, what runs and is in use does not count, nor whether a host answers now."""
    is_unread = any(host.gpus is None or host.unread_gpus for host in observed.hosts)
    if model.gpu_count and (is_unread or not observed.gpus):
        return None
    hosts = tuple(replace(host, state=HostState.READY) for host in free_hosts(observed.hosts))
    ledger = ClaimLedger(unified_gpus=unified_keys(hosts))
    placement = place_replica(model, replace(observed, hosts=hosts), ledger)
    return placement.reason if isinstance(placement, NoRoom) and not placement.waiting else None


def free_hosts(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts as they would be with no GPU memory in use, without what changes all the time."""
    return tuple(
        replace(
            host,
            last_heard=None,
            models_free_mib=None,
            gpus=host.gpus and tuple(replace(gpu, used_mib=0, processes=None) for gpu in host.gpus),
        )
        for host in hosts
    )


def unified_keys(hosts: Iterable[Host]) -> dict[str, str]:
    """Return the uuids of the GPUs that share main memory, to the key of that memory."""
    return {uuid: host.memory_key for host in hosts for uuid in host.unified_gpus}


def booked_claims(replica: ObservedReplica, observed: ObservedState) -> Mapping[str, int]:
    """Return what a ledger of this observation books for the replica, as its claims: while it falls asleep or
    wakes, and until an observation that began after that, the claims of that operation."""
    operation = observed.pending.get(replica.name)
    if operation is not None and operation.kind in (OpKind.SLEEP, OpKind.WAKE):
        return operation.claims
    return replica.claims


def explain_leaving(replicas: Iterable[ObservedReplica]) -> str:
    """Return the reason of a model that waits for the room of these replicas."""
    names = sorted({each.id.model for each in replicas})
    return f"{WAITING_FOR_ROOM}: {' and '.join(names) or 'others'} {'is' if len(names) == 1 else 'are'} ending"


def find_backoff(model: DesiredModel, index: int, observed: ObservedState, now: float) -> Failure | None:
    """Return the failure that keeps the replica at `index` from starting now: of those on the hosts that it may use the
    one whose next attempt is due first. None: on some host it may be tried, or there is no such host."""
    if not observed.failures:
        return None
    failures = []
    for host in usable_hosts(model, observed):
        failure = observed.failures.get(ReplicaKey(model.name, index, model.spec_hash, host.name))
        if failure is None or not failure.must_wait(now):
            return None
        failures.append(failure)
    return min(failures, key=lambda each: inf if each.retry_at is None else each.retry_at, default=None)


def usable_hosts(model: DesiredModel, observed: ObservedState) -> tuple[Host, ...]:
    """Return the hosts on which a replica of the model may be started now: those that are ready, and that `hosts`
    names where it is declared."""
    ready, choice = HostState.READY, model.hosts
    # A list, because a generator takes twice as long, and this is asked for each start.
    return tuple([host for host in observed.hosts if host.state is ready and (not choice or host.is_named_by(choice))])


def place_replica(
    model: DesiredModel, observed: ObservedState, ledger: ClaimLedger, history: StartHistory | None = None
) -> Placement | NoRoom:
    """Find a host, GPUs and main memory for one replica of the model, beside the claims in `ledger`.

    `ledger` is not changed: the caller books the claims with `add_claims`. Returns `NoRoom`, and raises nothing, where
    there is no room, no such GPU, the GPUs cannot be read now, or another replica loads or stops on a chosen GPU.

    The host with the fewest replicas of the model comes first, then one that has the files, then the best fit, of those
    that `history` does not bar or avoid (None: it knows nothing). Best fit of a host's GPUs: those where nothing loads
    or stops come first, then GPUs without another replica of the model, then those with the least room that is still
    enough.
    """
    hosts = usable_hosts(model, observed)
    if not hosts:
        return _explain_no_host(model, observed)
    requirement = requirement_of(model, observed)
    if len(observed.hosts) == 1:
        return _place_on_host(model, hosts[0], requirement, observed, ledger)
    if model.gpu_choice and (reason := _explain_ambiguous(model, observed.hosts)) is not None:
        return NoRoom(reason)
    result = _place_on_best_host(model, hosts, requirement, observed, ledger)
    if history is None:
        return result
    # Most starts have no history, so that only the best host is looked up first.
    if isinstance(result, Placement) and not (history.bars_host(result.host) or history.avoids_host(result.host)):
        return result
    tried_hosts = [host for host in hosts if not history.bars_host(host.name)]
    if not tried_hosts:
        return NoRoom("it has failed on every host that it may use, and waits", waiting=True)
    tried_hosts = [host for host in tried_hosts if not history.avoids_host(host.name)] or tried_hosts
    if len(tried_hosts) == len(hosts):
        return result
    return _place_on_best_host(model, tried_hosts, requirement, observed, ledger)


def _place_on_best_host(
    model: DesiredModel, hosts: Sequence[Host], requirement: Requirement, observed: ObservedState, ledger: ClaimLedger
) -> Placement | NoRoom:
    if len(hosts) == 1:
        return _place_on_host(model, hosts[0], requirement, observed, ledger)
    placed = ledger.hosts_by_model.get(model.name, ())
    if not model.gpu_count and requirement.host_mib is None:  # every host has room for it
        counts = ledger.replica_counts
        ranks = [_rank_host(model, host, placed, counts.get(host.name, 0)) for host in hosts]
        return Placement({}, host=min(ranks)[-1])
    results = [(host, _place_on_host(model, host, requirement, observed, ledger)) for host in hosts]
    ranked = sorted(
        (_rank_host(model, host, placed, _room_left(host, result, ledger), isinstance(result, NoRoom)), number)
        for number, (host, result) in enumerate(results)
        if isinstance(result, Placement) or result.is_busy
    )
    if ranked:
        return results[ranked[0][1]][1]
    refusals = [(host, result) for host, result in results if isinstance(result, NoRoom)]
    # A host whose GPUs cannot be read keeps nobody from making room on another.
    told = [result for host, result in refusals if host.gpus is not None or not model.gpu_count]
    return NoRoom(
        "; ".join(f"{host.title}: {result.reason}" for host, result in refusals),
        waiting=any(result.waiting for result in told) if told else True,
        is_releasing={result.is_releasing for _, result in refusals if result.waiting} == {True},
    )


def _rank_host(
    model: DesiredModel, host: Host, placed: Sequence[str], room: int, is_busy: bool = False
) -> tuple[int, bool, bool, int, str]:
    """Return the sort key of a host on which a replica of the model has room; the least is chosen. `placed`: host of
    each replica of the model; `room`: see `_room_left`."""
    return placed.count(host.name), model.name in host.missing_models, is_busy, room, host.name


def _room_left(host: Host, result: Placement | NoRoom, ledger: ClaimLedger) -> int:
    """Return the MiB that are free where the replica would run; the number of all replicas of the host, which is then
    the best measure, if nobody knows what it takes."""
    claims = result.claims if isinstance(result, Placement) else {}
    gpus = [gpu for gpu in host.gpus or () if gpu.uuid in claims]
    if gpus:
        return sum(_free_mib(gpu, ledger) for gpu in gpus)
    if claims and host.memory_mib is not None:
        return host.memory_mib - ledger.claimed_on(host.memory_key)
    return ledger.replica_counts.get(host.name, 0)


def _explain_no_host(model: DesiredModel, observed: ObservedState) -> NoRoom:
    named = [host for host in observed.hosts if host.is_named_by(model.hosts)]
    if named:
        reasons = [f"{host.title} is {host.state}" + (f": {host.reason}" if host.reason else "") for host in named]
        return NoRoom("; ".join(reasons), waiting=any(host.state is HostState.SILENT for host in named))
    wanted = ", ".join(model.hosts)
    if len(observed.hosts) == 1 and not observed.hosts[0].name:
        return NoRoom(f"`hosts` names {wanted}, and this is the only host, which has no name: take `hosts` out")
    names = ", ".join(host.name for host in observed.hosts)
    return NoRoom(f"`hosts` names {wanted}, and no host has that name or label: write one of {names}")


def _explain_ambiguous(model: DesiredModel, hosts: Collection[Host]) -> str | None:
    """Return why a GPU of `gpu_choice` is not clear: its index alone is written, and several hosts have it that the
    model may use, whether or not they answer now."""
    named = [host for host in hosts if host.state is not HostState.REFUSED and host.is_named_by(model.hosts)]
    for name in model.gpu_choice:
        labels = [gpu.label for host in named for gpu in host.gpus or () if gpu.bare_label == name]
        if len(labels) > 1:
            return f"`gpus` names GPU {name}, which several hosts have: write {' or '.join(labels)}"
    return None


def _place_on_host(
    model: DesiredModel, host: Host, requirement: Requirement, observed: ObservedState, ledger: ClaimLedger
) -> Placement | NoRoom:
    host_claims = _claim_main_memory(model, requirement, host, ledger)
    if model.gpu_count == 0:
        return host_claims if isinstance(host_claims, NoRoom) else Placement(host_claims, host=host.name)
    if host.gpus is None:
        return NoRoom("the GPUs cannot be read now, so nothing is placed on them", waiting=True)
    placement = _place_on_gpus(model, host, host.gpus, requirement, host_claims, observed, ledger)
    if isinstance(placement, Placement) or placement.waiting:
        return placement
    unread_gpus = [gpu for gpu in host.unread_gpus if not model.gpu_choice or _is_chosen(model, gpu)]
    return NoRoom("; ".join([placement.reason, *(gpu.description for gpu in unread_gpus)]))


def _place_on_gpus(
    model: DesiredModel,
    host: Host,
    gpus: tuple[Gpu, ...],
    requirement: Requirement,
    host_claims: dict[str, int] | NoRoom,
    observed: ObservedState,
    ledger: ClaimLedger,
) -> Placement | NoRoom:
    if model.gpu_count > len(gpus):
        return NoRoom(f"needs {_gpu_count_text(model.gpu_count)}, {host.title} has {len(gpus) or 'none'}")
    allowed_gpus = _allowed_gpus(model, host, gpus)
    if isinstance(allowed_gpus, NoRoom):
        return allowed_gpus
    fitting_gpus = sorted(
        (gpu for gpu in allowed_gpus if _fits(requirement, gpu, ledger)),
        key=lambda gpu: (
            gpu.uuid in ledger.busy_replicas,
            model.name in ledger.models_by_gpu.get(gpu.uuid, ()),
            _free_mib(gpu, ledger),
            gpu.label,
        ),
    )
    if len(fitting_gpus) < model.gpu_count:
        return _explain_no_room(model, requirement, allowed_gpus, observed, ledger)
    if isinstance(host_claims, NoRoom):
        return host_claims
    chosen_gpus = sorted(fitting_gpus[: model.gpu_count], key=lambda gpu: gpu.index)
    for gpu in chosen_gpus:
        if ledger.waits_for_busy and gpu.uuid in ledger.busy_replicas:
            busy_with = ledger.busy_replicas[gpu.uuid]
            return NoRoom(f"GPU {gpu.label} is busy with {busy_with}", waiting=True, is_busy=True)
    gpu_claims = {}
    for gpu in chosen_gpus:
        mib = requirement.mib_on_gpu(gpu)
        gpu_claims[gpu.uuid] = gpu.total_mib - _own_host_mib(requirement, gpu, ledger) if mib is None else mib
    return Placement(gpu_claims | host_claims, host=host.name)


def place_sleeper(replica: ObservedReplica, observed: ObservedState, ledger: ClaimLedger) -> Placement | NoRoom:
    """Find the room that a sleeping replica needs awake, which is on its own GPUs, beside the claims of the others in
    `ledger`. Nothing is booked, and nothing is raised."""
    assert replica.sleep is not None, "only a replica that can sleep is placed again"
    claims = replica.sleep.awake_claims
    beside = ledger.copy_without_replicas([replica], observed) if replica.name in ledger.sleepers else ledger
    reason = find_shortage(claims, observed, beside)
    if reason is not None:
        left_s = (observed.at - observed.left_at.get(uuid, -RELEASE_S) for uuid in claims if not is_memory_key(uuid))
        unused = replace(observed, hosts=free_hosts(observed.hosts))
        is_releasing = any(each < RELEASE_S for each in left_s) and find_shortage(claims, unused, beside) is None
        host = observed.find_host(replica.host)
        is_unread = host is None or host.gpus is None or any(gpu.uuid in claims for gpu in host.unread_gpus)
        return NoRoom(reason, waiting=is_unread or is_releasing, is_releasing=is_releasing)
    busy = next((beside.busy_replicas[uuid] for uuid in claims if uuid in beside.busy_replicas), None)
    if ledger.waits_for_busy and busy is not None:
        return NoRoom(f"its GPU is busy with {busy}", waiting=True)
    return Placement(claims, replica, replica.host)


def find_shortage(claims: Mapping[str, int], observed: ObservedState, ledger: ClaimLedger) -> str | None:
    """Return why these claims of one replica, MiB by GPU uuid or `memory_key`, have no room beside those in `ledger`;
    None: they have."""
    gpus = {gpu.uuid: gpu for gpu in observed.gpus or ()}
    main_memory_mib = next((mib for key, mib in claims.items() if is_memory_key(key)), 0)
    for host in observed.hosts:
        claimed_mib = ledger.claimed_on(host.memory_key)
        mib = claims.get(host.memory_key, None if host.name else 0)
        if mib is not None and host.memory_mib is not None and claimed_mib + mib > host.memory_mib:
            free_mib = max(0, host.memory_mib - claimed_mib)
            return f"needs {mib} MiB of main memory; free: {free_mib} of {host.memory_mib} MiB"
    for uuid, mib in claims.items():
        if is_memory_key(uuid):
            continue
        if uuid not in gpus:
            return "a GPU on which it sleeps cannot be read"
        needed_mib = mib + (main_memory_mib if uuid in ledger.unified_gpus else 0)
        if _free_mib(gpus[uuid], ledger) < needed_mib:
            gpu = gpus[uuid]
            free_mib = max(0, _free_mib(gpu, ledger))
            return f"needs {needed_mib} MiB; free: GPU {gpu.label} has {free_mib} of {gpu.total_mib} MiB"
    return None


def requirement_of(model: DesiredModel, observed: ObservedState) -> Requirement:
    """Return the memory in MiB that a replica of the model needs: as the model declares it (`vram_mib`, `memory_mib`),
    else as `observed.requirements` has it.

    A field is None where nothing is known. An engine takes its share of a GPU (`gpu_share`) also where `vram_mib` is
    declared; the larger of both counts, see `Requirement.mib_on_gpu`.
    """
    requirement = observed.requirements.get(model.name, _UNKNOWN)
    if model.vram_mib is not None:
        requirement = replace(requirement, per_gpu_mib=model.vram_mib)
    return requirement if model.memory_mib is None else replace(requirement, host_mib=model.memory_mib)


def _claim_main_memory(
    model: DesiredModel, requirement: Requirement, host: Host, ledger: ClaimLedger
) -> dict[str, int] | NoRoom:
    needed_mib = requirement.host_mib
    if needed_mib is None:
        return {}
    total_mib = host.memory_mib
    if total_mib is not None and ledger.claimed_on(host.memory_key) + needed_mib > total_mib:
        free_mib = max(0, total_mib - ledger.claimed_on(host.memory_key))
        reason = f"needs {needed_mib} MiB of main memory; free: {free_mib} of the {total_mib} MiB that engines may take"
        if needed_mib > total_mib:
            change = "declare a smaller context" if model.memory_mib is None else "lower `memory_mib`"
            change += ", raise ROUNDHOUSE_ENGINES_MEMORY_MIB" if host.is_memory_limited else ""
            reason = f"{reason}: {advise_smaller(change)}"
        return NoRoom(reason)
    return {host.memory_key: needed_mib}


def _allowed_gpus(model: DesiredModel, host: Host, gpus: tuple[Gpu, ...]) -> list[Gpu] | NoRoom:
    allowed_gpus = _chosen_gpus(model, host, gpus)
    if isinstance(allowed_gpus, NoRoom) or model.gpu_count == 1:
        return allowed_gpus
    whole_gpus = [gpu for gpu in allowed_gpus if gpu.mig is None]
    if len(whole_gpus) < model.gpu_count <= len(allowed_gpus):
        # CUDA shows a process one instance at most.
        return NoRoom(f"needs {_gpu_count_text(model.gpu_count)} as wholes, and those here are MIG instances")
    return whole_gpus


def _chosen_gpus(model: DesiredModel, host: Host, gpus: tuple[Gpu, ...]) -> list[Gpu] | NoRoom:
    if not model.gpu_choice:
        return list(gpus)
    by_name = {name: gpu for gpu in gpus for name in gpu.names}
    missing_names = [name for name in model.gpu_choice if name not in by_name]
    absent_names = [name for name in missing_names if not any(_names_gpu(name, gpu) for gpu in host.unread_gpus)]
    if absent_names:
        return NoRoom(f"{host.title} has no GPU {', '.join(absent_names)}")
    if missing_names:
        return NoRoom("not every GPU that `gpus` names can be used")
    return list({by_name[name].uuid: by_name[name] for name in model.gpu_choice}.values())


def _is_chosen(model: DesiredModel, gpu: UnreadGpu) -> bool:
    return any(_names_gpu(name, gpu) for name in model.gpu_choice)


def _names_gpu(name: str, gpu: UnreadGpu) -> bool:
    # While a GPU in MIG mode does not answer, nobody knows of its instances.
    return bool({name, name.partition(":")[0]} & {gpu.uuid, gpu.label, gpu.bare_label})


def _free_mib(gpu: Gpu, ledger: ClaimLedger) -> int:
    # Memory that is used and not claimed belongs to others, or to an engine that is gone and has not released it yet.
    if not ledger.unified_gpus:  # as below, in a third of the time: it is asked of each GPU for each start
        foreign_mib = gpu.used_mib - ledger.released_mib.get(gpu.uuid, 0)
        return gpu.total_mib - max(ledger.claimed_mib.get(gpu.uuid, 0), foreign_mib, 0)
    return gpu.total_mib - max(ledger.claimed_on(gpu.uuid), _foreign_used_mib(gpu, ledger))


def _foreign_used_mib(gpu: Gpu, ledger: ClaimLedger) -> int:
    return max(0, gpu.used_mib - ledger.released_on(gpu.uuid))


def _needed_mib(requirement: Requirement, gpu: Gpu, ledger: ClaimLedger) -> int | None:
    """Return the MiB that must be free on the GPU; None: not known."""
    mib = requirement.mib_on_gpu(gpu)
    return None if mib is None else mib + _own_host_mib(requirement, gpu, ledger)


def _own_host_mib(requirement: Requirement, gpu: Gpu, ledger: ClaimLedger) -> int:
    """Return the MiB that the replica takes of this GPU's memory as main memory; 0 unless the GPU shares it."""
    return (requirement.host_mib or 0) if gpu.uuid in ledger.unified_gpus else 0


def _fits(requirement: Requirement, gpu: Gpu, ledger: ClaimLedger) -> bool:
    mib = _needed_mib(requirement, gpu, ledger)
    if mib is not None:
        return _free_mib(gpu, ledger) >= mib
    return not ledger.claimed_on(gpu.uuid) and _foreign_used_mib(gpu, ledger) <= gpu.total_mib * FOREIGN_USE


def _explain_no_room(
    model: DesiredModel,
    requirement: Requirement,
    allowed_gpus: list[Gpu],
    observed: ObservedState,
    ledger: ClaimLedger,
) -> NoRoom:
    reason = _shortage_text(model, requirement, allowed_gpus, ledger)
    promised_gpus = [gpu for gpu in allowed_gpus if _fits(requirement, replace(gpu, used_mib=0), ledger)]
    if len(promised_gpus) < model.gpu_count:
        return NoRoom(reason)
    running_names = {replica.name for replica in observed.replicas if replica.phase is Phase.RUNNING}
    gpu_holders = [
        (gpu, holders_of(gpu, running_names, expected_mib=ledger.claimed_on(gpu.uuid))) for gpu in promised_gpus
    ]
    holder_text = "; ".join(f"GPU {gpu.label}: {holder}" for gpu, holder in gpu_holders if holder is not None)
    coming_gpus = [
        gpu
        for gpu in promised_gpus
        if observed.at - observed.left_at.get(gpu.uuid, -RELEASE_S) < RELEASE_S or _fits(requirement, gpu, ledger)
    ]
    is_overdue = len(coming_gpus) < model.gpu_count
    return NoRoom(
        f"{reason}; memory that nobody claims is held by {holder_text}" if holder_text else reason,
        waiting=not is_overdue,
        is_releasing=not is_overdue,
    )


def _shortage_text(model: DesiredModel, requirement: Requirement, allowed_gpus: list[Gpu], ledger: ClaimLedger) -> str:
    count = model.gpu_count
    rooms = ", ".join(
        f"GPU {gpu.label} has {max(0, _free_mib(gpu, ledger))} of {gpu.total_mib} MiB" for gpu in allowed_gpus
    )
    needed_mib = {gpu.uuid: mib for gpu in allowed_gpus if (mib := _needed_mib(requirement, gpu, ledger)) is not None}
    if not needed_mib:
        return f"needs {_gpu_count_text(count)} of its own, for what it takes is not known (`vram_mib`); free: {rooms}"
    share_text = (
        "" if requirement.gpu_share is None else f", {requirement.gpu_share:.0%} of the largest".replace("%", " %")
    )
    shortage = f"needs {max(needed_mib.values())} MiB{share_text} on each of {_gpu_count_text(count)}; free: {rooms}"
    if sum(gpu.total_mib >= needed_mib[gpu.uuid] for gpu in allowed_gpus) >= count:
        return shortage
    if model.vram_mib is not None and len(allowed_gpus) >= count:
        return f"{shortage}: {advise_smaller('lower `vram_mib`')}"
    return f"{shortage}: a shorter context, a smaller cache type or more GPUs (`gpus`) would make it fit"


def _gpu_count_text(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def holders_of(gpu: Gpu, running_names: Collection[str], *, expected_mib: int) -> str | None:
    """Describe the processes that hold memory of the GPU, without those of the replicas in `running_names`.

    At most 3 (`NAMED`) processes are described; further ones are counted. Where the driver reports no processes,
    describe the memory in use beyond `expected_mib`. None: no other process holds any, or no memory is in use beyond
    that.
    """
    if gpu.processes is None:
        excess_mib = gpu.used_mib - expected_mib
        return f"{excess_mib} MiB, by processes that the driver does not name here" if excess_mib > 0 else None
    others = [process for process in gpu.processes if process.replica is None or process.replica not in running_names]
    if not others:
        return None
    descriptions = [_describe_process(process) for process in others[:NAMED]]
    if len(others) > NAMED:
        descriptions.append(f"{len(others) - NAMED} more")
    return "; ".join(descriptions)


def _describe_process(process: GpuProcess) -> str:
    name = f"process {process.pid}" if process.name is None else f"process {process.pid} ({process.name})"
    owner = "not of this Roundhouse" if process.replica is None else f"of {process.replica}"
    size = "an unknown part" if process.mib is None else f"{process.mib} MiB"
    return f"{name}, {owner}: {size}"
