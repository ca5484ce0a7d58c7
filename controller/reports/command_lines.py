"""The command lines of the engines that run, for the admin API. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.redaction.redactor import Redact, redact_words
from controller.schema.admin import CommandLines
from controller.state import ObservedReplica, Phase


def list_command_lines(replicas: Iterable[ObservedReplica], redact: Redact) -> CommandLines:
    """Return the command line of each model's newest running engine, with its secrets masked by `redact`. A model
    without a running engine, or whose engine has no known command line, is left out."""
    newest = {
        replica.id.model: replica
        for replica in sorted(replicas, key=lambda each: each.created_at)
        if replica.phase is Phase.RUNNING and replica.argv
    }
    return CommandLines(models={name: _redacted(newest[name], redact) for name in sorted(newest)})


def _redacted(replica: ObservedReplica, redact: Redact) -> list[str]:
    return redact_words(replica.argv, lambda word: redact(replica.id.model, word, replica.name))
