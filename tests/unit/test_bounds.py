"""What a body must not take along into the engine (cases OPS-07, OPS-08)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest

from durableflow.engine import replacement
from durableflow.engine.bounds import bounded

CAME_BACK = 99


def label() -> str:
    return "step 'x' of w/1"


def leave(how: object) -> object:
    if isinstance(how, BaseException):
        raise how
    return how


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("how", "status"),
    [
        pytest.param("value", 0, id="returns"),
        pytest.param(SystemExit(3), 3, id="exits"),
        pytest.param(SystemExit(), 0, id="exits without a status"),
        pytest.param(SystemExit("words"), 1, id="exits with words"),
        pytest.param(ValueError("x"), 1, id="raises"),
    ],
)
def test_a_forked_child_does_not_come_back_from_a_body(how: object, status: int) -> None:
    mine = os.getpid()

    def body() -> object:
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return leave(how)

    try:
        found = bounded(body, sys.getrecursionlimit(), label)()
    finally:
        if os.getpid() != mine:
            os._exit(CAME_BACK)
    assert found == status


@pytest.mark.parametrize("error", [None, ValueError("x")])
def test_the_recursion_limit_is_put_back_whatever_the_body_does(error: BaseException | None) -> None:
    limit = sys.getrecursionlimit()

    def body() -> object:
        sys.setrecursionlimit(limit + 7)
        return leave(error)

    try:
        bounded(body, limit, label)()
    except ValueError:
        pass
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(("worker", "wanted"), [(True, ["memory"]), (False, [])])
def test_who_ran_out_of_memory_is_replaced_if_somebody_replaces_it(
    worker: bool, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is nobody's worker would never work again."""
    asked: list[str] = []
    monkeypatch.setattr(replacement, "may_exit", lambda: worker)
    monkeypatch.setattr(replacement, "want", lambda cause, reason: asked.append(cause))

    def body() -> NoReturn:
        raise MemoryError

    run: Callable[[], NoReturn] = bounded(body, sys.getrecursionlimit(), label)
    with pytest.raises(MemoryError):
        run()
    assert asked == wanted
