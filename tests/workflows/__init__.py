"""Sample workflows for tests. Django finds this package as the ``workflows`` module of the app ``tests``: each module in it is imported."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
