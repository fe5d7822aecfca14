"""Vocabulary for lists (design 9, api.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from django.db import connections, models, router
from django.db.models import Case, Exists, OuterRef, Q, When

from durableflow.core import clock
from durableflow.core.statuses import ACTIVE, FINISHED, PendingStatus, Status, StepKind
from durableflow.models.instance_fields import CLAIM_CLASSES, HEAVY, Who
from durableflow.models.permissions import DECIDE, VIEW, VIEW_PENDING, holds
from durableflow.models.removal import removing
from durableflow.models.undoing import NOT_UNDONE

OVERDUE_AFTER = timedelta(minutes=1)


class InstanceQuerySet(models.QuerySet[Any]):
    """Instances."""

    def for_workflow(self, workflow: Any) -> Self:
        """Those of one workflow, given as its class or its name. A class has also those that are stored under its
        previous names; a name has those that are stored under it."""
        names = (workflow,) if isinstance(workflow, str) else workflow.options.names
        return self.filter(workflow=names[0]) if len(names) == 1 else self.filter(workflow__in=names)

    def with_id(self, workflow: Any, instance_id: str, *, first: str) -> Self:
        """Of one workflow the instance of this id; where two have it, the one that is stored as ``first`` comes first.

        Two can have it where creators with the code before and after a renaming have met in a deploy (``previous_names``).
        """
        rows = self.for_workflow(workflow).filter(instance_id=instance_id)
        if isinstance(workflow, str) or not workflow.options.previous_names:
            return rows
        return rows.order_by(Case(When(workflow=first, then=0), default=1), "-id")

    def active(self) -> Self:
        """Those that have not ended."""
        return self.filter(status__in=sorted(ACTIVE))

    def finished(self) -> Self:
        """Those that have ended: complete, errored or terminated."""
        return self.filter(status__in=sorted(FINISHED))

    def failed(self) -> Self:
        """Those that need a person: errored, blocked, or ended with something that could not be undone."""
        return self.filter(Q(status=Status.ERRORED) | ~Q(blocked="") | NOT_UNDONE)

    def not_undone(self) -> Self:
        """Those that have ended, and of which something could not be undone. By an index."""
        return self.filter(NOT_UNDONE)

    def with_not_undone(self) -> Self:
        """Each row says in ``is_not_undone`` whether it is one of these."""
        return self.annotate(is_not_undone=Case(When(NOT_UNDONE, then=True), default=False))

    def due(self) -> Self:
        """Those that need a worker now."""
        return self._due_for(timedelta())

    def overdue(self) -> Self:
        """Those that have needed a worker for more than a minute and have none."""
        return self._due_for(OVERDUE_AFTER)

    def _due_for(self, time: timedelta) -> Self:
        # All classes, by name: the index of due rows begins with the class.
        since = clock.comparable(connections[self.db].vendor, -time)
        return self.filter(claim_class__in=CLAIM_CLASSES, wake_at__lte=since)

    def waiting_for(self, user: Who) -> Self:
        """Those with an open approval that ``user`` may decide."""
        pending: Any = self.model._meta.get_field("pending_events").related_model
        mine = pending._default_manager.using(self.db).decidable_by(user)
        return self.filter(pk__in=mine.values("instance"))

    def visible_to(self, user: Who) -> Self:
        """Those that ``user`` may see: all with the view permission, else the user's own (design 9)."""
        if holds(user, VIEW):
            return self.all()
        if user is None or not user.is_authenticated or not user.is_active:
            return self.none()
        return self.filter(created_by=user.pk)

    def light(self) -> Self:
        """Without the big columns, for lists (design 2)."""
        return self.defer(*HEAVY)

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the rows with all that belongs to them, as Django does, in one transaction that has locked them first;
        slots that they held are free then. What a running one still does finds no row and is dropped."""
        query: Any = self
        if query.query.is_sliced or query.query.distinct or query.query.combinator or query._fields is not None:
            return super().delete()  # Django refuses it
        using = query._db or router.db_for_write(self.model, **query._hints)
        keys = list(self.using(using).order_by().values_list("pk", flat=True))
        plain: models.QuerySet[Any] = self.model._base_manager.using(using)
        with removing(plain.filter(pk__in=keys)) as pks:
            return plain.filter(pk__in=pks).delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class PendingEventQuerySet(models.QuerySet[Any]):
    """Pending events."""

    def open(self) -> Self:
        """Those that can still be answered: open, and not past their deadline (design 8). While their instance is paused its
        clock stands still, and so do their deadlines (case EVT-15)."""
        return self.filter(self.open_q())

    def open_q(self) -> Q:
        """The condition of ``open()``."""
        now = clock.comparable(connections[self.db].vendor)
        in_time = Q(deadline__isnull=True) | Q(deadline__gte=now) | Q(self._standing_still())
        return Q(status=PendingStatus.OPEN) & in_time

    def late_q(self) -> Q:
        """Those whose time is over, though no worker was up to say so: open, but not in ``open()``."""
        now = clock.comparable(connections[self.db].vendor)
        return Q(status=PendingStatus.OPEN, deadline__lt=now) & ~Q(self._standing_still())

    def _standing_still(self) -> Exists:
        """Whether the instance was paused before the deadline. Asked of the few open waits alone that are past it."""
        instances: Any = self.model._meta.get_field("instance").related_model
        paused = instances._base_manager.filter(pk=OuterRef("instance"), paused_at__lte=OuterRef("deadline"))
        return Exists(paused.order_by())

    def approvals(self) -> Self:
        """Those that a person decides."""
        return self.filter(kind=StepKind.WAIT_FOR_APPROVAL)

    def decidable_by(self, user: Who) -> Self:
        """Open approvals that ``user`` may decide: listed users and groups, holders of the named permission, else of
        ``durableflow.decide_pendingevent``; not the creator where the wait bars the requester (design 8)."""
        if user is None or not user.is_authenticated or not user.is_active:
            return self.none()
        return self.open().approvals().filter(may_decide_q(self, user)).exclude(barred_q(user))

    def visible_to(self, user: Who) -> Self:
        """Those that ``user`` may see: all with ``view_pendingevent``, else those of own instances and those the
        user may decide or has decided."""
        if holds(user, VIEW_PENDING) or holds(user, VIEW):
            return self.all()
        if user is None or not user.is_authenticated or not user.is_active:
            return self.none()
        approvals = Q(kind=StepKind.WAIT_FOR_APPROVAL)
        arms = [Q(instance__created_by=user.pk), Q(decided_by=user.pk), *(approvals & rule for rule in naming(user))]
        return self.filter(any_of(self, arms, approvals & Q(restricted=False) if holds(user, DECIDE) else None))


def barred_q(user: Any) -> Q:
    """Waits that bar ``user`` as the one who asked, superusers too."""
    return Q(allow_requester=False, instance__created_by=user.pk)


def may_decide_q(queryset: models.QuerySet[Any], user: Any) -> Q:
    """Waits whose rule admits ``user``, the requester rule apart."""
    if user.is_superuser:
        return Q()
    waits = Q(kind=StepKind.WAIT_FOR_APPROVAL, status=PendingStatus.OPEN)
    arms = [waits & rule for rule in naming(user)]
    return any_of(queryset, arms, Q(restricted=False) if holds(user, DECIDE) else None)


def naming(user: Any) -> list[Q]:
    """The rules of which each by itself admits ``user`` to a wait that names somebody: the user, a group of the user, a
    permission of the user (design 8)."""
    permitted = Q(permission__in=sorted(user.get_all_permissions())) & ~Q(permission="")
    return [Q(users=user.pk), Q(groups__user=user.pk), permitted]


def any_of(queryset: models.QuerySet[Any], arms: list[Q], most: Q | None) -> Q:
    """Rows that one of ``arms`` admits, of which each has an index and few rows; or ``most``, which has none and many.

    Without ``most`` the few rows are looked up. With it nearly each row fits, so that the newest are found soon by
    reading from the newest on; the arms are then sets that a row is looked for in.
    """
    every = queryset.model._default_manager.using(queryset.db).order_by()
    keys = [every.filter(arm).values("pk") for arm in arms]
    if most is None:
        return Q(pk__in=keys[0].union(*keys[1:]))
    rule = most
    for each in keys:
        rule |= Q(pk__in=each)
    return rule
