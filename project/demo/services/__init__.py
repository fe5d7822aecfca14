"""The bodies of the workflows' steps, and what the pages and the demo call. Each can run twice without harm."""
