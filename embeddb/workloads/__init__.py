"""Kinds of workload that ship, one module each, in the order of listings.

Loaded by `embeddb.core.kinds` alone, so a kind may use every room; heavy imports stay in methods.
"""

from embeddb.workloads.kernel import PLUGIN as kernel
from embeddb.workloads.matrix import PLUGIN as matrix
from embeddb.workloads.nest import PLUGIN as nest
from embeddb.workloads.program import PLUGIN as program

KINDS = (matrix, nest, kernel, program)
