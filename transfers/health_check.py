"""`python -m transfers.health_check`: check that transfers answers in this container. For Docker's HEALTHCHECK."""

from __future__ import annotations

import sys

from common.health_check import check_health

if __name__ == "__main__":
    sys.exit(check_health("ROUNDHOUSE_TRANSFERS_LISTEN"))
