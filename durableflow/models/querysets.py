"""Vocabulary for lists (design 9, api.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from django.db import connections, models, router
from django.db.models import Q

from durableflow.core import clock
from durableflow.core.statuses import ACTIVE, FINISHED, PendingStatus, Status, StepKind
from durableflow.models.instance_fields import CLAIM_CLASSES, Who
from durableflow.models.permissions import DECIDE, VIEW, VIEW_PENDING, holds
from durableflow.models.removal import removing

HEAVY = ("params", "output", "error_data", "progress", "rollback")
OVERDUE_AFTER = timedelta(minutes=1)


class InstanceQuerySet(models.QuerySet[Any]):
    """Instances."""

    def for_workflow(self, workflow: Any) -> Self:
        """Those of one workflow, given as its class or its name."""
        return self.filter(workflow=workflow if isinstance(workflow, str) else workflow.workflow_name())

    def active(self) -> Self:
        """Those that have not ended."""
        return self.filter(status__in=sorted(ACTIVE))

    def finished(self) -> Self:
        """Those that have ended: complete, errored or terminated."""
        return self.filter(status__in=sorted(FINISHED))

    def failed(self) -> Self:
        """Those that need a person: errored, or blocked."""
        return self.filter(Q(status=Status.ERRORED) | ~Q(blocked=""))

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
        """Those that can still be answered: open, and not past their deadline (design 8)."""
        now = clock.comparable(connections[self.db].vendor)
        return self.filter(Q(deadline__isnull=True) | Q(deadline__gte=now), status=PendingStatus.OPEN)

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
        every = self.model._default_manager.using(self.db).order_by()
        approvals = every.filter(kind=StepKind.WAIT_FOR_APPROVAL)
        arms = [
            every.filter(instance__created_by=user.pk),
            every.filter(decided_by=user.pk),
            *(approvals.filter(rule) for rule in admitting(user)),
        ]
        # A union: each arm has its index, where an OR would read every wait there has ever been.
        seen = arms[0].values("pk").union(*(arm.values("pk") for arm in arms[1:]))
        return self.filter(pk__in=seen)


def barred_q(user: Any) -> Q:
    """Waits that bar ``user`` as the one who asked, superusers too."""
    return Q(allow_requester=False, instance__created_by=user.pk)


def may_decide_q(queryset: models.QuerySet[Any], user: Any) -> Q:
    """Waits whose rule admits ``user``, the requester rule apart."""
    if user.is_superuser:
        return Q()
    base = queryset.model._default_manager.using(queryset.db)
    named, in_group, *others = admitting(user)
    rule = Q(pk__in=base.filter(named).values("pk")) | Q(pk__in=base.filter(in_group).values("pk"))
    for other in others:
        rule |= other
    return rule


def admitting(user: Any) -> list[Q]:
    """The rules of which each by itself admits ``user``, no superuser, to a wait: named, in a named group, with the
    named permission, or with the general right where nobody is named (design 8)."""
    rules = [Q(users=user.pk), Q(groups__user=user.pk), Q(permission__in=sorted(user.get_all_permissions()))]
    return [*rules, Q(restricted=False)] if holds(user, DECIDE) else rules
