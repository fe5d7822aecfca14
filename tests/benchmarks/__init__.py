"""What durableflow costs, measured against a floor in the same run: ``make bench`` (design 11)."""
