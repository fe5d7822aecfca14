"""The screens in a real Chromium, under a strict content security policy."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.urls import reverse
from playwright.sync_api import Browser, Page, sync_playwright

from durableflow.core.statuses import StepKind, StepStatus
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance
from tests.admin.rows import REFUND, S, add_history, make_failed, make_instance, make_step, make_wait, send

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "</script><img src=x onerror=alert(1)>\"'{{7*7}}"
NARROW = 400
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]


@pytest.fixture
def browser(monkeypatch) -> Iterator[Browser]:
    """A browser. Playwright runs a loop in this thread, which Django would take for asynchronous code."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
        # Under a running loop this thread has database connections of its own, which nobody else would close.
        connections.close_all()


@pytest.fixture
def page_for(browser, live_server, login, settings):
    """``page_for(user, width=..., scheme=...)``: a page in which the user is logged in; what goes wrong is in ``page.trouble``."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.csp.StrictPolicy"]
    settings.DURABLEFLOW = {"BASE_URL": live_server.url}

    def make(user: User, *, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            base_url=live_server.url, viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        session = login(user).cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
        page = context.new_page()
        page.trouble = []
        page.on("dialog", lambda dialog: (page.trouble.append("dialog"), dialog.dismiss()))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on(
            "console",
            lambda message: page.trouble.append(message.text) if "Content Security Policy" in message.text else None,
        )
        return page

    return make


def test_a_person_approves(page_for, manager) -> None:
    """From the inbox through the form to the stored decision, with an error on the way."""
    wait = make_wait(
        make_instance(), title="Order over 500", context={"total": 612}, groups=[manager.groups.get()], form=REFUND
    )
    page = page_for(manager)
    page.goto(reverse("admin:durableflow_pendingevent_changelist"))
    page.get_by_role("link", name="Order over 500").click()
    page.get_by_label("Amount:").fill("1e9")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Please correct what is marked below").wait_for()
    page.get_by_label("Amount:").fill("12.50")
    page.get_by_label("Comment:").fill("fine")
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("Your decision was stored").wait_for()
    assert page.get_by_role("button", name="Approve").count() == 0
    wait.refresh_from_db()
    assert (wait.approved, wait.data["amount"], wait.comment) == (True, Decimal("12.50"), "fine")
    assert wait.decided_by == manager
    assert page.trouble == []


def test_a_person_rejects_without_filling_the_form(page_for, manager) -> None:
    """The wait's required fields do not stand in the way of a rejection."""
    wait = make_wait(make_instance(), title="Order over 500", groups=[manager.groups.get()], form=REFUND)
    page = page_for(manager)
    page.goto(reverse("admin:durableflow_pendingevent_change", args=[wait.pk]))
    page.get_by_role("button", name="Reject").click()
    page.get_by_text("Say why you reject.").wait_for()
    page.get_by_label("Comment:").fill("too dear")
    page.get_by_role("button", name="Reject").click()
    page.get_by_text("Your decision was stored").wait_for()
    wait.refresh_from_db()
    assert (wait.approved, wait.comment) == (False, "too dear")


def test_a_person_decides_by_link(page_for, customer) -> None:
    """Without staff status."""
    wait = make_wait(make_instance(), title="Ship it?", users=[customer])
    page = page_for(customer)
    page.goto(wait.decision_url(customer))
    page.get_by_role("button", name="Approve").click()
    page.get_by_text("by customer").wait_for()
    assert PendingEvent.objects.get(pk=wait.pk).via == "link"
    assert page.trouble == []


def test_an_operator_retries_two_at_once(page_for, superuser) -> None:
    """Checkboxes, action, confirmation, result."""
    for _ in range(2):
        make_failed()
    page = page_for(superuser)
    page.goto(reverse("admin:durableflow_workflowinstance_changelist"))
    for box in page.locator("input[name=_selected_action]").all():
        box.check()
    page.get_by_label("Action:").select_option("retry_selected")
    page.get_by_role("button", name=re.compile("^(Go|Run)$")).click()  # its name before and from Django 6.1
    page.get_by_label("Reason:").fill("after the deploy")
    page.get_by_role("button", name="Retry 2 instances").click()
    page.get_by_text("Retry: 2 done").wait_for()
    assert WorkflowInstance.objects.filter(status=S.QUEUED).count() == 2
    assert page.trouble == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_run_no_data(page_for, superuser, scheme) -> None:
    """SEC-07 in a browser; no page scrolls sideways at 400 px, with long ids, hostile texts and many steps."""
    data = {EVIL: [EVIL, {"x" * 200: "y" * 3_000}]}
    instance = make_instance(workflow="w" * 64, instance_id="i" * 100, params=data, progress=EVIL, created_by=superuser)
    for seq in range(1, 41):
        make_step(instance, EVIL if seq == 1 else "z" * 200 + str(seq), seq=seq, raw_output=data)
    wait = make_wait(instance, EVIL, title=EVIL, description="d" * 300, context=data, form=REFUND)
    send(instance, "t" * 100, data)
    failed = make_failed(instance_id="f" * 100)
    # The banner of a late instance, on each page.
    make_instance(workflow="w" * 64, instance_id="q" * 100, status=S.QUEUED, wake_at=failed.created)
    base, pending = "admin:durableflow_workflowinstance_", "admin:durableflow_pendingevent_"
    page = page_for(superuser, width=NARROW, scheme=scheme)
    for address in (
        reverse(f"{base}changelist"),
        reverse(f"{base}changelist") + "?q=none",
        reverse(f"{base}change", args=[instance.pk]),
        reverse(f"{base}change", args=[failed.pk]),
        reverse(f"{base}retry", args=[failed.pk]),
        reverse(f"{base}terminate", args=[instance.pk]),
        reverse(f"{base}resume", args=[failed.pk]),
        reverse(f"{pending}changelist"),
        reverse(f"{pending}change", args=[wait.pk]),
        wait.decision_url(superuser),
    ):
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(element => { element.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, address
        assert page.trouble == [], address
        assert page.locator("h1").count() >= 1


def make_parent() -> WorkflowInstance:
    """A parent with a gather in which a step has failed, and a join with an open and a failed child."""
    parent = make_instance(workflow="book", instance_id="the-book")
    make_step(parent, "cover and index", kind=StepKind.GATHER, status=StepStatus.FAILED)
    for number, status in enumerate((StepStatus.COMPLETE, StepStatus.FAILED), start=1):
        step = make_step(parent, "draft", scope=f"cover and index-1[{number}]", status=status)
        add_history(parent, "step_completed", step=step.label, kind="do", data={"attempt": 1})
    make_step(parent, "pages", kind=StepKind.CHILD, status=StepStatus.PENDING, finished=None, remaining=1)
    for count, (status, own) in enumerate(((StepStatus.PENDING, S.WAITING), (StepStatus.FAILED, S.ERRORED)), start=1):
        step = make_step(parent, "pages", scope="pages-1", count=count, kind=StepKind.CHILD, status=status)
        make_instance(
            workflow="page", instance_id="p" * 60 + str(count), parent_step=step, status=own, on_parent_end="terminate"
        )
        add_history(parent, "child_started", step=step.label, kind="child")
    return parent


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_groups_and_children_can_be_read_and_followed_on_a_phone(page_for, superuser, scheme) -> None:
    """CHD-02: from the parent to a child and back; names are broken between words, not letter by letter."""
    parent = make_parent()
    page = page_for(superuser, width=375, scheme=scheme)
    base = "admin:durableflow_workflowinstance_"
    page.goto(reverse(f"{base}change", args=[parent.pk]))
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    cells = page.locator(".df-history td.df-name").all()
    assert len(cells) > 4
    for cell in cells:
        box = cell.bounding_box()
        assert box is not None and box["width"] >= 150 and box["height"] <= 120, "no letter by letter"
    page.get_by_role("link", name="page/" + "p" * 60 + "1").click()
    page.get_by_role("link", name="book/the-book, step pages-1/pages-1").click()
    step = StepRecord.objects.get(name="pages", scope="pages-1", count=1)
    assert page.url.endswith(f"#step-{step.pk}")
    page.get_by_role("link", name="List of its child workflows").click()
    page.get_by_text("book/the-book, pages-1").first.wait_for()
    assert page.locator("#result_list tbody tr").count() == 2
    page.goto(reverse(f"{base}terminate", args=[parent.pk]))
    assert page.get_by_role("link", name="page/" + "p" * 60 + "1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.trouble == []
