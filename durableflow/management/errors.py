"""Refusals as sentences for people, with the exit status that tells programs of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ObjectDoesNotExist, PermissionDenied, ValidationError
from django.core.management.base import CommandError
from django.db.models import ProtectedError, RestrictedError

from durableflow.core.exceptions import DurableflowError
from durableflow.management.text import printable

NO, WRONG, UNWRITTEN, INTERRUPTED, BROKEN_PIPE = 1, 2, 74, 130, 141
"""Exit statuses. ``NO``: all went well, and the answer is no (rows were skipped, an instance failed). ``WRONG``: wrong use, wrong
state, a missing right, something that does not exist. ``UNWRITTEN``: its output could not be written, whatever was
done. The others are what shells say of Ctrl-C and of a reader that went away."""


def wrong(text: str) -> CommandError:
    """The error that ends the command with ``WRONG``."""
    return CommandError(text, returncode=WRONG)


@contextmanager
def told() -> Iterator[None]:
    """Around a call of a verb: what it refuses becomes a sentence. Errors of the program itself pass."""
    try:
        yield
    except ValidationError as error:
        raise wrong(_invalid(error)) from error
    except (ProtectedError, RestrictedError) as error:
        raise wrong(printable(error.args[0])) from error
    except ObjectDoesNotExist as error:
        raise wrong("It does not exist any more: somebody has deleted it.") from error
    except (PermissionDenied, DurableflowError, ValueError) as error:
        raise wrong(printable(error) or type(error).__name__) from error


def _invalid(error: ValidationError) -> str:
    found: Any = getattr(error, "message_dict", None)
    if found is None:
        return printable(" ".join(error.messages))
    return printable(
        " ".join(f"{'' if name == NON_FIELD_ERRORS else f'{name}: '}{' '.join(texts)}" for name, texts in found.items())
    )
