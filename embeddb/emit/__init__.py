"""An answer as C that needs nothing of ours: what `embeddb emit` writes."""
