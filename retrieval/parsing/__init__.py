"""Files to text, and text to chunks, in processes of their own with limits. `base` declares what comes out, `pool`
keeps the processes, `worker` runs in one of them, `messages` is what they say to each other; `media_types` tells what
a file is, `extract` and `formats/` read it, `chunking` cuts its text where `structure` finds places, sized by `tokens`.
"""
