"""The shop of the documentation: its example programs as they are written there, a plain body behind each service."""
