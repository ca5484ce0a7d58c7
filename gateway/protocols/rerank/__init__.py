"""Rankings in Jina's and Cohere's forms. Pure."""
