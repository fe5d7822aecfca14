"""Tests of durableflow. As an app of the test settings it has its ``workflows`` discovered like any other."""
