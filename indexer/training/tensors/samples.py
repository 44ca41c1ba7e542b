"""Training samples of measured kernels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, NothingFound, UsageError
from embeddb.core.timing import summarise_runs
from embeddb.core.wording import plural
from embeddb.cost_model.model import space_digest
from embeddb.platforms.platform import Platform, default_of
from embeddb.store import Store
from embeddb.tensors.encoding.features import KernelGraph, encoding_version, graph_of, tile_rows
from embeddb.tensors.encoding.operation_rows import OPERATION, operation_rows
from embeddb.tensors.roofline.analysis import Analysis, analysis_of
from embeddb.tensors.tensor_graph import TensorGraph, is_probe, program_of

#: Units held out together: programs ("random" in the paper) or model families ("manual").
SPLITS = ("program", "family")
#: With fewer, a single one in the validation part decides the result.
FEWEST_GROUPS = 5
_VALID_SHARE = 0.2
_UNANALYSED = "samples need the analysis that their model is trained with"
_NONE = np.empty((0, len(OPERATION)), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class KernelSample:
    """One kernel and its runs. `program` follows from its name, `group` is its model family,
    `default` the index of the default among `configs`, -1 if it did not run.

    Shapes: `tiles` float32[c,t] by `tile_rows`, `seconds` float64[c], all finite, `analysed`
    float64[c,12], `Analysis.rows`, if any; `operations` float32[1+n,f], `operation_rows`, of a
    fused kernel, of another float32[0,f].
    """

    id: str
    name: str
    group: str
    graph: KernelGraph
    configs: tuple[Config, ...]
    tiles: NDArray[np.float32]
    seconds: NDArray[np.float64]
    default: int = -1
    analysed: NDArray[np.float64] | None = None
    operations: NDArray[np.float32] = field(default_factory=lambda: _NONE)

    @property
    def program(self) -> str:
        return program_of(self.name, self.id)

    @property
    def logs(self) -> NDArray[np.float64]:
        """float64[c] natural logarithms of seconds."""
        return np.log(self.seconds)

    @property
    def analysed_logs(self) -> NDArray[np.float64]:
        """float64[c] natural logarithms of the seconds predicted by the analysis."""
        assert self.analysed is not None, _UNANALYSED
        return self.analysed[:, 0]

    def rows(self, *, analysed: bool) -> NDArray[np.float32]:
        """`tiles`, as `KernelTrees.rows`: if requested with the columns of the analysis."""
        if not analysed:
            return self.tiles
        assert self.analysed is not None, _UNANALYSED
        return np.concatenate([self.tiles, self.analysed.astype(np.float32)], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class KernelRuns:
    """The kernels that ran `op` on a platform; `left_out` counts others by reason. `analysis` is
    the samples' analytical model."""

    platform: Platform
    op: Op
    samples: list[KernelSample]
    left_out: Mapping[str, int] = field(default_factory=dict)
    analysis: Analysis | None = None


def sample_of(
    kernel: TensorGraph,
    seconds: Mapping[Config, float],
    default: Config | None = None,
    analysis: Analysis | None = None,
    *,
    fused: bool = False,
) -> KernelSample:
    """A kernel with the seconds of its configurations, without failed ones; `fused` for a single
    configuration, the kernel unchanged."""
    there = [(c, s) for c, s in seconds.items() if 0 < s < np.inf]
    configs = tuple(config for config, _ in there)
    return KernelSample(
        kernel.id,
        kernel.name or kernel.id,
        kernel.group or kernel.name or kernel.id,
        graph_of(kernel),
        configs,
        tile_rows(kernel, configs),
        np.array([s for _, s in there]),
        configs.index(default) if default in configs else -1,
        None if analysis is None else analysis.rows(kernel, configs),
        operation_rows(kernel) if fused else _NONE,
    )


def runs_of(
    store: Store, op: Op, platform: str = "", analysis: Analysis | None = None
) -> KernelRuns:
    """Runs of the only instance, or the one given by id or name, with an analysis for that machine
    or the given one. A kernel counts for `tile` with two successful configurations, for `fused`
    with one. Raises: NothingFound if nothing ran; UsageError if several instances did."""
    instances = sorted(p.platform for p in store.partitions() if p.op == op)
    names = [name for name in instances if platform in ("", name, name.partition("@")[0])]
    where = store.platform(names[0]) if len(names) == 1 else None
    if len(names) > 1:
        raise UsageError(f"{op} ran on several", hint=f"--platform, one of {', '.join(names)}")
    if where is None:
        ran = f"nothing ran {op}" + (f" on {platform}" if platform else "")
        raise NothingFound(f"{ran}: measure first (embeddb kernel measure DB --op {op})")
    analysis = analysis or analysis_of(where.name, op.name, where.environment)
    partition = store.partition(where.id, op)
    usual, samples, left = store.usual_at(where.id), [], Counter[str]()
    for kernel_id in sorted(store.members(partition)) if partition else ():
        kernel = store.tensor(kernel_id)
        if kernel is None:
            left["known by name only"] += 1
            continue
        timings = summarise_runs(store.runs(where.id, op, kernel_id), usual)
        seconds = {config: timing.seconds for config, timing in timings.items()}
        fused, default = op.name == "fused", default_of(where, op, kernel)
        sample = sample_of(kernel, seconds, default, analysis, fused=fused)
        if len(sample.seconds) < (1 if fused else 2):
            left["too few runs were ok"] += 1
            continue
        samples.append(sample)
    if not samples:
        raise NothingFound(f"no kernel has runs of {op} to learn from")
    return KernelRuns(where, op, samples, dict(left), analysis)


def about(runs: KernelRuns) -> dict[str, Any]:
    """A model card's entries about its training runs, for `embeddb.cost_model`."""
    platform = runs.platform
    platform_card = {
        "name": platform.name,
        "id": platform.id,
        "space": space_digest(platform, runs.op),
    }
    return {"platform": platform_card, "ops": [str(runs.op)], "kernel": runs.op.name}


def split(
    samples: Sequence[KernelSample], by: str, seed: int
) -> tuple[list[KernelSample], list[KernelSample]]:
    """A training part and a held-out part: whole programs or whole families (Section 4), a
    fifth of them, drawn by seed. Synthetic training kernels are never held out. Raises:
    InputError for too few; UsageError for another `by`."""
    if by not in SPLITS:
        raise UsageError(f"no split by {by!r}", hint=f"one of {', '.join(SPLITS)}")
    named = [sample.program if by == "program" else sample.group for sample in samples]
    pairs = zip(samples, named, strict=True)
    names = sorted({name for sample, name in pairs if not is_probe(sample.group)})
    if len(names) < FEWEST_GROUPS:
        several = ("program",) if by == "program" else ("family", "families")
        raise InputError(
            f"kernels of {plural(len(names), *several)} are too few to learn from, "
            f"at least {FEWEST_GROUPS} are needed",
            hint="measure kernels of other programs",
        )
    order = np.random.default_rng(seed).permutation(names)
    out = set(order[: max(round(len(names) * _VALID_SHARE), 1)].tolist())
    parts: tuple[list[KernelSample], list[KernelSample]] = ([], [])
    for sample, name in zip(samples, named, strict=True):
        parts[name in out].append(sample)
    return parts


def content_of(samples: Sequence[KernelSample]) -> str:
    """16 hex digits of the kernels and all their measurements."""
    parts = [encoding_version()]
    for sample in sorted(samples, key=lambda s: s.id):
        runs = sorted(zip((c.json for c in sample.configs), sample.seconds.tolist(), strict=True))
        parts += [sample.id, sample.group, sample.program, json.dumps(runs)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
