"""Every address of the admin for every kind of person, by GET and by POST (style, trap 3; SEC-02, SEC-16)."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.urls import reverse

from durableflow.models import PendingEvent, WorkflowInstance
from tests.admin.rows import S, make_blocked, make_failed, make_instance, make_step, make_wait, snapshot

pytestmark = pytest.mark.django_db
PEOPLE = ("anonymous", "bare", "viewer", "operator", "decider", "requester", "superuser")

# What each person gets, in the order of PEOPLE. 302 of the anonymous: to the login. The instance and the wait are not
# the requester's unless the address says "own".
GET = {
    "instance list": (302, 403, 200, 200, 403, 200, 200),
    "instance add": (302, 403, 403, 403, 403, 403, 403),
    "instance change": (302, 404, 200, 200, 404, 404, 200),
    "instance delete": (302, 404, 403, 403, 404, 404, 200),
    "instance bulk": (302, 405, 405, 405, 405, 405, 405),
    "instance history": (302, 404, 200, 200, 404, 404, 200),
    "instance json params": (302, 404, 200, 200, 404, 404, 200),
    "instance json step": (302, 404, 200, 200, 404, 404, 200),
    "instance retry": (302, 404, 403, 200, 404, 404, 200),
    "instance pause": (302, 404, 403, 200, 404, 404, 200),
    "instance resume": (302, 404, 403, 200, 404, 404, 200),
    "instance restart": (302, 404, 403, 200, 404, 404, 200),
    "instance restart_from": (302, 404, 403, 200, 404, 404, 200),
    "instance complete_step": (302, 404, 403, 403, 404, 404, 200),
    "instance terminate": (302, 404, 403, 200, 404, 404, 200),
    "instance send_event": (302, 404, 403, 200, 404, 404, 200),
    "own change": (302, 404, 200, 200, 404, 200, 200),
    "own retry": (302, 404, 403, 200, 404, 403, 200),
    "own delete": (302, 404, 403, 403, 404, 403, 200),
    "pending list": (302, 200, 200, 200, 200, 200, 200),
    "pending add": (302, 403, 403, 403, 403, 403, 403),
    "pending change": (302, 404, 200, 200, 200, 404, 200),
    "pending delete": (302, 403, 403, 403, 403, 403, 403),
    "pending history": (302, 404, 200, 200, 200, 404, 200),
    "pending json": (302, 404, 200, 200, 200, 404, 200),
    "pending decide": (302, 404, 200, 200, 200, 404, 200),
    "own pending decide": (302, 404, 200, 200, 200, 200, 200),
}
POST = {
    "instance list": (302, 403, 200, 200, 403, 200, 200),
    "instance add": (302, 403, 403, 403, 403, 403, 403),
    "instance change": (302, 403, 403, 403, 403, 403, 403),
    "instance delete": (302, 404, 403, 403, 404, 404, 302),
    "instance bulk": (302, 400, 400, 400, 400, 400, 400),
    "instance history": (302, 404, 200, 200, 404, 404, 200),
    "instance json params": (302, 405, 405, 405, 405, 405, 405),
    "instance json step": (302, 405, 405, 405, 405, 405, 405),
    "instance retry": (302, 404, 403, 302, 404, 404, 302),
    "instance pause": (302, 404, 403, 302, 404, 404, 302),
    "instance resume": (302, 404, 403, 302, 404, 404, 302),
    "instance restart": (302, 404, 403, 302, 404, 404, 302),
    "instance restart_from": (302, 404, 403, 400, 404, 404, 400),
    "instance complete_step": (302, 404, 403, 403, 404, 404, 302),
    "instance terminate": (302, 404, 403, 302, 404, 404, 302),
    "instance send_event": (302, 404, 403, 302, 404, 404, 302),
    "own change": (302, 403, 403, 403, 403, 403, 403),
    "own retry": (302, 404, 403, 302, 404, 403, 302),
    "own delete": (302, 404, 403, 403, 404, 403, 302),
    "pending list": (302, 200, 200, 200, 200, 200, 200),
    "pending add": (302, 403, 403, 403, 403, 403, 403),
    "pending change": (302, 403, 403, 403, 403, 403, 403),
    "pending delete": (302, 403, 403, 403, 403, 403, 403),
    "pending history": (302, 404, 200, 200, 200, 404, 200),
    "pending json": (302, 405, 405, 405, 405, 405, 405),
    "pending decide": (302, 404, 403, 403, 302, 404, 302),
    "own pending decide": (302, 404, 403, 403, 302, 403, 302),
}
CHANGES = {name for name, statuses in POST.items() if 302 in statuses[1:]}
BODY = {
    "decision": "approve",
    "reason": "",
    "status": "complete",
    "output": "1",
    "params": "{}",
    "approved": "true",
    "post": "yes",
    "type": "paid",
    "key": "6a7c1d52-6a5b-4f0f-9a55-0d2b7f5e3c11",
}


@pytest.fixture
def person(request, bare, viewer, operator, decider, requester, superuser):
    """The user of the matrix's column."""
    people = [None, bare, viewer, operator, decider, requester, superuser]
    return dict(zip(PEOPLE, people, strict=True))[request.param]


def address(name: str, requester) -> str:
    """Make the rows and give the address."""
    own = requester if name.startswith("own") else None
    words = name.removeprefix("own ").split()
    if "pending" in words:
        wait = make_wait(make_instance(created_by=own))
        verb = words[-1]
        if verb in ("list", "add"):
            return reverse(f"admin:durableflow_pendingevent_{verb.replace('list', 'changelist')}")
        return reverse(f"admin:durableflow_pendingevent_{verb}", args=[wait.pk])
    verb = words[0] if words[0] != "instance" else words[1]
    make_instance(created_by=requester)
    maker = {"retry": make_failed, "resume": make_blocked, "complete_step": make_failed}.get(verb, make_instance)
    made = maker(created_by=own)
    if verb == "restart_from":
        make_step(made)
    base = "admin:durableflow_workflowinstance_"
    if verb in ("list", "add", "bulk"):
        return reverse(base + verb.replace("list", "changelist"))
    if verb == "complete_step":
        return reverse(base + verb, args=[made.pk, made.steps.get(name="charge card").pk])
    if verb == "json":
        part = "params" if words[-1] == "params" else f"step-{make_step(made, 'one', raw_output=1).pk}"
        return reverse(f"{base}json", args=[made.pk, part])
    return reverse(base + verb, args=[made.pk])


@pytest.mark.parametrize("person", PEOPLE, indirect=True)
@pytest.mark.parametrize("name", GET)
def test_get(login, requester, person, name, request) -> None:
    """What a look gives; it never changes a row."""
    column = PEOPLE.index(request.node.callspec.params["person"])
    target = address(name, requester)
    before = snapshot()
    assert login(person).get(target).status_code == GET[name][column]
    assert snapshot() == before


@pytest.mark.parametrize("person", PEOPLE, indirect=True)
@pytest.mark.parametrize("name", POST)
def test_post(login, requester, person, name, request) -> None:
    """What a POST gives; only those that the table lets through change anything."""
    column = PEOPLE.index(request.node.callspec.params["person"])
    target = address(name, requester)
    before = snapshot()
    response = login(person).post(target, BODY)
    assert response.status_code == POST[name][column]
    acted = name in CHANGES and person is not None and POST[name][column] == 302
    assert (snapshot() != before) is acted


def test_the_tables_name_every_address() -> None:
    """A new address has to be put into the tables."""
    names = set()
    for model in (WorkflowInstance, PendingEvent):
        short = {"workflowinstance": "instance", "pendingevent": "pending"}[model._meta.model_name or ""]
        for pattern in admin.site.get_model_admin(model).get_urls():
            if pattern.name:
                names.add(f"{short} {pattern.name.split('_', 2)[2].replace('changelist', 'list')}")
    known = {name.replace(" params", "").replace(" step", "") for name in GET}
    assert set(GET) == set(POST)
    assert names == {name for name in known if not name.startswith("own")}


def test_inactive_and_non_staff_people_get_nothing(login, user_factory) -> None:
    """A right without staff status opens no page of the admin."""
    rights = [
        "durableflow.view_workflowinstance",
        "durableflow.decide_pendingevent",
        "durableflow.operate_workflowinstance",
    ]
    user = user_factory("outsider", permissions=rights)
    wait = make_wait(make_instance())
    for name, row in (("workflowinstance_terminate", wait.instance), ("pendingevent_decide", wait)):
        response = login(user).post(reverse(f"admin:durableflow_{name}", args=[row.pk]), BODY)
        assert response.status_code == 302 and "/login/" in response["Location"]
    wait.refresh_from_db()
    assert wait.approved is None and wait.instance.status == S.WAITING


def test_index_shows_what_a_person_may_open(login, bare, viewer) -> None:
    """The menu follows the same rule as the pages."""
    instances = reverse("admin:durableflow_workflowinstance_changelist")
    inbox = reverse("admin:durableflow_pendingevent_changelist")
    index = login(bare).get(reverse("admin:index")).content.decode()
    assert inbox in index and instances not in index
    assert instances in login(viewer).get(reverse("admin:index")).content.decode()
