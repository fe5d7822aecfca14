"""The model field for values that workflow code reads: text written by the codec, never jsonb (design 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from durableflow.core import codec
from durableflow.core.exceptions import CodecError


class Unreadable:
    """Stands for a stored value that cannot be read, so that one bad row never breaks a page or a list (cases
    SER-04, OPS-13)."""

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        self.reason = reason

    def __repr__(self) -> str:
        return f"<unreadable: {self.reason}>"


if TYPE_CHECKING:
    _AnyTextField = models.TextField[Any, Any]
else:
    _AnyTextField = models.TextField


class CodecField(_AnyTextField):
    """A TextField whose Python side is the decoded value.

    jsonb would reorder keys and turn 1e16 into an int, so that a replay would differ from the first execution. SQL NULL
    and a stored None both read as None; what tells them apart is the row's status. A text that cannot be decoded reads
    as ``Unreadable``.
    """

    # For type checkers: the value can be anything the codec takes.
    _pyi_private_set_type: Any
    _pyi_private_get_type: Any

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        """Decode a stored text."""
        if value is None:
            return None
        try:
            return codec.loads(value)
        except CodecError as error:
            return Unreadable(value, str(error))

    def to_python(self, value: Any) -> Any:
        """Values are kept as they are: the Python side is not text."""
        return value

    def get_prep_value(self, value: Any) -> Any:
        """Encode a value for storing; None becomes SQL NULL and an unreadable text stays what it was."""
        if value is None or hasattr(value, "resolve_expression"):
            return value
        if isinstance(value, Unreadable):
            return value.text
        return codec.dumps(value, what=self.name)
