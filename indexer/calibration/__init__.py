"""Parts of `indexer.calibrate`: which matrices and configurations, how long they take, and what the
runs have changed."""
