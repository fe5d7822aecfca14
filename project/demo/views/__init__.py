"""Pages of the example app, and the bank's endpoint."""
