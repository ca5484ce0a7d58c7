"""vLLM's own parser of command lines, as a program: `PYTHON vllm_parser.py`, run by vLLM's interpreter.

Writes a line once it is ready. Then each line of its input is a command line as a JSON list, what follows `vllm`, and
each line of its output the parsed values as a JSON object, or the parser's error as a JSON string.

`PYTHON vllm_parser.py --flags` writes one JSON object and ends: what each flag of `vllm serve` takes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any, NoReturn


class RefusedError(Exception):
    """The parser's error."""


def parser() -> Any:
    """As vLLM's program builds it."""
    module = importlib.import_module("vllm.utils.argparse_utils")

    def refuse(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise RefusedError(message)

    module.FlexibleArgumentParser.error = refuse
    whole = module.FlexibleArgumentParser(prog="vllm")
    serve = importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
    serve.subparser_init(whole.add_subparsers(dest="subparser"))
    return whole


def list_flags(built: Any) -> dict[str, dict[str, Any]]:
    """What each flag of `vllm serve` takes, by its first long name: `takes` (`nothing`, `value` or `values`), and where
    there are any its other names, its choices, its type and its default."""
    [serve] = {id(each): each for each in built._subparsers._group_actions[0].choices.values()}.values()
    flags = {}
    for action in serve._actions:
        if not action.option_strings or action.dest == "help":
            continue
        name = next(each for each in action.option_strings if each.startswith("--"))
        takes = "nothing" if action.nargs == 0 else "value" if action.nargs in (None, "?") else "values"
        others = sorted({*action.option_strings} - {name})
        kind = getattr(action.type, "__name__", None)
        about = {
            "also": others,
            "choices": None if action.choices is None else sorted(map(str, action.choices)),
            "type": kind if kind in ("int", "float", "str") else None,
            "default": action.default if isinstance(action.default, bool | int | float | str) else None,
        }
        flags[name] = {"takes": takes} | {key: each for key, each in about.items() if each not in (None, [])}
    return dict(sorted(flags.items()))


def main() -> None:
    """Answer until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    built = parser()
    if sys.argv[1:] == ["--flags"]:
        answers.write(json.dumps(list_flags(built)))
        return
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        try:
            result: Any = vars(built.parse_args(json.loads(line)))
        except RefusedError as error:
            result = str(error)
        answers.write(json.dumps(result, default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
