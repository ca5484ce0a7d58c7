"""The controller's loop, the actions that it starts, and the operations that are under way."""
