"""What authors of workflows write with (design 5)."""
