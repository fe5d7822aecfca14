"""Durable calls that have branches, children or no identity in time, as values (design 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from durableflow.authoring.calls import Call
from durableflow.authoring.undo import AnyRollback
from durableflow.core.retries import Retries
from durableflow.core.statuses import StepKind


@dataclass(slots=True, kw_only=True)
class GatherCall(Call):
    """``step.gather``. ``concurrency`` None: no limit of its own."""

    kind: ClassVar[str] = StepKind.GATHER.value
    branches: tuple[Callable[[], Any], ...]
    concurrency: int | None = None
    return_exceptions: bool = False


@dataclass(slots=True, kw_only=True)
class MapCall(Call):
    """``step.map``: one step per item, with the options of ``step.do``."""

    kind: ClassVar[str] = StepKind.MAP.value
    fn: Callable[[Any], Any]
    items: tuple[Any, ...]
    concurrency: int | None = None
    return_exceptions: bool = False
    retries: Retries | None = None
    timeout: timedelta | None = None
    rollback: AnyRollback | None = None
    sensitive: bool = False
    atomic: bool = False


@dataclass(slots=True, kw_only=True)
class RaceCall(Call):
    """``step.race``: branches by name, in the order in which they were given."""

    kind: ClassVar[str] = StepKind.RACE.value
    branches: Mapping[str, Callable[[], Any]]


@dataclass(slots=True, kw_only=True)
class ChildCall(Call):
    """``step.run_workflow``: start a child and wait for it. ``timeout`` None: for ever."""

    kind: ClassVar[str] = StepKind.CHILD.value
    workflow: type[Any]
    params: Any
    instance_id: str | None = None
    timeout: timedelta | None = None


@dataclass(slots=True, kw_only=True)
class ChildrenCall(Call):
    """``step.run_workflows``: one join over children of one workflow. ``concurrency``: how many may be unfinished at once."""

    kind: ClassVar[str] = StepKind.CHILD.value
    workflow: type[Any]
    params: tuple[Any, ...]
    concurrency: int | None = None
    return_exceptions: bool = False


@dataclass(slots=True, kw_only=True)
class StartCall(Call):
    """``step.start_workflow``: start a child and go on."""

    kind: ClassVar[str] = StepKind.CHILD.value
    workflow: type[Any]
    params: Any
    instance_id: str | None = None
    on_parent_end: str = "leave"


@dataclass(slots=True, kw_only=True)
class PatchCall(Call):
    """``step.patched``: ``name`` is the patch's id."""

    kind: ClassVar[str] = StepKind.PATCH.value
