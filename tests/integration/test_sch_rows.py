"""Rows of schedules: declared in code, added by staff, paused, edited, run by hand (cases SCH-02, SCH-05, SCH-09, SEC-08)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from durableflow import InvalidTransition, Schedule
from durableflow.core import registry
from durableflow.engine.declaring import declare
from durableflow.models import WorkflowInstance, WorkflowSchedule
from tests.integration.sch_flows import NIGHT, added, at, declared, define, fire, skips, slots

pytestmark = pytest.mark.django_db
MINUTELY = "* * * * *"


def shown(**which: Any) -> list[tuple[Any, ...]]:
    rows = WorkflowSchedule.objects.filter(**which).order_by("workflow", "name")
    return list(rows.values_list("workflow", "name", "cron", "enabled", "declared"))


# Declared rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_made_once(stopped_clock: Any, django_assert_num_queries: Any) -> None:
    """Design 9: from Meta.schedules; a second process reads, and writes nothing."""
    define(Schedule(NIGHT, timezone="Europe/Berlin", catch_up=3, overlap="skip", params={"a": 1}), MINUTELY)
    declare("default")
    first, second = WorkflowSchedule.objects.filter(workflow="sch-flow").order_by("name")
    assert (first.name, first.cron, first.timezone, first.catch_up) == ("schedule", NIGHT, "Europe/Berlin", "3")
    assert (first.overlap, first.params, first.declared, first.enabled) == ("skip", {"a": 1}, True, True)
    assert first.next_slot == first.look_at == at("2 00:00")
    assert (second.name, second.next_slot) == ("schedule-2", at("1 12:01"))
    with django_assert_num_queries(1):
        declare("default")


def test_a_changed_declaration_stays_the_same_row(stopped_clock: Any) -> None:
    """Design 9, SCH-09: the next slot follows the new text at once, what staff have paused stays paused."""
    _, row = declared(NIGHT)
    row.pause()
    with registry.isolated():
        define("0 18 * * *")
        declare("default")
    row.refresh_from_db()
    assert (row.cron, row.enabled, row.next_slot) == ("0 18 * * *", False, None)
    row.resume()
    assert row.next_slot == at("1 18:00")
    define(Schedule("0 20 * * *", overlap="skip"))
    declare("default")
    row.refresh_from_db()
    assert (row.next_slot, row.look_at, row.overlap) == (at("1 20:00"), at("1 20:00"), "skip")


def test_other_params_keep_the_next_slot(stopped_clock: Any) -> None:
    """Design 9: what is due stays due; 1 and True are different params."""
    _, row = declared(Schedule(MINUTELY, params={"a": 1}))
    stopped_clock.advance("1 minute")
    define(Schedule(MINUTELY, params={"a": True}))
    declare("default")
    row.refresh_from_db()
    assert row.params["a"] is True
    assert row.next_slot == at("1 12:01")


def test_a_declaration_that_is_gone(stopped_clock: Any) -> None:
    """Design 9: its row goes, its instances keep the cron line; rows of unknown workflows and those of staff stay."""
    flow, row = declared(MINUTELY)
    with registry.isolated():
        declared(NIGHT, name="sch-elsewhere")
    mine = added()
    stopped_clock.advance("1 minute")
    fire()
    define()
    declare("default")
    assert shown(workflow__startswith="sch-") == [
        ("sch-elsewhere", "schedule", NIGHT, True, True),
        ("sch-flow", "mine", NIGHT, True, False),
    ]
    (instance,) = flow.instances()
    assert (instance.schedule, instance.cron, instance.scheduled_for) == (None, MINUTELY, at("1 12:01"))
    assert mine.pk and row.pk


def test_a_workflow_that_was_renamed_keeps_its_rows() -> None:
    """Design 5: and that they are paused."""
    _, row = declared(NIGHT)
    row.pause()
    define(NIGHT, name="sch-renamed", previous_names=["sch-flow"])
    declare("default")
    assert shown(workflow__startswith="sch-") == [("sch-renamed", "schedule", NIGHT, False, True)]


def test_a_rename_that_was_rolled_back(stopped_clock: Any) -> None:
    """Design 5: each deploy leaves one row, under the present name, and what fires twice starts once."""
    names: list[tuple[str, list[str]]] = [("sch-a", []), ("sch-b", ["sch-a"]), ("sch-a", [])]
    for name, previous in names:
        with registry.isolated():
            define(MINUTELY, name=name, previous_names=previous)
            declare("default")
    assert [row[0] for row in shown(workflow__startswith="sch-")] == ["sch-a", "sch-b"]  # no code knows both
    flow = define(MINUTELY, name="sch-b", previous_names=["sch-a"])
    stopped_clock.advance("1 minute")
    fire()
    assert flow.instances().count() == 1
    declare("default")
    assert shown(workflow__startswith="sch-") == [("sch-b", "schedule", MINUTELY, True, True)]


@pytest.mark.parametrize("staff", [False, True])
def test_a_row_that_has_the_present_name_already(staff: bool) -> None:
    """Design 5: the older one, under another name of the workflow, can never get it."""
    with registry.isolated():
        define(NIGHT, name="sch-b")
        declare("default")
    with registry.isolated():
        define(*([] if staff else [NIGHT]), name="sch-a")
        declare("default")
        if staff:
            WorkflowSchedule.objects.bulk_create([WorkflowSchedule(workflow="sch-a", name="schedule", cron=NIGHT)])
    define(MINUTELY, name="sch-a", previous_names=["sch-b"])
    declare("default")
    cron = NIGHT if staff else MINUTELY
    assert shown(workflow__startswith="sch-") == [("sch-a", "schedule", cron, True, not staff)]


def test_a_declared_row_that_no_code_declares_any_more_can_be_deleted() -> None:
    """Design 9: of a workflow that was taken out of the code nobody's look deletes it."""
    with registry.isolated():
        _, row = declared(NIGHT, MINUTELY, name="sch-gone")
        with pytest.raises(InvalidTransition, match="is declared in code"):
            row.delete()
    row.delete()
    WorkflowSchedule.objects.filter(workflow="sch-gone").delete()
    assert shown(workflow="sch-gone") == []


def test_a_name_that_staff_have_taken(caplog: pytest.LogCaptureFixture) -> None:
    """Design 9: their row stands, and the log says that the declaration does not."""
    define()
    added("nightly")
    define(Schedule(MINUTELY, name="nightly"))
    with caplog.at_level(logging.WARNING, "durableflow.engine"):
        declare("default")
    assert shown(workflow="sch-flow") == [("sch-flow", "nightly", NIGHT, True, False)]
    assert "The schedule nightly of sch-flow is not declared" in caplog.text


def test_a_problem_is_tried_anew_by_the_next_process(stopped_clock: Any) -> None:
    """SCH-05: it may have been that process's fault."""
    _, row = declared(MINUTELY)
    WorkflowSchedule.objects.filter(pk=row.pk).update(problem="no time zones here", look_at=None)
    declare("default")
    row.refresh_from_db()
    assert (row.problem, row.look_at) == ("", at("1 12:01"))


# What may be saved ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "", "61 * * * *", "@foo"])
def test_a_bad_line_is_refused_on_save(cron: str) -> None:
    """SCH-05: with a reason, by full_clean() and by save()."""
    define()
    row = WorkflowSchedule(workflow="sch-flow", name="bad", cron=cron)
    for refuse in (row.full_clean, row.save):
        with pytest.raises(ValidationError) as caught:
            refuse()
        assert set(caught.value.message_dict) == {"cron"}
    assert shown(workflow="sch-flow") == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timezone", "Europe/Atlantis"),
        ("workflow", "os.system"),
        ("catch_up", "all"),
        ("overlap", "maybe"),
        ("name", "every night"),
        ("name", "schedule"),
        ("name", "schedule-17"),
        ("name", ""),
    ],
)
def test_other_mistakes(field: str, value: str) -> None:
    """SCH-02, SEC-08: each at its field, nothing stored, nothing imported."""
    define()
    with pytest.raises(ValidationError) as caught:
        added(**{field: value})
    assert set(caught.value.message_dict) == {field}
    assert WorkflowSchedule.objects.count() == 0


def test_params_that_cannot_be_stored_or_are_refused() -> None:
    """Api.md: they are in no form, so that the message belongs to no field."""
    define(max_concurrency=1, concurrency_key=lambda params: params["key"])
    for params in ({"key": print}, {"other": 1}, None):
        with pytest.raises(ValidationError) as caught:
            added(params=params)
        assert caught.value.message_dict["__all__"][0].startswith("params: ")
    assert added(params={"key": "a"}, catch_up=5).catch_up == "5"


def test_a_declared_row_is_changed_in_code_alone() -> None:
    """Design 9: but for pausing it."""
    _, row = declared(Schedule(NIGHT, params=[float("nan")]))
    row.cron = "0 3 * * *"
    with pytest.raises(ValidationError, match="declared in code"):
        row.full_clean()
    row.refresh_from_db()
    row.enabled = False
    row.full_clean()
    row.save()
    row.refresh_from_db()
    row.resume()  # its NaN is not equal to itself
    row.pause()
    with pytest.raises(InvalidTransition, match=r"Meta\.schedules") as caught:
        row.delete()
    assert caught.value.status == "declared"
    added()
    with pytest.raises(InvalidTransition, match=r"Meta\.schedules"):
        WorkflowSchedule.objects.all().delete()
    WorkflowSchedule.objects.filter(declared=False).delete()
    assert shown(workflow="sch-flow") == [("sch-flow", "schedule", NIGHT, False, True)]


def test_one_slot_one_instance_in_the_database() -> None:
    """SCH-04: the constraint, whoever writes."""
    flow, row = declared(NIGHT)
    first = flow.create()
    second = flow.create()
    WorkflowInstance.objects.filter(pk=first.pk).update(schedule=row, scheduled_for=at("1 02:00"))
    with pytest.raises(IntegrityError), transaction.atomic():
        WorkflowInstance.objects.filter(pk=second.pk).update(schedule=row, scheduled_for=at("1 02:00"))


@pytest.mark.parametrize("project", ["UTC", "Europe/Berlin"])
def test_the_zone_of_the_row_counts(stopped_clock: Any, settings: Any, project: str) -> None:
    """SCH-02: whatever TIME_ZONE is."""
    settings.TIME_ZONE = project
    define()
    row = added(cron="0 9 * * *", timezone="America/New_York")
    row.refresh_from_db()
    assert row.next_slot == at("1 13:00")


# Edits (SCH-09) -------------------------------------------------------------------------------------------------------------


def test_disabled_for_a_week_and_enabled(stopped_clock: Any) -> None:
    """SCH-09: no backlog."""
    define()
    row = added(cron=MINUTELY)
    row.enabled = False
    row.save()
    assert (row.next_slot, row.upcoming()) == (None, [])
    stopped_clock.advance("7 days")
    fire()
    row.enabled = True
    row.save()
    fire()
    assert (slots(row), skips(row)) == ([], [])
    assert row.upcoming(2) == [at("8 12:01"), at("8 12:02")]


@pytest.mark.parametrize(
    ("change", "following"),
    [({"cron": "0 18 * * *"}, "1 18:00"), ({"timezone": "America/New_York"}, "1 13:00")],
)
def test_an_edit_counts_from_now(stopped_clock: Any, change: dict[str, str], following: str) -> None:
    """SCH-09: 09:00 becomes 18:00 at 12:00, and another zone."""
    define()
    row = added(cron="0 9 * * *")
    stale = WorkflowSchedule.objects.get(pk=row.pk)
    for field, value in change.items():
        setattr(row, field, value)
    row.save()
    assert row.next_slot == row.look_at == at(following)
    for field, value in change.items():
        setattr(stale, field, value)
    stale.save()  # read before the edit: what it knew of the next slot is not brought back
    row.refresh_from_db()
    assert row.next_slot == at(following)


def test_a_stale_row_brings_nothing_back(stopped_clock: Any) -> None:
    """SCH-09: a row that was read before slots fired is saved with another overlap."""
    define()
    stale = added(cron=MINUTELY)
    stopped_clock.advance("1 minute")
    fire()
    stale.overlap = "skip"
    stale.save()
    fire()
    stale.refresh_from_db()
    assert (stale.overlap, stale.next_slot, slots(stale)) == ("skip", at("1 12:02"), ["1 12:01"])


def test_named_fields_alone(stopped_clock: Any) -> None:
    """``update_fields`` writes what is derived of them too; what is not written counts as it is stored."""
    define()
    row = added(cron="0 9 * * *")
    row.enabled = False
    row.cron, row.overlap = "0 18 * * *", "skip"
    row.save(update_fields=["cron"])
    row.refresh_from_db()
    assert (row.overlap, row.enabled, row.next_slot) == ("allow", True, at("1 18:00"))


def test_deleted_while_a_slot_is_due(stopped_clock: Any) -> None:
    """SCH-09: no run after the deletion; earlier instances stay."""
    flow = define()
    row = added(cron=MINUTELY)
    stopped_clock.advance("1 minute")
    fire()
    stopped_clock.advance("1 minute")
    row.delete()
    fire()
    (instance,) = flow.instances()
    assert (instance.schedule, instance.cron) == (None, MINUTELY)


def test_a_slot_that_waited_when_it_was_paused(stopped_clock: Any) -> None:
    """SCH-07, SCH-09: it is not started later, and that is recorded."""
    flow = define()
    row = added(cron=MINUTELY, overlap="buffer_one")
    flow.create()
    stopped_clock.advance("1 minute")
    fire()
    row.pause()
    assert skips(row) == [("overlap", "1 12:01", "1 12:01", 1)]
    row.resume()
    flow.instances().delete()
    fire()
    assert slots(row) == []
