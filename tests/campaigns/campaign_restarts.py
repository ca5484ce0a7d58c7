"""Restarts of the gateway under load: nothing refused, nothing broken."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
A `service run` with a real controller, gateway and engine. Five clients ask all the time, each request on a connection
of its own: chats, streams and stored responses. The gateway is restarted 20 times by SIGHUP, a stream under way each
time, and killed 5 times. A restart may refuse no connection and break no request; a kill may refuse none, and loses
the requests inside.
"""
TESTS = ("tests/e2e/test_gateway_restart.py",)
run = suite(TESTS)
