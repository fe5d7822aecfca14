"""``manage.py durableflow`` with what nobody means to write: a sentence, never a traceback, and nothing is stored."""

from __future__ import annotations

import pytest

from durableflow.models import WorkflowInstance
from tests.integration.command_flows import Wait
from tests.support.commands import called

pytestmark = pytest.mark.django_db
NOT_UTF_8 = "\udcff"
"""As the shell's bytes arrive that are no UTF-8."""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("list cmd-wait --since 0001-01-01T00:00+14:00", "expected a day"),
        ("list cmd-wait --until 9999-12-31T23:59-10:00", "expected a day"),
        ("list cmd-wait --until 9999-12-31", "expected a day"),
        ("list cmd-wait --limit 99999999999999999999999", "at most 2147483647"),
        (f"list cmd-wait --limit {'9' * 5000}", "at most 2147483647"),
        ("start cmd-wait --start-at 9999-12-31T23:59-10:00", "expected a moment"),
        ("start cmd-wait --start-at 2999-12-31T23:59Z", "At most ten years from now"),
        ("start cmd-wait --retention-success=", "retention success is not a duration"),
        (f"pause cmd-wait w --user {NOT_UTF_8}", "The user's name has a NUL character or a lone surrogate"),
        (
            f"restart cmd-wait w --from-step {NOT_UTF_8}",
            "--from-step: the text has a NUL character or a lone surrogate",
        ),
        (f"restart cmd-wait w --from-step a --scope {NOT_UTF_8}", "--scope: the text has a NUL character"),
        (f"complete-step cmd-wait w {NOT_UTF_8} 1", "STEP: the text has a NUL character"),
        ("schedules list nonsense", "There is no workflow 'nonsense'."),
        ("schedules pause nonsense", "There is no workflow 'nonsense'."),
        (f"schedules list {NOT_UTF_8}", "The workflow name"),
        (f"schedules list cmd-wait {NOT_UTF_8}", "The name of a schedule has a NUL character or a lone surrogate"),
        ("schedules --next 1000000000", "at most 1000"),
        ("decide 99999999999999999999999 approve", "at most 9223372036854775807"),
        ("decide 9223372036854775807 approve", "There is no pending event"),
        ("tail cmd-wait w --after 99999999999999999999999", "at most 9223372036854775807"),
    ],
)
def test_odd_arguments(line: str, says: str) -> None:
    Wait.create(instance_id="w")
    done = called(*line.split(" "))
    assert done.status != 0 and done.out == ""
    assert says in done.err
    assert WorkflowInstance.objects.get().status == "queued"
