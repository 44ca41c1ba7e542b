"""A campaign's tasks on many nodes: what a node runs, who is given what, what comes back."""
