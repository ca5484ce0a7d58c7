"""`web/src/api/openapi.d.ts`: the types of the gateway's own OpenAPI document, for the page.

python -m tests.support.page_types            # ends with 1 if the file is old
python -m tests.support.page_types --write    # writes it anew; does nothing without what checks the page
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.support.goldens.documents import make_merged_types
from tests.support.page_tools import WEB, find_node, run_tool

TYPES = WEB / "src" / "api" / "openapi.d.ts"
WRITE = "cd web && npm run types"


def make_types() -> str:
    """Return the TypeScript of the merged document, without its prose, by openapi-typescript.

    Raises RuntimeError if that program fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        document, written = Path(folder, "openapi.json"), Path(folder, "openapi.d.ts")
        document.write_text(json.dumps(make_merged_types()))
        done = run_tool("openapi-typescript", "bin/cli.js", str(document), "--output", str(written))
        if done.returncode != 0:
            raise RuntimeError(done.stdout)
        return written.read_text()


def main() -> int:
    """Compare, or write; the exit status."""
    if find_node() is None:
        print(f"{TYPES.name} stays: no Node.js, or no checks of the page (`web/build --with-checks`)", file=sys.stderr)
        return 0
    text = make_types()
    if "--write" in sys.argv[1:]:
        TYPES.write_text(text)
        return 0
    is_current = TYPES.exists() and TYPES.read_text() == text
    print(f"{TYPES.name} is {'current' if is_current else f'old: {WRITE}'}")
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
