"""Screens: the admin and the page behind decision links."""
