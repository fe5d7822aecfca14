"""Hostile data is shown as text (SEC-07), and templates carry no inline style or script (style, trap 10)."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.urls import reverse
from django.utils.html import escape

import durableflow
from durableflow.core.statuses import StepStatus
from durableflow.models import HistoryEntry
from durableflow.pages.values import json_html
from tests.admin.rows import S, add_history, make_instance, make_step, make_wait, send

EVIL = "</script><img src=x onerror=alert(1)>\"'{{7*7}}{% now %}&amp;"
TEMPLATES = Path(durableflow.__file__).parent / "templates"
INLINE = re.compile(r"""<style\b|\sstyle\s*=|\son[a-z]+\s*=|javascript:|<script\b(?![^>]*\bsrc=)""", re.IGNORECASE)


@pytest.mark.parametrize(
    "template", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: str(path.relative_to(TEMPLATES))
)
def test_templates_have_no_inline_style_or_script(template) -> None:
    """They work under a strict content security policy."""
    assert not INLINE.search(template.read_text())


def test_the_pattern_finds_what_it_looks_for() -> None:
    """The check above can fail."""
    for text in ('<p style="x">', "<style>", '<a onclick="x">', "<script>x</script>", '<a href="javascript:x">'):
        assert INLINE.search(text)
    assert not INLINE.search('<script src="x.js" defer></script>')


def test_python_marks_no_data_as_safe() -> None:
    """HTML is made by format_html alone."""
    for path in [
        *Path(durableflow.__file__).parent.glob("admin/*.py"),
        *Path(durableflow.__file__).parent.glob("pages/*.py"),
    ]:
        assert "mark_safe(" not in path.read_text()


class Tags(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        names = {name for name, _value in attrs}
        if (tag == "img" and dict(attrs).get("src") == "x") or any(
            name.startswith("on") or name == "style" for name in names
        ):
            self.bad.append(f"{tag} {attrs}")


@pytest.fixture
def hostile(superuser):
    """An instance and waits in which every free text is hostile."""
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL, "step": EVIL}
    data = {EVIL: [EVIL, {EVIL: EVIL}]}
    instance = make_instance(
        status=S.ERRORED,
        params=data,
        output=data,
        progress=data,
        error_data=error,
        created_by=superuser,
        created_by_name=EVIL,
    )
    make_step(instance, EVIL, scope=EVIL, raw_output=data)
    make_step(instance, EVIL, count=2, status=StepStatus.FAILED, attempts=2, error_data=error)
    for attempt in (1, 2):
        add_history(instance, "attempt_errored", step=f"{EVIL}-2", kind="do", data={"attempt": attempt, "error": error})
    add_history(instance, "workflow_queued", reason=EVIL, actor_name=EVIL, data=data)
    send(instance, "x", data)
    send(instance, EVIL, EVIL)
    waiting = make_instance(created_by=superuser, created_by_name=EVIL, progress=EVIL)
    wait = make_wait(waiting, EVIL, title=EVIL, description=EVIL, context=data)
    decided = make_wait(waiting, "decided", title=EVIL)
    decided.reject(by=superuser, comment=EVIL)
    type(decided).objects.filter(pk=decided.pk).update(decided_by_name=EVIL)
    blocked = make_instance(status=S.PAUSED, blocked=EVIL)
    return instance, waiting, wait, decided, blocked


@pytest.mark.django_db
def test_hostile_data_is_text(login, superuser, hostile) -> None:
    """SEC-07: lists, pages, viewer, confirmations, messages, staff log, decision link."""
    instance, waiting, wait, decided, blocked = hostile
    client = login(superuser)
    base, pending = "admin:durableflow_workflowinstance_", "admin:durableflow_pendingevent_"
    client.post(reverse(f"{base}retry", args=[make_failed_like(instance).pk]), {"reason": EVIL})
    addresses = [
        reverse(f"{base}changelist"),
        reverse(f"{pending}changelist"),
        reverse(f"{pending}changelist") + "?show=all",
        *(reverse(f"{base}change", args=[row.pk]) for row in (instance, waiting, blocked)),
        *(
            reverse(f"{base}{verb}", args=[row.pk])
            for verb, row in (("retry", instance), ("terminate", waiting), ("resume", blocked))
        ),
        *(
            reverse(f"{pending}{name}", args=[row.pk])
            for name in ("change", "decide", "history")
            for row in (wait, decided)
        ),
        reverse(f"{base}history", args=[instance.pk]),
        wait.decision_url(superuser).removeprefix("http://testserver"),
        decided.decision_url(superuser).removeprefix("http://testserver"),
        reverse(f"{base}changelist") + "?q=%3Cimg%20src=x%20onerror=1%3E",
    ]
    for address in addresses:
        response = client.get(address)
        assert response.status_code == 200, address
        text = response.content.decode()
        parser = Tags()
        parser.feed(text)
        assert not parser.bad, (address, parser.bad)
        assert "49{%" not in text
    bulk = client.post(
        reverse(f"{base}changelist"), {"action": "retry_selected", "_selected_action": [instance.pk, waiting.pk]}
    )
    parser = Tags()
    parser.feed(bulk.content.decode())
    assert not parser.bad


def make_failed_like(instance):
    """Another failed instance, so that the first one stays failed."""
    return make_instance(status=S.ERRORED, error_data=instance.error_data)


@pytest.mark.django_db
def test_json_answers_are_json(login, superuser, hostile) -> None:
    """SEC-07: no browser takes them for a page."""
    for part in ("params", "error"):
        response = login(superuser).get(reverse("admin:durableflow_workflowinstance_json", args=[hostile[0].pk, part]))
        assert response["Content-Type"] == "application/json"
        assert response["X-Content-Type-Options"] == "nosniff"
    assert HistoryEntry.objects.exists()


def test_viewer_escapes_and_cuts() -> None:
    """Keys and texts are escaped; what is too much is cut and linked."""
    drawn = json_html({EVIL: EVIL})
    assert "<img" not in drawn and "&lt;img" in drawn
    big = json_html(list(range(1_000)), "/full/")
    assert 'href="/full/"' in big and "600 more entries" in big
    assert len(json_html("x" * 100_000, "/full/")) < 3_000
    deep: object = 1
    for _ in range(90):
        deep = [deep]
    assert "Not everything is shown." in json_html(deep)
    for value, text in ((None, "null"), (True, "true"), (1.5, "1.5"), ({}, "{ }"), ([], "[ ]"), ("", "&quot;&quot;")):
        assert text in json_html(value)


@pytest.mark.parametrize(
    ("value", "linked"),
    [
        ("https://shop.example/pictures/7?a=1&b=2", True),
        ("http://127.0.0.1:8000/x", True),
        ("javascript:alert(1)", False),
        ("see https://shop.example/", False),
        ('https://x/"><script>', True),
        ("data:text/html,x", False),
    ],
)
def test_addresses_in_values_are_links_and_nothing_else_is(value: str, linked: bool) -> None:
    """SEC-07: only a whole http(s) address becomes a link, escaped, with itself as its text."""
    html = json_html({"at": value})
    assert (
        f'<a class="df-text" href="{escape(value)}" rel="noopener noreferrer">{escape(value)}</a>' in html
    ) is linked
    assert "<script>" not in html
