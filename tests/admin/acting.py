"""What tests of verbs in the admin do over and over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.urls import reverse

from durableflow.models import WorkflowInstance

LIST = reverse("admin:durableflow_workflowinstance_changelist", urlconf="tests.admin.urls")
BULK = reverse("admin:durableflow_workflowinstance_bulk", urlconf="tests.admin.urls")


def verb_url(verb: str, instance: WorkflowInstance, *more: Any) -> str:
    """The address of a verb's page."""
    return reverse(f"admin:durableflow_workflowinstance_{verb}", args=[instance.pk, *more])


def text_of(response: Any) -> str:
    """The page with white space folded."""
    return re.sub(r"\s+", " ", response.content.decode())


def messages_of(response: Any) -> list[str]:
    """What the page tells."""
    return [str(message) for message in response.context["messages"]]


def select(client: Any, verb: str, rows: Iterable[WorkflowInstance], query: str = "", **more: Any) -> Any:
    """Tick rows and choose an action: the page that asks."""
    data = {"action": f"{verb}_selected", "_selected_action": [row.pk for row in rows], **more}
    return client.post(f"{LIST}{query}", data, follow=True)


def confirm(client: Any, page: Any, **said: Any) -> Any:
    """Press the button of the page that asks, or "Go on"."""
    return client.post(BULK, {"job": page.context["job"], **said}, follow=True)


def page_of(client: Any, instance: WorkflowInstance) -> str:
    """The page of an instance."""
    return text_of(client.get(reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])))
