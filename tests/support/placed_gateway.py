"""`python -m tests.support.placed_gateway host|container`: a gateway that takes this machine for a host or a container,
whichever it is.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from gateway.__main__ import main

if __name__ == "__main__":
    with patch("gateway.app.is_in_container", return_value=sys.argv[1] == "container"):
        sys.exit(main())
