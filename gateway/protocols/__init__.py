"""One folder per API family: its requests, answers, streams and errors, and its translation for other engines."""
