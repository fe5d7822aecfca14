"""``step.gather`` with its types: a tuple of what the branches return, one type for each branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from durableflow.authoring import group_checks
from durableflow.authoring.facade import SyncFacade

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")


class Gathering(SyncFacade):
    """The part of ``Step`` that runs branches side by side."""

    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4, T5]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        b6: Callable[[], T6],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T1, T2, T3, T4, T5, T6]: ...
    @overload
    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], T],
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> tuple[T, ...]: ...
    @overload
    def gather(
        self, name: str, b1: Callable[[], T1], /, *, concurrency: int | None = None, return_exceptions: Literal[True]
    ) -> tuple[T1 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception, T5 | Exception]: ...
    @overload
    def gather(
        self,
        name: str,
        b1: Callable[[], T1],
        b2: Callable[[], T2],
        b3: Callable[[], T3],
        b4: Callable[[], T4],
        b5: Callable[[], T5],
        b6: Callable[[], T6],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[True],
    ) -> tuple[T1 | Exception, T2 | Exception, T3 | Exception, T4 | Exception, T5 | Exception, T6 | Exception]: ...
    @overload
    def gather(
        self, name: str, /, *branches: Callable[[], T], concurrency: int | None = None, return_exceptions: bool
    ) -> tuple[T | Exception, ...]: ...

    def gather(
        self,
        name: str,
        /,
        *branches: Callable[[], Any],
        concurrency: int | None = None,
        return_exceptions: bool = False,
    ) -> Any:
        """Run the branches at the same time and return their results in their order (design 7).

        A branch is a function without arguments that makes durable calls of its own; sleeps, waits and approvals in it hold
        up nothing but itself. ``concurrency``: how many branches run at once (None: as many as the process allows); one that
        waits does not count. All branches settle, then an ExceptionGroup tells what failed; with ``return_exceptions`` the
        errors come in the tuple instead. Two lambdas of one loop that share its variable are refused. Raises InvalidConfig.
        """
        return self._runtime.call(group_checks.gather_call(name, branches, concurrency, return_exceptions))
