"""How wrong options of durable calls are told (case RET-09): step and option once, then what is wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.utils.translation import gettext_lazy

from durableflow import Rollback
from durableflow.authoring.calls import approval_call, do_call, event_call, sleep_call
from durableflow.core.exceptions import InvalidConfig, LimitExceeded

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


@pytest.mark.parametrize("field", ["title", "description", "permission"])
@pytest.mark.parametrize("given", [None, 5, "a\0.b", "a\ud800.b"])
def test_a_text_that_cannot_be_stored(field: str, given: Any) -> None:
    """The same on both databases, and by name."""
    with pytest.raises(InvalidConfig, match=rf"^step 'ok': {field} ") as caught:
        approval_call("ok", **{**PLAIN, field: given})
    assert caught.value.field == field


def test_texts_have_a_size_and_may_be_lazy() -> None:
    assert approval_call("ok", **{**PLAIN, "title": gettext_lazy("Yes")}).title == "Yes"
    with pytest.raises(LimitExceeded, match=r"^Step 'ok': permission is too large: 302 characters, at most 255"):
        approval_call("ok", **{**PLAIN, "permission": f"{'a' * 300}.b"})


@pytest.mark.parametrize("field", ["users", "groups"])
@pytest.mark.parametrize("given", [5, "ada", None])
def test_people_come_in_lists(field: str, given: Any) -> None:
    with pytest.raises(InvalidConfig, match=rf"^step 'ok': {field} must be a list") as caught:
        approval_call("ok", **{**PLAIN, field: given})
    assert caught.value.field == field


def test_types_come_as_a_text_or_a_list() -> None:
    with pytest.raises(InvalidConfig, match=r"^step 'paid': type must be a list, not 5"):
        event_call("paid", 5, None, None)


def test_flags_are_true_or_false() -> None:
    """A text would count as true: "no" must not let the requester decide."""
    with pytest.raises(InvalidConfig, match=r"^step 'ok': allow_requester must be True or False, not 'no'") as caught:
        approval_call("ok", **{**PLAIN, "allow_requester": "no"})
    assert caught.value.field == "allow_requester"
    with pytest.raises(InvalidConfig, match=r"^step 'charge': atomic must be True or False, not 1"):
        do_call("charge", int, (), atomic=1)


class Handlers:
    """What may handle, and what cannot."""

    def one(self, undo: Any) -> None:
        """Takes one."""

    def none(self) -> None:
        """Takes none."""

    def __call__(self, undo: Any, more: int = 0) -> None:
        """Takes one, or two."""


def nothing() -> None:
    """Takes none."""


@pytest.mark.parametrize(
    "handler",
    [nothing, lambda output, error: None, lambda *, undo: None, Handlers().none, Handlers.one, partial(nothing)],
)
def test_a_function_that_could_not_be_called(handler: Any) -> None:
    """RET-09: heard of at the call, not when there is something to undo, or somebody to tell. Twice: what is known is not known
    to be good."""
    for _ in range(2):
        for given in (handler, Rollback(handler)):
            with pytest.raises(
                InvalidConfig, match=r"^step 'a': rollback must be a function of one argument, the Undo; "
            ) as caught:
                do_call("a", nothing, (), rollback=given)
            assert caught.value.field == "rollback"
        with pytest.raises(
            InvalidConfig, match=r"^step 'a': notify must be a function of one argument, the pending event"
        ):
            event_call("a", "a", None, handler)


@pytest.mark.parametrize(
    "handler",
    [
        Handlers().one,
        Handlers(),
        lambda undo, more=1: None,
        lambda *args: None,
        partial(Handlers.one, Handlers()),
        [].append,
        print,
    ],
)
def test_functions_that_can_be_called(handler: Any) -> None:
    for _ in range(2):
        rollback = do_call("a", nothing, (), rollback=handler).rollback
        assert rollback is not None and rollback.handler is handler
        assert event_call("a", "a", None, handler).notify is handler


@pytest.mark.parametrize("handler", [Rollback, Handlers])
def test_a_class_is_no_function(handler: Any) -> None:
    """To make an object of it would count as having undone the step."""
    with pytest.raises(InvalidConfig, match=rf"^step 'a': rollback must be .* not the class {handler.__name__}"):
        do_call("a", nothing, (), rollback=handler)
