"""Random verbs and worker moves against the transition table (design 2, 9): cases LIF-01, LIF-03, LIF-05, LIF-06, LIF-08."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.lif_machine import LifeMachine
from tests.integration.lif_world import LifeModel

pytestmark = [
    pytest.mark.django_db(transaction=True),
    # Both the machine and the engine bound the depth of the stack while they call somebody's code.
    pytest.mark.filterwarnings("ignore:The recursion limit will not be reset"),
]
SHRINK = bool(os.environ.get("DURABLEFLOW_MODEL_SHRINK"))
"""Look for the shortest way to a failure: minutes."""
EXAMPLES = int(os.environ.get("DURABLEFLOW_MODEL_EXAMPLES", "0"))
"""More of them, and other ones each time: for a long search by hand."""


def test_whatever_is_done_to_instances_the_table_holds() -> None:
    """No verb does what its status forbids, nothing recorded is lost or run again, and at the end nothing is stuck."""
    assert LifeModel.workflow_name() == "lif-model"
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LifeMachine,
        settings=settings(
            max_examples=EXAMPLES or 30,
            stateful_step_count=20,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if SHRINK else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
