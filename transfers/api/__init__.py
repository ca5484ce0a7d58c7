"""The HTTP interface of transfers: its only client is the controller. `app` assembles it."""
