"""The worker process of runner `cuda`: the matrix it holds, timing, requests."""
