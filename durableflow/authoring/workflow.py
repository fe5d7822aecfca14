"""The class that authors derive from (api.md, ``Workflow``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from durableflow.authoring.context import in_body
from durableflow.authoring.events import freeze
from durableflow.authoring.options import Options, resolve
from durableflow.core import clock, codec, registry, running
from durableflow.core.aio import async_twin
from durableflow.core.conf import get_settings
from durableflow.core.durations import TEN_YEARS, Duration, parse_duration
from durableflow.core.exceptions import InstanceAlreadyExists, InvalidDurableCall
from durableflow.core.names import check_instance_id
from durableflow.core.retries import Retention
from durableflow.core.statuses import Trigger, Via
from durableflow.core.transactions import write_transaction
from durableflow.models.creation import (
    ROWS_AT_ONCE,
    NewInstance,
    Taken,
    at_entry,
    database,
    insert,
    insert_many,
)
from durableflow.models.instance import WorkflowInstance
from durableflow.models.instance_fields import Priority, Who

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from durableflow.models.querysets import InstanceQuerySet

    Params = TypeVar("Params", default=Any)
    Output = TypeVar("Output", default=Any)
else:
    from typing import TypeVar

    Params = TypeVar("Params")
    Output = TypeVar("Output")


class Workflow(Generic[Params, Output]):
    """A durable program: a subclass with ``run(self, event, step)`` in an app's ``workflows`` module. With ``async def
    run``, ``step`` is an ``AsyncStep``.

    ``run`` is executed again from the top whenever the instance goes on; finished steps return what is recorded.
    Options go into ``Meta`` (see ``WorkflowOptions``). The classmethods start and find instances.
    """

    run: Callable[..., Any]
    options: ClassVar[Options]
    run_is_async: ClassVar[bool] = False
    """Whether ``run`` is an ``async def`` and gets an ``AsyncStep`` (design 6)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.options = resolve(cls)
        if cls.options.abstract:
            return
        run = getattr(cls, "run", None)
        if not callable(run):
            raise TypeError(f"{cls.__module__}.{cls.__qualname__} has no run(self, event, step).")
        if inspect.isasyncgenfunction(run) or inspect.isgeneratorfunction(run):
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__}.run must not be a generator: write def run(self, event, step) or "
                "async def run(self, event, step), without yield."
            )
        cls.run_is_async = inspect.iscoroutinefunction(run)
        registry.register(cls.options.name, cls, cls.options.previous_names)

    @classmethod
    def workflow_name(cls) -> str:
        """The name under which instances are stored."""
        return cls.options.name

    @classmethod
    def create(
        cls,
        params: Params | None = None,
        *,
        instance_id: str | None = None,
        start_at: datetime | Duration | None = None,
        priority: Priority | None = None,
        retention: Retention | None = None,
        created_by: Who = None,
    ) -> WorkflowInstance:
        """Start an instance and return it.

        Inside ``transaction.atomic()`` it is part of that transaction: it starts after the commit, or never (case
        CON-03). ``instance_id``: default a UUID4. ``start_at``: an aware datetime or a Duration, at most ten years from now.
        ``retention``: a rule of its own; what it leaves open is looked up in ``Meta`` and the settings when the purge looks at it. Raises
        InstanceAlreadyExists (the transaction stays usable), ValueError, TypeError, CodecError, LimitExceeded; then
        nothing is stored. In ``run``, outside of a step, it is refused without an ``instance_id`` (InvalidDurableCall): each
        replay would start one more.
        """
        if instance_id is None:
            cls._refuse_in_run("create")
        row = cls.new_instance(
            params,
            instance_id=instance_id,
            start_at=start_at,
            priority=priority,
            retention=retention,
            created_by=created_by,
        )
        if row is None:
            raise InstanceAlreadyExists(workflow=cls.workflow_name(), instance_id=str(instance_id))
        return row

    @classmethod
    def get_or_create(
        cls,
        params: Params | None = None,
        *,
        instance_id: str,
        start_at: datetime | Duration | None = None,
        priority: Priority | None = None,
        retention: Retention | None = None,
        created_by: Who = None,
    ) -> tuple[WorkflowInstance, bool]:
        """The instance of this id, and whether this call has created it. An existing one is returned as it is, also
        after its end."""
        row = cls.new_instance(
            params,
            instance_id=instance_id,
            start_at=start_at,
            priority=priority,
            retention=retention,
            created_by=created_by,
        )
        return (row, True) if row is not None else (cls.get(instance_id), False)

    @classmethod
    def bulk_create(
        cls,
        params: Iterable[Params],
        *,
        instance_id: Callable[[Params], str] | None = None,
        ignore_conflicts: bool = False,
        batch_size: int = ROWS_AT_ONCE,
        created_by: Who = None,
    ) -> list[WorkflowInstance]:
        """Start an instance for each of ``params``, thousands in few statements, and return them in the same order.

        All or nothing, in one transaction (inside ``transaction.atomic()``: in that one, which stays usable): all params are read
        and checked before anything is stored, so that they have to fit into memory. ``instance_id``: a function of the params
        that gives the id; default UUID4s. ``batch_size``: rows of one statement, at most.

        An id that is taken, or given twice, raises InstanceAlreadyExists. With ``ignore_conflicts`` the existing instance stays as
        it is, of repeated ids the first counts, and only what was created is returned, so that the same call again is safe (case
        BAT-01). ValueError, TypeError, CodecError and LimitExceeded name the entry by its position, from 0. In ``run``, outside of
        a step, it is refused without ``instance_id``, as ``create`` is.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size!r}.")
        if instance_id is None:
            cls._refuse_in_run("bulk_create")
        new: list[NewInstance] = []
        for position, entry in enumerate(params):
            with at_entry(position):
                own = None if instance_id is None else check_instance_id(instance_id(entry))
                new.append(cls.planned(entry, instance_id=own, created_by=created_by))
        with write_transaction(database()):
            entries = insert_many(new, batch_size=batch_size)
            if not ignore_conflicts:
                cls._refuse_taken(new, entries)
        return [entry for entry in entries if not isinstance(entry, Taken)]

    @classmethod
    def _refuse_taken(cls, new: Sequence[NewInstance], entries: Sequence[WorkflowInstance | Taken]) -> None:
        for position, (plan, entry) in enumerate(zip(new, entries, strict=True)):
            if isinstance(entry, Taken):
                what = "stands in the list twice" if entry is Taken.REPEATED else "is taken"
                raise InstanceAlreadyExists(
                    f"Entry {position}: the id {plan.instance_id!r} of workflow {cls.workflow_name()!r} {what}; nothing was created. "
                    "Give ignore_conflicts=True to create the others.",
                    workflow=cls.workflow_name(),
                    instance_id=str(plan.instance_id),
                )

    @classmethod
    def _refuse_in_run(cls, verb: str) -> None:
        """Without an id of the caller's each replay of a run would start one more."""
        if (where := running.program.get()) and not in_body():
            raise InvalidDurableCall(
                f"{cls.__name__}.{verb}() was called in run() of {where}, outside of a step: each replay would start one more. Use "
                "step.start_workflow or step.run_workflow, give it an instance_id, or call it in a step's body."
            )

    @classmethod
    def new_instance(
        cls,
        params: Any = None,
        *,
        instance_id: str | None = None,
        start_at: datetime | Duration | None = None,
        priority: int | None = None,
        retention: Retention | None = None,
        created_by: Who = None,
        trigger: str = Trigger.CODE,
        via: str = Via.CODE,
        request_key: str = "",
        request_digest: str = "",
    ) -> WorkflowInstance | None:
        """The one way in which instances are started, for all doors. None: the id or the request key is taken."""
        return insert(
            cls.planned(
                params,
                instance_id=instance_id,
                start_at=start_at,
                priority=priority,
                retention=retention,
                created_by=created_by,
                trigger=trigger,
                via=via,
                request_key=request_key,
                request_digest=request_digest,
            )
        )

    @classmethod
    def planned(
        cls,
        params: Any = None,
        *,
        start_at: datetime | Duration | None = None,
        priority: int | None = None,
        retention: Retention | None = None,
        **others: Any,
    ) -> NewInstance:
        """What a new instance shall be, with the options of this workflow; nothing is stored. ``others``: fields of
        ``NewInstance``. Raises ValueError, TypeError, CodecError, LimitExceeded, and what ``concurrency_key`` raises."""
        if cls.options.abstract:
            raise TypeError(f"{cls.__qualname__} is abstract: start one of its subclasses.")
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"retention must be a Retention(success=..., error=...), not {retention!r}.")
        return NewInstance(
            workflow=cls.options.name,
            previous_names=cls.options.previous_names,
            params=params,
            start_at=_start(start_at),
            priority=cls.options.priority if priority is None else priority,
            retention=retention,
            max_duration=cls.options.max_duration,
            code_version=cls.options.version,
            concurrency_key=cls._limit_key(params),
            **others,
        )

    @classmethod
    def _limit_key(cls, params: Any) -> str:
        """The function gets the params as ``run`` does, so what cannot be stored is refused before it sees them."""
        if cls.options.concurrency_key is None:
            return cls.options.limit_key(None)
        text = codec.dumps(params, what=f"params of {cls.options.name}", max_bytes=get_settings().LIMITS.params)
        return cls.options.limit_key(freeze(codec.loads(text)))

    @classmethod
    def get(cls, instance_id: str) -> WorkflowInstance:
        """The instance of this id, also one that is stored under a previous name. Raises ``WorkflowInstance.DoesNotExist``."""
        rows = WorkflowInstance.objects.using(database()).with_id(cls, instance_id, first=cls.options.name)
        row: WorkflowInstance | None = rows.first()
        if row is None:
            raise WorkflowInstance.DoesNotExist(
                f"The workflow {cls.workflow_name()!r} has no instance {instance_id!r}."
            )
        return row

    @classmethod
    def instances(cls) -> InstanceQuerySet:
        """All instances of this workflow, also those that are stored under its previous names."""
        return WorkflowInstance.objects.using(database()).for_workflow(cls)

    if TYPE_CHECKING:

        @classmethod
        async def acreate(
            cls,
            params: Params | None = None,
            *,
            instance_id: str | None = None,
            start_at: datetime | Duration | None = None,
            priority: Priority | None = None,
            retention: Retention | None = None,
            created_by: Who = None,
        ) -> WorkflowInstance:
            """``create`` for ``await``."""

        @classmethod
        async def aget_or_create(
            cls,
            params: Params | None = None,
            *,
            instance_id: str,
            start_at: datetime | Duration | None = None,
            priority: Priority | None = None,
            retention: Retention | None = None,
            created_by: Who = None,
        ) -> tuple[WorkflowInstance, bool]:
            """``get_or_create`` for ``await``."""

        @classmethod
        async def abulk_create(
            cls,
            params: Iterable[Params],
            *,
            instance_id: Callable[[Params], str] | None = None,
            ignore_conflicts: bool = False,
            batch_size: int = ROWS_AT_ONCE,
            created_by: Who = None,
        ) -> list[WorkflowInstance]:
            """``bulk_create`` for ``await``."""

        @classmethod
        async def aget(cls, instance_id: str) -> WorkflowInstance:
            """``get`` for ``await``."""
    else:
        acreate = classmethod(async_twin(create.__func__))
        aget_or_create = classmethod(async_twin(get_or_create.__func__))
        abulk_create = classmethod(async_twin(bulk_create.__func__))
        aget = classmethod(async_twin(get.__func__))


def _start(start_at: datetime | Duration | None) -> datetime | timedelta | None:
    if isinstance(start_at, datetime):
        if start_at.utcoffset() is None:
            raise ValueError(f"start_at: {start_at!r} has no time zone. Give an aware datetime or a duration.")
        try:
            start_at = start_at.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"start_at: {start_at!r} is no moment of the calendar in UTC.") from None
        if start_at > clock.host_now() + TEN_YEARS:
            raise ValueError(f"start_at: {start_at!r} is too far away. At most ten years from now are possible.")
        return start_at
    return None if start_at is None else parse_duration(start_at, what="start_at", maximum=TEN_YEARS)
