"""Retry policies and retention: inheritance, validation, delays, storing."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durableflow.core.durations import TEN_YEARS
from durableflow.core.exceptions import CodecError, LimitExceeded, NonRetryableError, StepTimeout
from durableflow.core.retries import DEFAULT_RETRIES, Retention, Retries

SECOND = timedelta(seconds=1)


class CardDeclined(NonRetryableError):
    pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limit", -1),
        ("limit", 1.5),
        ("limit", True),
        ("limit", "3"),
        ("limit", 10_001),
        ("delay", "5 parsecs"),
        ("delay", -1),
        ("delay", True),
        ("delay", math.nan),
        ("delay", "11 years"),
        ("backoff", "cubic"),
        ("backoff", ["linear"]),
        ("max_delay", "1h"),
        ("max_delay", -1),
        ("jitter", 1.01),
        ("jitter", -0.1),
        ("jitter", True),
        ("jitter", math.nan),
        ("jitter", "0.5"),
        ("give_up_on", "ValueError"),
        ("give_up_on", (ValueError, 5)),
        ("give_up_on", [ValueError]),
        ("give_up_on", int),
    ],
)
def test_a_wrong_option_is_refused_at_once_and_names_its_field(field: str, value: Any) -> None:
    """RET-09."""
    with pytest.raises(ValueError, match=field):
        Retries(**{field: value})


@pytest.mark.parametrize("zero", [0, "0 seconds", timedelta(0)])
@pytest.mark.parametrize("backoff", ["constant", "linear", "exponential"])
def test_a_delay_of_zero_is_a_normal_value(zero: Any, backoff: Any) -> None:
    """RET-08."""
    policy = Retries(limit=1, delay=zero, backoff=backoff, jitter=1)
    assert policy.delay_for(1) == policy.delay_for(2000) == timedelta(0)


def test_options_are_keywords_and_the_policy_is_frozen() -> None:
    with pytest.raises(TypeError):
        Retries(5)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        DEFAULT_RETRIES.limit = 1  # type: ignore[misc]
    assert Retries(delay="1 minute") == Retries(delay=60)
    assert Retries(give_up_on=ValueError).give_up_on == (ValueError,)
    assert hash(Retries(give_up_on=ValueError)) == hash(Retries(give_up_on=(ValueError,)))


def test_a_number_is_a_limit() -> None:
    assert Retries.coerce(3) == Retries(limit=3)
    assert Retries.coerce(0) == Retries(limit=0)
    assert Retries.coerce(None) is None
    assert Retries.coerce(DEFAULT_RETRIES) is DEFAULT_RETRIES
    for wrong in (True, "3", 1.5, -1):
        with pytest.raises(ValueError, match=r"limit|retries"):
            Retries.coerce(wrong)  # type: ignore[arg-type]


def test_what_is_left_open_is_inherited() -> None:
    """Design 5; an explicit empty give_up_on overrides."""
    base = Retries(limit=3, delay=1, backoff="linear", max_delay=9, jitter=0.5, give_up_on=ValueError)
    assert Retries().merge(base) == base
    assert Retries(limit=0, jitter=0, give_up_on=()).merge(base) == Retries(
        limit=0, delay=1, backoff="linear", max_delay=9, jitter=0, give_up_on=()
    )
    assert Retries(limit=7).merge(DEFAULT_RETRIES) == Retries(limit=7, delay=10, backoff="exponential")


@pytest.mark.parametrize(
    ("backoff", "seconds"), [("constant", [3, 3, 3, 3]), ("linear", [3, 6, 9, 10]), ("exponential", [3, 6, 10, 10])]
)
def test_delays_grow_up_to_the_cap(backoff: Any, seconds: list[int]) -> None:
    policy = Retries(delay=3, backoff=backoff, max_delay=10)
    assert [policy.delay_for(n) for n in (1, 2, 3, 4)] == [n * SECOND for n in seconds]


def test_the_default_delays() -> None:
    assert [Retries().delay_for(n) // SECOND for n in (1, 2, 3)] == [10, 20, 40]
    assert DEFAULT_RETRIES.limit == 5


def test_exponential_delays_never_overflow() -> None:
    """RET-10: attempts 1 to 2,000, monotone up to the cap."""
    policy = Retries(delay=1, backoff="exponential", max_delay="1 hour")
    delays = [policy.delay_for(n) for n in range(1, 2001)]
    assert delays == sorted(delays)
    assert delays[0] == SECOND and delays[-1] == timedelta(hours=1)
    for backoff in ("exponential", "linear"):
        open_end = Retries(delay="5 years", backoff=backoff)
        assert open_end.delay_for(10**9) == TEN_YEARS
        datetime.now() + open_end.delay_for(10**9)  # fits a date column


@given(
    attempt=st.integers(1, 2000),
    jitter=st.floats(0, 1),
    delay=st.integers(0, 5000),
    cap=st.integers(0, 3600),
    backoff=st.sampled_from(["constant", "linear", "exponential"]),
    seed=st.integers(),
)
def test_jitter_stays_between_zero_and_the_cap(
    attempt: int, jitter: float, delay: int, cap: int, backoff: Any, seed: int
) -> None:
    """RET-10."""
    plain = Retries(delay=delay, backoff=backoff, max_delay=cap).delay_for(attempt)
    policy = Retries(delay=delay, backoff=backoff, max_delay=cap, jitter=jitter)
    got = policy.delay_for(attempt, rng=random.Random(seed))
    assert timedelta(0) <= got <= cap * SECOND
    assert abs(got - plain) <= plain * jitter + timedelta(microseconds=1)


def test_jitter_spreads() -> None:
    policy = Retries(delay=100, jitter=0.5)
    delays = {policy.delay_for(1) for _ in range(50)}
    assert len(delays) > 10
    assert min(delays) < 100 * SECOND < max(delays)


def test_attempts_are_numbered_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        DEFAULT_RETRIES.delay_for(0)


def test_a_delay_function_gets_context_and_error_and_its_result_goes_through_the_backoff() -> None:
    """RET-09 for a function: its result is a Duration like any other."""
    seen: list[Any] = []

    def delay(context: Any, error: Any) -> str:
        seen.append((context, error))
        return "2 seconds"

    error = OSError()
    policy = Retries(delay=delay, backoff="linear", max_delay=5)
    assert policy.delay_for(2, context="ctx", error=error) == 4 * SECOND
    assert policy.delay_for(9, context="ctx", error=error) == 5 * SECOND
    assert seen == [("ctx", error)] * 2


def test_a_wrong_or_raising_delay_function_is_named_and_not_retried() -> None:
    context = SimpleNamespace(name="charge card")

    def leave(context: Any, error: Any) -> float:
        raise SystemExit(1)

    def fail(context: Any, error: Any) -> float:
        raise KeyError("x")

    for function, text in (
        (fail, r"KeyError\('x'\)"),
        (leave, "SystemExit"),
        (lambda *_: "5 parsecs", "5 parsecs"),
        (lambda *_: -1, "negative"),
        (lambda *_: None, "None"),
        (lambda: 1, "TypeError"),
    ):
        with pytest.raises(NonRetryableError, match=f'The delay function for step "charge card" .*{text}') as caught:
            Retries(delay=function).delay_for(1, context=context, error=OSError())  # type: ignore[arg-type]
        assert caught.value.__cause__ is not None


def test_the_type_decides_what_is_not_retried() -> None:
    """RET-06: never the text."""
    policy = Retries(give_up_on=(LookupError,))
    for error in (
        NonRetryableError(),
        NonRetryableError(""),
        CardDeclined(),
        KeyError(),
        CodecError("x"),
        LimitExceeded("x"),
    ):
        assert policy.gives_up(error)
    for other in (ValueError("NonRetryableError"), StepTimeout(), SystemExit()):
        assert not policy.gives_up(other)
    assert not Retries().gives_up(KeyError())
    assert not Retries(give_up_on=()).gives_up(KeyError())


def test_a_stored_policy_wins_over_the_code() -> None:
    """Design 5: the resolved config is stored at the first execution."""
    started = Retries(limit=2, delay=1.5, backoff="linear", max_delay="1 minute", jitter=0.1, give_up_on=CardDeclined)
    stored = json.loads(json.dumps(started.to_config()))
    assert stored == {
        "limit": 2,
        "delay": 1.5,
        "backoff": "linear",
        "max_delay": 60,
        "jitter": 0.1,
        "give_up_on": [f"{__name__}.CardDeclined"],
    }
    live = Retries(limit=9, delay=lambda *_: 7, backoff="constant", give_up_on=(KeyError,))
    assert Retries.from_config(stored, live) == Retries(
        limit=2, delay=1.5, backoff="linear", max_delay=60, jitter=0.1, give_up_on=KeyError
    )


def test_a_stored_delay_function_is_taken_from_the_code() -> None:
    def delay(context: Any, error: Any) -> int:
        return 7

    stored = Retries(limit=2, delay=delay).merge(DEFAULT_RETRIES).to_config()
    assert stored["delay"] == "[dynamic]"
    assert Retries.from_config(stored, Retries(limit=3, delay=delay)).delay == delay
    assert Retries.from_config(stored, Retries(delay=5)).delay_for(1) == 5 * SECOND  # the function is gone


def test_retention() -> None:
    base = Retention(success="30 days", error="90 days")
    merged = Retention(error=0).merge(base)
    assert merged == Retention(success="30 days", error=timedelta(0))
    assert merged.to_config() == {"success": 2_592_000, "error": 0}
    assert Retention.from_config(json.loads(json.dumps(merged.to_config()))) == merged
    assert Retention().merge(base) == base
    for field in ("success", "error"):
        for wrong in ("1h", -1, True, "101 years", math.nan):
            with pytest.raises(ValueError, match=f"retention {field}"):
                Retention(**{field: wrong})
    with pytest.raises(TypeError):
        Retention("30 days")  # type: ignore[call-arg]
