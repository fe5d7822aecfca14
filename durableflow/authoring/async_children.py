"""The calls of ``AsyncStep`` that start other workflows (design 7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

from durableflow.authoring import group_checks
from durableflow.authoring.children import Given
from durableflow.authoring.facade import Answer, AsyncFacade
from durableflow.authoring.workflow import Workflow
from durableflow.core.durations import Duration

P = TypeVar("P")
R = TypeVar("R")


class AsyncChildren(AsyncFacade):
    """The part of ``AsyncStep`` that starts children."""

    def run_workflow(
        self,
        name: str,
        workflow: type[Workflow[P, R]],
        params: Given[P],
        /,
        *,
        instance_id: str | None = None,
        timeout: Duration | None = None,
    ) -> Answer[R]:
        """Start an instance of ``workflow`` and wait for its output; the wait costs nothing.

        The child ends with this instance. ``instance_id``: default one that derives from this call, the same at every
        replay; one that is given stays taken in later runs (put ``event.run_number`` into it). ``timeout``: how long to wait
        (None: for ever); then the child is terminated. Raises WorkflowFailed where the child failed (its error is
        ``__cause__``) or was terminated, WorkflowTimeout, InstanceAlreadyExists, CodecError, InvalidConfig.
        """
        return self._runtime.acall(group_checks.child_call(name, workflow, params, instance_id, timeout))

    @overload
    def run_workflows(
        self,
        name: str,
        workflow: type[Workflow[P, R]],
        params: Iterable[Given[P]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: Literal[False] = False,
    ) -> Answer[list[R]]: ...
    @overload
    def run_workflows(
        self,
        name: str,
        workflow: type[Workflow[P, R]],
        params: Iterable[Given[P]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: bool,
    ) -> Answer[list[R | Exception]]: ...
    def run_workflows(
        self,
        name: str,
        workflow: type[Workflow[P, R]],
        params: Iterable[Given[P]],
        /,
        *,
        concurrency: int | None = None,
        return_exceptions: bool = False,
    ) -> Answer[Any]:
        """Start one child for each entry of ``params`` and wait for all: one join, however many they are.

        Returns their outputs in the order of ``params``. ``concurrency``: how many children may be unfinished at once.
        ``params`` must be in the same order at every replay: a list, not a set. All children end, then an ExceptionGroup
        tells what failed; with ``return_exceptions`` the errors come in the list instead. Raises InvalidConfig, CodecError,
        LimitExceeded.
        """
        return self._runtime.acall(group_checks.children_call(name, workflow, params, concurrency, return_exceptions))

    def start_workflow(
        self,
        name: str,
        workflow: type[Workflow[P, Any]],
        params: Given[P],
        /,
        *,
        instance_id: str | None = None,
        on_parent_end: Literal["leave", "terminate"] = "leave",
    ) -> Answer[str]:
        """Start an instance of ``workflow`` and go on; returns its instance_id.

        ``on_parent_end``: what becomes of an unfinished child when this instance ends, "leave" it running or "terminate" it.
        Raises InstanceAlreadyExists, CodecError, InvalidConfig.
        """
        return self._runtime.acall(group_checks.start_call(name, workflow, params, instance_id, on_parent_end))
