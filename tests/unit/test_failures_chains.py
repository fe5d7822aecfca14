"""Stored errors with causes, groups, earlier tracebacks and secrets."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from durableflow.core import codec
from durableflow.core.exceptions import NonRetryableError, StepFailed
from durableflow.core.failures import describe, mark_sensitive, masked, public, rebuild, step_of


class Declined(Exception):
    """Two required arguments, neither of them in `args`."""

    def __init__(self, code: str, amount: Decimal) -> None:
        super().__init__(f"card declined {code}")
        self.code = code
        self.amount = amount


class Tree(ExceptionGroup[Exception]):
    pass


def raised(error: BaseException, cause: BaseException | None = None) -> Any:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def stored(error: BaseException, **options: Any) -> dict[str, Any]:
    """Described, and through the database."""
    described = describe(error, **options)
    text = codec.dumps(described)
    assert json.loads(text) == described, "plain JSON, without tags"
    back: dict[str, Any] = codec.loads(text)
    return back


def roundtrip(error: BaseException) -> Exception:
    return rebuild(stored(error))


def test_the_cause_is_kept() -> None:
    """RET-07: an error chained from another one."""
    root = raised(Declined("51", Decimal(1)))
    error = raised(NonRetryableError("no money"), raised(OSError(5, "io"), root))
    described = stored(error)
    back = rebuild(described)
    assert isinstance(back.__cause__, OSError)
    assert isinstance(back.__cause__.__cause__, Declined)
    assert back.__cause__.__cause__.code == "51"
    assert "card declined 51" in described["traceback"]
    assert set(public(described)) == {"type", "message", "traceback", "step"}


def test_chains_of_causes_end() -> None:
    error: Exception = ValueError(0)
    for n in range(1, 50):
        error = raised(ValueError(n), error)
    back: BaseException | None = roundtrip(error)
    depth = 0
    while back is not None:
        back, depth = back.__cause__, depth + 1
    assert 10 <= depth <= 12
    loop = ValueError("a")
    loop.__cause__ = KeyError("b")
    loop.__cause__.__cause__ = loop
    assert isinstance(roundtrip(loop).__cause__, KeyError)


def test_notes_are_kept() -> None:
    error = ValueError("x")
    error.add_note("order 7")
    assert roundtrip(error).__notes__ == ["order 7"]


def test_a_group_is_stored_with_its_members() -> None:
    group = ExceptionGroup(
        "two failed", [raised(Declined("51", Decimal(1))), Tree("inner", [KeyError("k"), OSError()])]
    )
    described = stored(raised(group), step="all")
    assert [member["type"] for member in described["errors"]] == [f"{__name__}.Declined", f"{__name__}.Tree"]
    back = rebuild(described)
    assert type(back) is ExceptionGroup
    assert (back.message, str(back)) == ("two failed", "two failed (2 sub-exceptions)")
    declined, rest = back.split(Declined)
    assert declined is not None and vars(declined.exceptions[0])["code"] == "51"
    assert rest is not None and [type(e) for e in rest.exceptions[0].exceptions] == [KeyError, OSError]
    assert type(back.exceptions[1]) is Tree


def test_a_group_of_base_exceptions_becomes_a_group_of_step_failed() -> None:
    back = roundtrip(BaseExceptionGroup("g", [SystemExit(1), ValueError("x")]))
    assert type(back) is ExceptionGroup
    assert [type(member) for member in back.exceptions] == [StepFailed, ValueError]


def test_a_large_group_stays_within_bounds() -> None:
    group = ExceptionGroup("many", [raised(ValueError("x" * 5000, n)) for n in range(2000)])
    described = stored(raised(group))
    assert len(codec.dumps(described)) < 6_000_000
    back = rebuild(described)
    assert isinstance(back, ExceptionGroup)
    assert len(back.exceptions) == 501
    assert "1,500 more errors" in str(back.exceptions[-1])


def test_an_error_that_is_raised_again_shows_the_original_traceback() -> None:
    """RET-07: the trace of the original is shown on the instance too."""

    def body() -> None:
        raise Declined("51", Decimal(1))

    def run(error: Exception) -> None:
        raise error

    with pytest.raises(Declined) as caught:
        body()
    first = stored(caught.value, step="charge card")
    with pytest.raises(Declined) as caught:
        run(rebuild(first))
    described = stored(caught.value)
    text = described["traceback"]
    assert 0 < text.index("in body") < text.index("raised again in the workflow") < text.index("in run")
    assert described["step"] == "charge card"
    wrapped = stored(raised(RuntimeError("checkout failed"), caught.value))
    assert "in body" in wrapped["traceback"]
    assert (wrapped["type"], wrapped["message"], wrapped["step"]) == ("RuntimeError", "checkout failed", "charge card")


def test_the_step_is_found_through_context_too() -> None:
    """Design 9: through the error, its cause or its context."""
    failed = rebuild(stored(ValueError("x"), step="charge"))
    try:
        try:
            raise failed
        except ValueError:
            raise KeyError("y")  # noqa: B904 - the context is what is tested
    except KeyError as error:
        assert step_of(error) == describe(error)["step"] == "charge"
    assert step_of(KeyError()) == ""


def test_masked_keeps_the_type_alone() -> None:
    described = stored(raised(Declined("51", Decimal(1)), ValueError("secret")), step="s")
    hidden = masked(described)
    assert hidden == {"type": f"{__name__}.Declined", "message": "[REDACTED]", "traceback": "", "step": "s"}
    back = rebuild(hidden)
    assert isinstance(back, StepFailed)
    assert back.type.endswith("Declined")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda error: error,
        lambda error: raised(error),
        lambda error: raised(RuntimeError(f"failed: {error}"), error),
        lambda error: raised(RuntimeError("failed"), error),
        lambda error: raised(Exception("failed", error), error),
        lambda error: raised(ExceptionGroup("group", [error, ValueError("other")])),
        lambda error: raised(RuntimeError("outer"), raised(ExceptionGroup("group", [error]))),
    ],
)
def test_a_sensitive_error_shows_in_nothing_it_causes(wrap: Any) -> None:
    error = rebuild(stored(raised(Declined("pin \u00fc 1234", Decimal(1)))))
    mark_sensitive(error)
    described = stored(wrap(error))
    assert "1234" not in json.dumps(described)
    assert "1234" not in codec.dumps(described)


def test_beside_a_sensitive_cause_the_own_text_stays() -> None:
    error = rebuild(stored(ValueError("pin 1234")))
    mark_sensitive(error)
    described = stored(raised(RuntimeError("checkout failed"), error))
    assert described["message"] == "checkout failed"
    assert "in raised" in described["traceback"]
    assert described["cause"]["message"] == "[REDACTED]"
