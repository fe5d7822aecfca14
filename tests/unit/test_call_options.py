"""How wrong options of durable calls are told (case RET-09): step and option once, then what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow.authoring.calls import approval_call, event_call, sleep_call
from durableflow.core.exceptions import InvalidConfig

PLAIN: dict[str, Any] = {
    "title": "",
    "description": "",
    "context": None,
    "form": None,
    "users": (),
    "groups": (),
    "permission": "",
    "allow_requester": True,
    "timeout": None,
    "notify": None,
}


@pytest.mark.parametrize("context", [["total", 3], "total", 3])
def test_a_context_that_is_no_dict(context: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^step 'ok': context must be a dict, not ") as caught:
        approval_call("ok", **{**PLAIN, "context": context})
    assert caught.value.field == "context"


def test_the_option_is_named_once() -> None:
    with pytest.raises(InvalidConfig, match=r"^step 'nap': duration is not a duration: '1h'"):
        sleep_call("nap", "1h")
    with pytest.raises(InvalidConfig, match=r"^step 'paid': timeout must not be negative: -1"):
        event_call("paid", "paid", -1, None)
    with pytest.raises(InvalidConfig, match=r"^step 'paid': type: The event type 'a b' has characters"):
        event_call("paid", "a b", None, None)
