"""`python -m tests.support.goldens`: compare the goldens, or write them anew. See the package's docstring."""

from __future__ import annotations

import argparse
import sys

from tests.support.goldens.catalog import GOLDENS, SUBJECTS


def main() -> None:
    """End with 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.goldens")
    parser.add_argument("--write", action="store_true", help="write them anew")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"there is no subject {', '.join(sorted(unknown))}")
    chosen = [golden for golden in GOLDENS if not arguments.subjects or golden.subject in arguments.subjects]
    if arguments.write:
        written = [golden.path for golden in chosen if golden.write()]
        print(*(f"{path} is written" for path in written), f"{len(chosen) - len(written)} as they were", sep="\n")
        return
    differences = [difference for golden in chosen if (difference := golden.difference()) is not None]
    print("\n\n".join(differences) or f"all {len(chosen)} as they are written")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
