"""What the form of a new schedule says before anybody has typed (case SCH-05)."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.admin.acting import text_of
from tests.admin.test_schedules import planner  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db


def test_a_new_one_is_in_utc_unless_somebody_says_otherwise(login, planner) -> None:  # noqa: F811
    """As in Python and over REST, not in the first zone of the alphabet; and no zone is offered that each machine reads in its
    own way."""
    page = text_of(login(planner).get(reverse("admin:durableflow_workflowschedule_add")))
    assert '<option value="UTC" selected>' in page
    assert page.count(" selected>UTC<") == 1 and 'value="Africa/Abidjan" selected' not in page
    assert 'value="localtime"' not in page and 'value="Europe/Berlin"' in page
