"""What becomes of child workflows when their parents are ended by hand (design 7, 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db.models import F, Q
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durableflow.core.statuses import ACTIVE, StepStatus
from durableflow.models import WorkflowInstance
from durableflow.models.family import TERMINATE

MOST_LINKED: Final = 10
AT_ONCE: Final = 500
DERIVED: Final = r"^[0-9a-f]{32}(-[0-9]+)?(-r[0-9]+)?$"
"""The ids that ``engine.child_plans`` derives."""
ENDING: Final = Q(on_parent_end=TERMINATE)


def ending_and_staying(
    instance: WorkflowInstance, user: Any, url: Callable[..., str]
) -> tuple[SafeString | str, SafeString | str]:
    """The children that end with the instance, and those that go on: how many, and links to the first of those that ``user``
    may see. '' where there are none. Four queries at most."""
    children = _open_children([instance.pk])
    return _told(children.filter(ENDING), user, url), _told(children.exclude(ENDING), user, url)


def joined(
    instance: WorkflowInstance, steps: Any, user: Any, url: Callable[..., str]
) -> tuple[SafeString | str, SafeString | str]:
    """The same for a new run: the children that the dropped ``steps`` wait for end if they belong to them, the others go on."""
    ours = steps.order_by().values("pk")
    waited = steps.filter(status=StepStatus.PENDING).order_by().values("pk")
    children = _open_children([instance.pk]).filter(parent_step__in=ours)
    ends = ENDING & Q(parent_step__in=waited)
    return _told(children.filter(ends), user, url), _told(children.exclude(ends), user, url)


def given_ids(steps: Any, user: Any, url: Callable[..., str]) -> SafeString | str:
    """The same for the children of ``steps`` whose ids the program gave itself: a new run cannot start others under them. An id that
    derives from its call is new in each run."""
    children = WorkflowInstance.objects.filter(parent_step__in=steps.order_by().values("pk")).order_by("id")
    return _told(children.exclude(instance_id__regex=DERIVED), user, url)


def have_given_ids(keys: Sequence[int]) -> bool:
    """Whether the present run of one of these instances has such a child. One query for each few hundred, until one is found."""
    run = F("parent_step__instance__run_number")
    children = WorkflowInstance.objects.filter(parent_step__run_number=run).exclude(instance_id__regex=DERIVED)
    some = (keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE))
    return any(children.filter(parent_step__instance__in=each).exists() for each in some)


def number_told(keys: Sequence[int]) -> list[str]:
    """Sentences that say how many children end with the instances of these keys, and how many go on; those that are among them
    are no news. One query for each few hundred."""
    ending = staying = 0
    among = set(keys)
    for start in range(0, len(keys), AT_ONCE):
        children = _open_children(keys[start : start + AT_ONCE]).order_by()
        for pk, on_parent_end in children.values_list("pk", "on_parent_end"):
            if pk not in among:
                ending += on_parent_end == TERMINATE
                staying += on_parent_end != TERMINATE
    told = []
    if ending:
        text = ngettext("%(n)d child workflow ends with them.", "%(n)d child workflows end with them.", ending)
        told.append(text % {"n": ending})
    if staying:
        text = ngettext("%(n)d child workflow goes on.", "%(n)d child workflows go on.", staying)
        told.append(text % {"n": staying})
    return told


def _open_children(parents: Sequence[int]) -> Any:
    return WorkflowInstance.objects.filter(parent_step__instance__in=parents, status__in=sorted(ACTIVE)).order_by("id")


def _told(children: Any, user: Any, url: Callable[..., str]) -> SafeString | str:
    number = children.count()
    if not number:
        return ""
    seen = children.visible_to(user).values_list("id", "workflow", "instance_id")[:MOST_LINKED]
    links = [(url("change", pk), f"{workflow}/{instance_id}") for pk, workflow, instance_id in seen]
    if not links:
        return str(number)
    more = number - len(links)
    rest = _(" and %(n)d more") % {"n": more} if more else ""
    return format_html("{} ({}{})", number, format_html_join(", ", '<a href="{}">{}</a>', links), rest)
