"""Loop nests on this machine's processors: C of our own making, compiled by gcc, timed in a child."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable, UsageError
from embeddb.core.records import Measurement
from embeddb.nests.nest_text import check
from embeddb.nests.rules import NestJudge, canonical_schedule
from embeddb.nests.schedule import Schedule
from indexer.runners.base import RunOptions
from indexer.runners.cpu import CpuRunner
from indexer.runners.cpu_kernels import build as cpu_build
from indexer.runners.cpu_kernels.session import Session
from indexer.runners.nest_code import generate, library
from indexer.runners.nest_code.measuring import Measuring

if TYPE_CHECKING:
    from types import TracebackType

    from embeddb.nests.nest import Nest
    from embeddb.platforms.platform import Platform

__all__ = ["PLUGIN", "NestRunner"]
