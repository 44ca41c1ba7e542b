"""A campaign's tasks on many nodes: workers, submissions and their results."""
