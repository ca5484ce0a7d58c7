"""vLLM's own parser of command lines, as a program: `PYTHON vllm_parser.py`, run by vLLM's interpreter.

Writes a line once it is ready. Then each line of its input is a command line as a JSON list, what follows `vllm`, and
each line of its output the parsed values as a JSON object, or the parser's error as a JSON string.
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


def main() -> None:
    """Answer until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    built = parser()
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
