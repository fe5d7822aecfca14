"""Programs of the development environment; the Makefile calls them."""
