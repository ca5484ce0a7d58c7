"""Failures of replicas: their explanation for the operator, and when to try again. Pure."""

from __future__ import annotations

from controller.engines import REPLICA_ENGINES
from controller.engines.base import Verdict
from controller.state import Exit, Failure, ObservedReplica, Phase

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
STABLE_S = 60.0
"""A replica that was ready this long starts counting its failures anew."""
SHOWN_LINES = 8
"""Log lines that follow the plain words in `last_error`."""

NOT_FOUND = 127
"""Exit code of shells and of docker-init when there is no such program."""

_SIGNALS = {-9: "was killed (SIGKILL)", -11: "crashed (SIGSEGV)", -6: "aborted (SIGABRT)", -15: "ended (SIGTERM)"}


def verdict_of_exit(backend: str, end: Exit, *, was_ready: bool) -> Verdict:
    """Explain why an engine, or the launcher of an MCP server, ended: plain words, then up to 8 (`SHOWN_LINES`) of its
    last log lines. `plain` of the verdict is the plain words alone.

    `was_ready`: whether it was ever ready; then the verdict is never permanent (a permanent one is not retried). For an
    unknown `backend` or exit code 0 the words only say how the process ended, and whether it was killed for lack of
    memory.
    """
    engine = REPLICA_ENGINES.get(backend)
    verdict = engine.explain_exit(end.code, end.log_tail) if engine and end.code != 0 else None
    noun = engine.program_noun if engine else "engine"
    if end.oom:
        verdict = Verdict(f"out of memory: the {noun} was killed at its memory limit")
    ending = f"the {noun} {_describe_exit(end.code)}"
    message = f"{verdict.message}; {ending}" if verdict else ending
    cause = "" if verdict is None else verdict.message if verdict.plain is None else verdict.plain
    plain = f"{cause}; {ending}" if cause else ending
    # An engine that has served once had good arguments and files: its end is never a permanent error.
    permanent = verdict is not None and verdict.permanent and not was_ready
    return Verdict(with_log_tail(message, end.log_tail), permanent, end.code, plain)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "ended"
    if code == NOT_FOUND:
        return "could not be run: its program is not there"
    signal_code = code - 128 if code > 128 else -code
    ending = _SIGNALS.get(-signal_code) if (code < 0 or code > 128) else None
    return ending or f"ended with exit code {code}"


def with_log_tail(message: str, log_tail: str) -> str:
    """Return `message`, followed by the last 8 (`SHOWN_LINES`) non-empty log lines if there are any."""
    lines = [line for line in log_tail.splitlines() if line.strip()][-SHOWN_LINES:]
    return f"{message}. Last log lines:\n" + "\n".join(lines) if lines else message


def next_failure(
    previous: Failure | None, verdict: Verdict, attempt: int, now: float, *, ready_for_s: float | None
) -> Failure:
    """Return the failure to record for a replica that failed at `now`, with the Unix time of its next attempt.

    `previous`: the failure recorded before; None: there is none. `ready_for_s`: seconds that the replica was ready;
    None: never. `attempt`: the attempt number that failed. Times are Unix seconds.

    The wait doubles from 1 s to 5 min with each consecutive failure. An engine that was ready is started again at once
    (`retry_at` is `now`) after its first failure, and its later waits are half as long. Having been ready for
    `STABLE_S` (60 s) starts the count anew. A permanent failure is not retried (`retry_at` is None).
    """
    was_stable = ready_for_s is not None and ready_for_s >= STABLE_S
    count = 1 if previous is None or was_stable else previous.count + 1
    if verdict.permanent:
        retry_at = None
    else:
        steps = count - 1 if ready_for_s is None else count - 2
        retry_at = now if steps < 0 else now + min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(steps, 20))
    highest = max(attempt, previous.attempt if previous else 0)
    return Failure(count, now, verdict.message, retry_at, highest, verdict.exit_code, verdict.plain)


def has_recovered(replica: ObservedReplica, now: float) -> bool:
    """Whether a replica runs and was first ready at least 60 s (`STABLE_S`) before `now` (Unix time), so that the
    caller may forget the failures of its key."""
    if replica.phase is not Phase.RUNNING or replica.ready_since is None:
        return False
    return now - replica.ready_since >= STABLE_S
