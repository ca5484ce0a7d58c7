"""llama.cpp's own APIs: generation with `/infill`. Pure."""
