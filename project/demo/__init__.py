"""Example app: pictures that are tagged after an approval, and carts that are paid and invoiced."""
