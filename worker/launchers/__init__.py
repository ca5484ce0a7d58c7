"""Launchers of engines that have a server of their own."""
