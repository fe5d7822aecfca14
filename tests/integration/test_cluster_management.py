"""The commands, called in this process."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from durableflow.management.commands import durableflow_cluster
from durableflow.management.verbs import VERBS
from durableflow.models import WorkflowInstance
from tests.workflows.cluster_samples import ClusterSteps

pytestmark = pytest.mark.django_db(transaction=True)
OURS = {"broker_class": "durableflow.cluster.Broker"}


def durableflow(*arguments: str) -> str:
    out = io.StringIO()
    call_command("durableflow", *arguments, stdout=out)
    return out.getvalue()


def test_drain_executes_what_is_due(tmp_path: Path) -> None:
    rows = [ClusterSteps.create({"log": str(tmp_path / "log"), "name": f"w{n}"}) for n in range(3)]
    assert durableflow("drain", "--seconds", "20") == "3 executions\n"
    assert durableflow("drain") == "0 executions\n"
    statuses = WorkflowInstance.objects.filter(pk__in=[row.pk for row in rows]).values_list("status", flat=True)
    assert set(statuses) == {WorkflowInstance.Status.COMPLETE}


def test_drain_counts_one_as_one(tmp_path: Path) -> None:
    ClusterSteps.create({"log": str(tmp_path / "log"), "name": "w"})
    assert durableflow("drain") == "1 execution\n"


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf", ""])
def test_drain_wants_a_number_of_seconds(seconds: str) -> None:
    with pytest.raises(CommandError, match="expected a number of seconds"):
        durableflow("drain", f"--seconds={seconds}")


def test_drain_inside_a_transaction_is_refused() -> None:
    with pytest.raises(RuntimeError, match="atomic"), transaction.atomic():
        durableflow("drain")


@pytest.mark.parametrize("arguments", [(), ("drian",)])
def test_a_verb_is_needed(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match=r"VERB|verb"):
        durableflow(*arguments)


def test_verbs_have_names_of_their_own_and_a_line_of_help() -> None:
    assert len({verb.name for verb in VERBS}) == len(VERBS)
    assert all(verb.help for verb in VERBS)


def test_the_cluster_command_needs_django_q2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durableflow.cluster.mode.installed", lambda: False)
    with pytest.raises(CommandError, match="INSTALLED_APPS"):
        call_command("durableflow_cluster", skip_checks=True)


def test_the_cluster_command_becomes_the_named_cluster(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.Q_CLUSTER = {"orm": "default", "ALT_CLUSTERS": {"flows": OURS}}
    settings.DURABLEFLOW = {"CLUSTER": "flows"}
    monkeypatch.delenv("Q_CLUSTER_NAME", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "manage.py", "durableflow_cluster"])
    became: list[Any] = []

    def execve(*arguments: Any) -> None:
        became.extend(arguments)
        raise SystemExit

    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(SystemExit):
        call_command("durableflow_cluster", skip_checks=True)
    program, arguments, environment = became
    assert program == sys.executable
    assert arguments == [sys.executable, "-X", "dev", "manage.py", "durableflow_cluster"]
    assert environment["Q_CLUSTER_NAME"] == "flows"
    assert environment.items() >= (os.environ.items() - {("Q_CLUSTER_NAME", "")})


def test_the_cluster_command_runs_where_it_already_is_the_named_cluster(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.Q_CLUSTER = {"ALT_CLUSTERS": {"flows": OURS}}
    settings.DURABLEFLOW = {"CLUSTER": "flows"}
    monkeypatch.setenv("Q_CLUSTER_NAME", "flows")
    monkeypatch.setattr(durableflow_cluster, "broker_class", lambda: OURS["broker_class"])
    monkeypatch.setattr(durableflow_cluster, "run", lambda: 0)
    out = io.StringIO()
    call_command("durableflow_cluster", skip_checks=True, stdout=out)
    assert "Executing workflows of the database 'default'" in out.getvalue()


def test_a_cluster_that_died_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durableflow_cluster, "run", lambda: 75)
    with pytest.raises(SystemExit) as ended:
        call_command("durableflow_cluster", skip_checks=True, stdout=io.StringIO())
    assert ended.value.code == 75


def test_another_broker_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durableflow_cluster, "broker_class", lambda: "shop.Broker")
    with pytest.raises(CommandError, match=r"Q_CLUSTER\['broker_class'\] is 'shop.Broker'"):
        call_command("durableflow_cluster", skip_checks=True)
