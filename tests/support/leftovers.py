"""What a piece of work leaves behind that only the cyclic garbage collector can free.

The gateway collects rarely (`gateway.__main__.tune_garbage_collector`), and by the number of objects, not by what they
hold: a cycle that holds a request's body holds it for minutes.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator
from types import FrameType, FunctionType, MethodType


@contextlib.contextmanager
def leftovers_of(*packages: str) -> Iterator[Counter[str]]:
    """Counts, at its end, these packages' objects and running code that were left in cycles. The collector is off until
    then."""
    found: Counter[str] = Counter()
    gc.disable()
    gc.freeze()  # what was there before is not looked at
    try:
        yield found
    finally:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        found.update(name for each in gc.garbage if (name := name_of(each)).partition(".")[0] in packages)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def name_of(value: object) -> str:
    """An object's type, or of code what it is and where, with the module in front."""
    if isinstance(value, FrameType):
        return f"{value.f_globals.get('__name__')}.{value.f_code.co_qualname} (running)"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__} (function)"
    if isinstance(value, MethodType):
        return f"{type(value.__self__).__module__}.{type(value.__self__).__qualname__}.{value.__name__} (method)"
    return f"{type(value).__module__}.{type(value).__qualname__}"
