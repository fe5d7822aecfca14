"""What goes with a deleted instance, what stays, and what a project protects (design 9; reference 14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from django.db import models
from django.utils.html import format_html
from django.utils.translation import gettext as _

from durableflow.admin.family import ending_and_staying
from durableflow.admin.plans import Plan, named
from durableflow.models import WorkflowInstance

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise as Text

MOST_PROTECTED: Final = 10
MOST_COUNTED: Final = 10_000
KEEP: Final = (models.PROTECT, models.RESTRICT)


@dataclass
class Relatives:
    """Rows that point to an instance, by what becomes of them: ``going`` and ``staying`` are number and name, ``protecting`` names."""

    going: list[str] = field(default_factory=list)
    staying: list[str] = field(default_factory=list)
    protecting: list[str] = field(default_factory=list)


def relatives_of(instance: WorkflowInstance) -> Relatives:
    """Look at each table that points to instances, the project's too; one bounded query for each."""
    found = Relatives()
    for relation in type(instance)._meta.get_fields(include_hidden=True):
        if not isinstance(relation, models.ForeignObjectRel) or not relation.on_delete:
            continue
        rows: Any = relation.related_model._base_manager.using(instance._state.db)
        rows = rows.filter(**{relation.field.name: instance.pk}).order_by()
        if relation.on_delete in KEEP:
            found.protecting += protectors(rows[: MOST_PROTECTED + 1])
            continue
        number = rows.values("pk")[: MOST_COUNTED + 1].count()
        if number:
            goes = relation.on_delete is models.CASCADE
            (found.going if goes else found.staying).append(_number(number, relation.related_model))
    return found


def protectors(rows: Any) -> list[str]:
    """Names of the first rows that keep an instance from being deleted: ``shop order "Order 7"``."""
    return [f'{row._meta.verbose_name} "{row}"' for row in islice(rows, MOST_PROTECTED + 1)]


def protected_text(names: list[str]) -> Text:
    """Why it cannot be deleted."""
    return _("It cannot be deleted, because other rows need it: %(rows)s. Nothing was changed.") % {
        "rows": named(names)
    }


def plan_of_deleting(instance: WorkflowInstance, found: Relatives, user: Any, url: Callable[..., str]) -> Plan:
    """What the confirmation says."""
    plan = Plan()
    if not instance.is_finished:
        plan.warnings.append(
            _("It has not ended (%(status)s). What it still does is dropped.")
            % {"status": instance.get_status_display()}
        )
    plan.changed += [_("Deleted with it: %(what)s") % {"what": what} for what in found.going]
    plan.kept += [_("Kept, without its link to it: %(what)s") % {"what": what} for what in found.staying]
    ended, left = ending_and_staying(instance, user, url)
    if ended:
        plan.changed.append(format_html(str(_("Child workflows that are terminated: {}")), ended))
    if left:
        plan.kept.append(format_html(str(_("Child workflows that go on: {}")), left))
    plan.kept.append(_("The entry in the staff log that says who deleted it."))
    return plan


def _number(number: int, model: Any) -> str:
    meta = model._meta
    shown = f"{MOST_COUNTED:,}+" if number > MOST_COUNTED else f"{number:,}"
    return f"{shown} {meta.verbose_name if number == 1 else meta.verbose_name_plural}"
