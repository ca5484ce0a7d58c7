"""What API families share: the dialect's interface, the conversation, errors, streams. Pure."""
