"""Exit codes of `roundhouse`. docs/cli.md lists them; a test compares."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `roundhouse`, with the same meaning in every command. `meaning`: that meaning as a sentence."""

    meaning: str

    def __new__(cls, number: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, number)
        member._value_ = number
        member.meaning = meaning
        return member

    DONE = 0, "Done; as wanted; nothing to do."
    FAILED = 1, "Something is wrong: the files have problems, a model failed, or the command could not do its work."
    PENDING = (
        2,
        "Not there yet: something loads or unloads, is missing, is to be done, or differs from what is declared.",
    )
    NO_CONTROLLER = 3, "No controller answers."
    LOCKED = 4, "The state folder is in use by another controller or another `roundhouse up`."
    ADDRESS_TAKEN = 5, "The address to listen on is taken."
    USAGE = 64, "The command line or a `ROUNDHOUSE_` variable is wrong."
    INTERRUPTED = 130, "Ended by Ctrl-C before it was done (`up` that stopped everything ends with 0)."


class CommandError(Exception):
    """A command cannot do its work. The message is one plain line for the operator; `code` is the exit code. `app.run`
    prints the message to stderr and returns the code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code
