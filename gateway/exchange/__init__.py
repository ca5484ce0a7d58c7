"""One inference request, from the client to an engine and back."""
