"""Classes by name: stored as text, found again among the modules that are imported already.

Stored text must never make a process import anything (design 6): a name that is not there is a miss, told in the error.
"""

from __future__ import annotations

import sys


def dotted(cls: type) -> str:
    """The name under which `cls` is stored and shown: `shop.services.CardDeclined`, built-ins without their module."""
    module, name = getattr(cls, "__module__", None), getattr(cls, "__qualname__", cls.__name__)
    return str(name) if module in (None, "builtins") else f"{module}.{name}"


def find(module: str, qualname: str) -> object | None:
    """What is called `qualname` in the imported module `module`, or None. Never imports."""
    found: object | None = sys.modules.get(module)
    for part in qualname.split("."):
        # A lazy module's __getattr__ might import: look only at what is there.
        found = getattr(found, "__dict__", {}).get(part)
        if found is None:
            return None
    return found


def find_dotted(name: str) -> object | None:
    """What `dotted` named so, or None. Never imports."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if module in sys.modules:
            return find(module, ".".join(parts[cut:]))
    return find("builtins", name)
