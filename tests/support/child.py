"""A child process of a test: ``python -m tests.support.child module:function [text ...]``."""

from __future__ import annotations

import sys
from importlib import import_module

import django

if __name__ == "__main__":
    django.setup()
    module, _, name = sys.argv[1].partition(":")
    getattr(import_module(module), name)(*sys.argv[2:])
