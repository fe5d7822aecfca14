"""What can be done to a schedule, and what may be saved of it (design 9; cases SCH-05, SCH-09).

``next_slot``, ``buffered_slot``, ``look_at`` and ``problem`` are derived: only the engine and this module write them. A row that
was read long ago never brings back what they were then.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models, transaction

from durableflow.core import clock, codec, dispatch, registry
from durableflow.core.aio import async_twin
from durableflow.core.conf import get_settings
from durableflow.core.cron import check_cron, check_zone, next_slot
from durableflow.core.exceptions import DurableflowError, InstanceAlreadyExists, InvalidTransition
from durableflow.core.fields import Unreadable
from durableflow.core.names import check_text
from durableflow.core.schedules import check_catch_up, check_overlap, check_schedule_name, is_default_name
from durableflow.core.statuses import Trigger, Via
from durableflow.core.transactions import alias_of, write_transaction
from durableflow.models.creation import insert
from durableflow.models.instance import WorkflowInstance
from durableflow.models.instance_fields import Who
from durableflow.models.permissions import START, name_of, require

audit = logging.getLogger("durableflow.audit")

CHANGE: Final = "change_workflowschedule"
DECLARED: Final = ("workflow", "name", "cron", "timezone", "params", "catch_up", "overlap", "declared")
"""What belongs to the code of a declared schedule."""
_TIMING: Final = ("workflow", "cron", "timezone", "enabled")
"""What ``next_slot`` is derived from."""
_DERIVED: Final = ("next_slot", "buffered_slot", "look_at", "problem")
_changes = itertools.count(1)
_changed = 0


def changed() -> int:
    """Grows when a schedule was saved or deleted in this process: whoever knows when the next slot is has to ask again."""
    return _changed


def tell(using: str) -> None:
    """After the commit: the next slot may be another one."""
    transaction.on_commit(_note, using=using, robust=True)
    dispatch.wake(using)


def _note() -> None:
    global _changed
    _changed = next(_changes)


def same(one: Any, other: Any) -> bool:
    """Whether two values are stored alike: to Python 1, 1.0 and True are equal, and NaN is not even equal to itself."""
    try:
        texts = [value.text if isinstance(value, Unreadable) else codec.dumps(value) for value in (one, other)]
    except DurableflowError:
        return False
    return texts[0] == texts[1]


def declares(row: Any) -> bool:
    """Whether the row belongs to this code. One that is declared does not where its workflow was taken out of the code: nobody's
    look deletes that one."""
    return row.declared and registry.find(row.workflow) is not None


@contextmanager
def removing(rows: models.QuerySet[Any]) -> Iterator[None]:
    """A transaction in which these schedules may be deleted: they and their instances are locked, in the order in which everybody
    locks instances (design 4, "Lock order"). Raises InvalidTransition for a declared one of a known workflow."""
    using = rows.db
    with write_transaction(using):
        locked = list(rows.order_by("pk").select_for_update())
        for row in locked:
            if declares(row):
                raise InvalidTransition(
                    f"The schedule {row} is declared in code: take it out of Meta.schedules, or pause it.",
                    status="declared",
                )
        instances = WorkflowInstance._base_manager.using(using).filter(schedule__in=[row.pk for row in locked])
        list(instances.order_by("pk").select_for_update(no_key=True).values_list("pk"))
        tell(using)
        yield


class ScheduleVerbs(models.Model):
    """The verbs of ``WorkflowSchedule``, and its rules at ``full_clean()`` and ``save()``."""

    workflow: Any
    name: Any
    cron: Any
    timezone: Any
    params: Any
    enabled: Any
    declared: Any
    catch_up: Any
    overlap: Any
    next_slot: Any
    buffered_slot: Any
    look_at: Any
    problem: Any
    skipped: Any

    class Meta:
        abstract = True

    # Saving -----------------------------------------------------------------------------------------------------------

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Check the row as ``clean()`` does and store it. A change of workflow, cron line, time zone or ``enabled`` computes the
        next slot from now: nothing that lies before it is ever started (case SCH-09). Raises ValidationError, DoesNotExist."""
        using = kwargs.get("using") or alias_of(self)
        self.clean()
        with write_transaction(using):
            stored = None if self._state.adding or self.pk is None else self._stored(using, lock=True)
            if stored is None and self.pk is not None and not self._state.adding:
                raise type(self).DoesNotExist(f"The schedule {self} was deleted meanwhile.")
            only = kwargs.get("update_fields")
            if stored is not None and only is not None:
                for name in set(_TIMING).difference(only):  # what is not written counts as it is stored
                    setattr(self, name, getattr(stored, name))
            moved = stored is None or any(getattr(self, name) != getattr(stored, name) for name in _TIMING)
            if stored is None or moved or stored.problem:
                if stored is not None and stored.buffered_slot is not None:
                    self.drop_buffered(stored.buffered_slot, using)
                self._aim(using)
            else:
                for name in _DERIVED:
                    setattr(self, name, getattr(stored, name))
            if only is not None:
                kwargs["update_fields"] = {*only, *_DERIVED}
            super().save(*args, **kwargs)
            tell(using)

    save.alters_data = True  # type: ignore[attr-defined]

    def clean(self) -> None:
        """Refuse what can never fire: a workflow that this code does not know, a bad name, cron line, zone, catch_up or overlap,
        params that the workflow refuses; of a declared row another change than of ``enabled``. Raises ValidationError with one
        message per field; that of the params, which are in no form, belongs to none."""
        stored = self._stored() if self.pk is not None else None
        errors = self._changes_of_declared(stored) if stored is not None and stored.declared else self._mistakes()
        if errors:
            raise ValidationError(errors)

    def _mistakes(self) -> dict[str, str]:
        errors: dict[str, str] = {}
        self._check(errors, "cron", check_cron)
        self._check(errors, "timezone", check_zone)
        self._check(errors, "catch_up", check_catch_up)
        self._check(errors, "overlap", check_overlap)
        self._check(errors, "name", check_schedule_name)
        if not self.declared and "name" not in errors and is_default_name(self.name):
            errors["name"] = f"{self.name!r} is a name for schedules that are declared in code. Give it another one."
        if registry.find(self.workflow) is None:
            errors["workflow"] = (
                f"There is no workflow {self.workflow!r}. Known are: {', '.join(registry.names()) or 'none'}."
            )
        else:
            self._check(errors, "params", self._check_params)
        if wrong := errors.pop("params", ""):
            errors[NON_FIELD_ERRORS] = f"params: {wrong}"
        return errors

    def _changes_of_declared(self, stored: Any) -> dict[str, str]:
        return {
            field: f"The schedule {stored} is declared in code: change {field} in Meta.schedules. Here it can be paused."
            for field in DECLARED
            if not same(getattr(self, field), getattr(stored, field))
        }

    def _check(self, errors: dict[str, str], field: str, check: Callable[[Any], Any]) -> None:
        try:
            setattr(self, field, check(getattr(self, field)))
        except (ValueError, TypeError, DurableflowError) as error:
            errors[field] = str(error)

    def _check_params(self, params: Any) -> Any:
        if isinstance(params, Unreadable):
            raise ValueError(f"They cannot be read: {params.reason}")
        codec.dumps(params, what="params", max_bytes=get_settings().LIMITS.params)
        registry.find(self.workflow).planned(params)  # type: ignore[union-attr]  # its concurrency_key may refuse them
        return params

    def _stored(self, using: str | None = None, *, lock: bool = False) -> Any:
        rows = type(self)._base_manager.using(using or alias_of(self))
        return (rows.select_for_update(no_key=True) if lock else rows).filter(pk=self.pk).first()

    def _aim(self, using: str) -> None:
        self.problem, self.buffered_slot, self.next_slot = "", None, None
        if self.enabled:
            try:
                self.next_slot = next_slot(self.cron, self.timezone, clock.read(using))
            except ValueError as error:  # a declared row that was changed past save()
                raise ValidationError(str(error)) from error
        self.look_at = self.next_slot

    def drop_buffered(self, slot: datetime, using: str) -> None:
        """The slot that waited for an earlier instance will not be started."""
        detail = "It waited for the end of an earlier instance when the schedule was changed or paused."
        row = self.skipped.model(
            schedule=self, slot=slot, last=slot, reason="overlap", detail=detail, at=clock.read(using)
        )
        self.skipped.model._base_manager.using(using).bulk_create([row], ignore_conflicts=True)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete a schedule; its instances stay, with the text of its cron line. No slot starts after it, also none that is due
        (case SCH-09). A declared one of a workflow that this code knows is refused
        (InvalidTransition): the next process would declare it again."""
        with removing(type(self)._base_manager.using(using or alias_of(self)).filter(pk=self.pk)):
            return super().delete(using=using, keep_parents=keep_parents)

    delete.alters_data = True  # type: ignore[attr-defined]

    # Verbs ------------------------------------------------------------------------------------------------------------

    def upcoming(self, count: int = 5) -> list[datetime]:
        """The next ``count`` slots, in UTC; [] while it is paused or has a problem. Read from the row alone, without a query."""
        if not self.enabled or self.problem or self.next_slot is None or count < 1:
            return []
        slots = [self.next_slot]
        try:
            while len(slots) < count:
                slots.append(next_slot(self.cron, self.timezone, slots[-1]))
        except ValueError:  # a row that was changed past save(): the engine will tell
            pass
        return slots

    def pause(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Start nothing any more until ``resume``. What runs goes on. Raises DoesNotExist, PermissionDenied
        (``change_workflowschedule``), InvalidTransition where it is paused already."""
        with self._verb("pause", by, reason, via, enabled=True) as row:
            # Not save(): what cannot fire, and what this code does not know, can be paused too.
            using = row._state.db
            if row.buffered_slot is not None:
                row.drop_buffered(row.buffered_slot, using)
            values = {"enabled": False, "next_slot": None, "buffered_slot": None, "look_at": None}
            type(self)._base_manager.using(using).filter(pk=row.pk).update(**values)
            tell(using)

    def resume(self, *, by: Who = None, reason: str = "", via: str = Via.CODE) -> None:
        """Start at the next slot after now; those that passed meanwhile are not made up for. Raises as ``pause`` does, and
        ValidationError for a row that cannot fire."""
        with self._verb("resume", by, reason, via, enabled=False) as row:
            row.enabled = True
            row.save()

    def run_now(
        self,
        *,
        by: Who = None,
        reason: str = "",
        via: str = Via.CODE,
        request_key: str = "",
        request_digest: str = "",
    ) -> WorkflowInstance:
        """Start an instance now, with the schedule's params, whatever its overlap says and also while it is paused. It has no
        slot; later slots see it as an earlier instance of the schedule.

        ``request_key``: of a request of this person that may come twice. Where it has started an instance already, this starts
        none (InstanceAlreadyExists). ``request_digest``: of what the request says.

        Raises PermissionDenied (``start_workflowinstance``), ValueError for a workflow that this code does not know and for
        params that it refuses, DoesNotExist.
        """
        check_text("reason", reason)
        using = alias_of(self)
        require(by, START, None, f"start {self.workflow}")
        with write_transaction(using):
            row = type(self)._base_manager.using(using).select_for_update(no_key=True).get(pk=self.pk)
            cls = registry.find(row.workflow)
            if cls is None:
                raise ValueError(f"The schedule {row} cannot run: there is no workflow {row.workflow!r} in this code.")
            if isinstance(row.params, Unreadable):
                raise ValueError(f"The schedule {row} cannot run: its params cannot be read: {row.params.reason}")
            trigger = via if via in Trigger.values else Trigger.CODE
            plan = cls.planned(
                row.params,
                created_by=by,
                trigger=trigger,
                via=via,
                schedule=row,
                cron=row.cron,
                reason=reason,
                request_key=request_key,
                request_digest=request_digest,
            )
            instance = insert(plan)
            if instance is None:  # its id is a new UUID, so that only the key can be taken
                raise InstanceAlreadyExists(f"The request {request_key!r} has started an instance of {row} already.")
        self.told("run", by, reason, via, using)
        return instance

    apause = async_twin(pause)
    aresume = async_twin(resume)
    arun_now = async_twin(run_now)

    @contextmanager
    def _verb(self, name: str, by: Who, reason: str, via: str, *, enabled: bool) -> Iterator[Any]:
        check_text("reason", reason)
        using = alias_of(self)
        with write_transaction(using):
            row = type(self)._base_manager.using(using).select_for_update(no_key=True).get(pk=self.pk)
            require(by, CHANGE, row, f"{name} the schedule {row}")
            if row.enabled is not enabled:
                state = "paused" if enabled else "enabled"
                raise InvalidTransition(f"{name} is not possible: the schedule {row} is {state} already.", status=state)
            yield row
            self.told(name, by, reason, via, using)
        self.refresh_from_db(using=using)

    def told(self, verb: str, by: Who, reason: str, via: str, using: str) -> None:
        """Say in the log ``durableflow.audit`` who has done what to the schedule, once that is committed: a schedule has no
        history. Verbs do it themselves; this is for doors that create, edit and delete."""
        extra = {"schedule": self.pk, "workflow": self.workflow, "verb": verb, "actor": name_of(by)}
        extra |= {"reason": reason, "via": str(via)}
        told = (str(self), verb, name_of(by) or "code", str(via), reason or "none given")
        say = partial(audit.info, "Schedule %s: %s by %s via %s. Reason: %s", *told, extra=extra)
        transaction.on_commit(say, using=using, robust=True)
