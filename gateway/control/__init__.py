"""The link to the controller, which sends routing tables and receives reports; probes of remote models."""
