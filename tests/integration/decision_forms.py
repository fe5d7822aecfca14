"""Forms of approvals, at the top level of a module as they must be."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile


class RefundForm(forms.Form):
    """Values of many types."""

    amount = forms.DecimalField(max_digits=8, decimal_places=2)
    day = forms.DateField(required=False)
    group = forms.ModelChoiceField(Group.objects.all(), required=False)
    groups = forms.ModelMultipleChoiceField(Group.objects.all(), required=False)
    agree = forms.BooleanField(required=False)

    def clean_amount(self) -> Any:
        if self.cleaned_data["amount"] < 0:
            raise forms.ValidationError("Must not be negative.")
        return self.cleaned_data["amount"]

    def clean(self) -> None:
        if self.cleaned_data.get("amount") == 13:
            raise forms.ValidationError("Not thirteen.")


class UploadForm(forms.Form):
    """Cleans to a file, whatever was sent."""

    note = forms.CharField(required=False)

    def clean(self) -> dict[str, Any]:
        return {"note": SimpleUploadedFile("a.txt", b"x")}


class OddForm(forms.Form):
    """Cleans to something that cannot be stored."""

    note = forms.CharField(required=False)

    def clean(self) -> dict[str, Any]:
        return {"note": object()}


class TypedForm(forms.Form):
    """Fields that rely on what browsers send."""

    day = forms.DateField(required=False)
    at = forms.DateTimeField(required=False)
    address = forms.GenericIPAddressField(required=False)
    more = forms.JSONField(required=False)
    agree = forms.BooleanField(required=False)
    sure = forms.NullBooleanField(required=False)
    hidden = forms.BooleanField(required=False, widget=forms.HiddenInput)
    name = forms.CharField(required=False)
