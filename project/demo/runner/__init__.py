"""``manage.py demo``: starts what the example needs, shows both workflows at work, and leaves no process behind."""
