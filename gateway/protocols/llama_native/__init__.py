"""llama.cpp's own generation APIs, `/infill` and `/completion`, passed through. Pure."""
