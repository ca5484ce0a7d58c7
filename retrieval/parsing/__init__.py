"""Files to text, and text to chunks, in processes of their own with limits. `base` declares what comes out, `pool`
keeps the processes, `worker` runs in one of them; `media_types` tells what a file is, `formats/` read it, `chunking`
cuts its text.
"""
