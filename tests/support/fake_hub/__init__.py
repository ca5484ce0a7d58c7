"""A server of our own that speaks the Hugging Face hub's protocol, with faults on request.

`FakeHub` serves repositories from a thread: the hub on one origin, and the storage that it redirects to on another.
By hand: `python -m tests.support.fake_hub --help`.
"""

from tests.support.fake_hub.faults import Fault, FaultPlan
from tests.support.fake_hub.repositories import HubRepository, make_repositories
from tests.support.fake_hub.server import FakeHub, SeenRequest

__all__ = ["FakeHub", "Fault", "FaultPlan", "HubRepository", "SeenRequest", "make_repositories"]
