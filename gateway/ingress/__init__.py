"""Checks before a request is served: authentication, authorization, Host headers, CORS; headers of every answer."""
