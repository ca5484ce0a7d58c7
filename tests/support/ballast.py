"""A program that holds a known amount of memory, in the place of an engine."""

from __future__ import annotations

OWN_MIB = 96
SHARED_MIB = 64
CHILD_MIB = 32
MAPPED_MIB = 48
READ_MIB = 80
HELD_MIB = OWN_MIB + SHARED_MIB + CHILD_MIB + MAPPED_MIB
"""What counts, beside what Python takes itself. The shared part counts once, the file that was only read does not."""

PROGRAM = f"""\
import mmap, os, pathlib, time
folder = pathlib.Path(os.environ["BALLAST"])
folder.joinpath("read").write_bytes(os.urandom(2**20) * {READ_MIB})
folder.joinpath("mapped").write_bytes(os.urandom(2**20) * {MAPPED_MIB})
folder.joinpath("read").read_bytes()
shared = bytearray(os.urandom(2**20)) * {SHARED_MIB}
child_holds, tell = os.pipe()
if os.fork() == 0:
    mine = bytearray(os.urandom(2**20)) * {CHILD_MIB}
    os.write(tell, b".")
    time.sleep(600)
own = bytearray(os.urandom(2**20)) * {OWN_MIB}
with folder.joinpath("mapped").open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
touched = sum(mapped[each] for each in range(0, len(mapped), 4096))
os.read(child_holds, 1)
print("holds it", flush=True)
time.sleep(600)
"""
