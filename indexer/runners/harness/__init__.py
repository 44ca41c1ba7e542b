"""Code under test in a process of its own: built, called, checked, timed."""
