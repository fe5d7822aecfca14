"""Other engines at the same work, each in a process of the peers' own environment (``make peers``).

None of them is a dependency of durableflow. Each module here prints one JSON object; what was set is in it.
"""
