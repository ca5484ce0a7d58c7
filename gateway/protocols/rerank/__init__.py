"""Rankings in Jina's and Cohere's forms, whatever form the engine uses. Pure."""
