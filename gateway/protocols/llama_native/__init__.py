"""llama.cpp's own generation routes, `/infill` and `/completion`. Pure."""
