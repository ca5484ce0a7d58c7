"""Tests of `web/`: what is locked, what is built, and the page's own tests."""
