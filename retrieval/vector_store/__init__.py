"""Vectors of chunks, by meaning and by words. `base` declares the protocol `VectorStore`; `edge` implements it with
Qdrant Edge, embedded in this process, `server` with a Qdrant server."""
