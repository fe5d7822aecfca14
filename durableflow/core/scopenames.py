"""How the scopes of branches are named: ``cover and index-1[2]``, nested ones joined by ``/`` (design 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_COMPONENT: Final = re.compile(r"(?P<name>.*)-(?P<count>\d+)(?:\[(?P<branch>[^\]]*)\])?", re.DOTALL)


def component(name: str, count: int, branch: object = None) -> str:
    """The part of a scope that one group adds; without ``branch`` that of all its items."""
    own = f"{_escaped(name)}-{count}"
    return own if branch is None else f"{own}[{_escaped(str(branch))}]"


def groups_of(scope: str) -> Iterator[tuple[str, str, int]]:
    """The groups around a scope, innermost first, as (scope, name, count) of their records."""
    while scope:
        scope, _slash, own = scope.rpartition("/")
        found = _COMPONENT.fullmatch(own)
        if found is not None:
            yield scope, _plain(found["name"]), int(found["count"])


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("]", "%5D")


def _plain(name: str) -> str:
    return name.replace("%5D", "]").replace("%2F", "/").replace("%25", "%")
