"""A campaign's plan and its file: per matrix and op a list of configurations, chosen by a seed.

Every matrix gets the default and the platform's static top-k (so that every answer can be compared
with both), optionally some shared configurations, and a sample of its own legal space, as in
COGNATE (section 4.1), which sees many more configurations at the same cost. A few matrices may get
every legal configuration of one op, so that their optimum is known. The file is readable and
comparable, and is checked when it is read.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, InputError, UsageError
from embeddb.core.files.safe_read import reason_of
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.pattern import Pattern
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.sizes import Sizes
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import run_matrix_of, scope_of
from embeddb.index.vote import greedy_cover
from embeddb.matrix_files import read_pattern
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace
from indexer.campaign.budget.sampler import Round

PLAN_VERSION = 2
#: Default rounds on a platform that is not simulated.
_ROUNDS = 2
#: Most configurations of a grid: more would take days on one matrix.
_MOST_GRID = 20_000


class Matrix(msgspec.Struct, frozen=True):
    """One matrix of a campaign: its file, its name, the group that it is held out with, and its
    sizes when it was planned."""

    path: str
    name: str
    group: str
    m: int
    n: int
    nnz: int

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.nnz)


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """Configurations of one matrix for one op, as positions in the op's table, the default first.
    The first `pinned` (default, static top) are measured in every round. An empty choice is a pair
    that a limit left out."""

    pinned: int = 0
    configs: list[int] = []


class Buying(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that a strategy has bought so far of the first `pool` matrices of a plan.

    `clusters` are positions in the pool, by the vectors of `featurizer`. The matrices after the
    pool are the shares of `rounds` in their order, a matrix again for each share.
    """

    strategy: str
    budget: int
    seed: int
    pool: int
    featurizer: str
    clusters: list[list[int]]
    rounds: list[Round]
    #: The first budget; unset, and not in the file, unless it was raised.
    first_budget: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def planned_budget(self) -> int:
        """The budget with which the campaign was planned."""
        first = self.first_budget
        return self.budget if isinstance(first, msgspec.UnsetType) else first

    @property
    def left(self) -> int:
        """Samples still to be bought."""
        return self.budget - sum(len(s.configs) for r in self.rounds for s in r.shares)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign's measurements. `platform` is the TOML text.

    `configs` are the distinct configurations of each op, `choices` those of each matrix, in the
    order of `matrices`. `grid` are the matrices that run every legal configuration of
    `grid_op`. Rounds after the first repeat `repeat_share` of each choice.
    """

    version: int = PLAN_VERSION
    platform: str
    ops: list[str]
    rounds: int
    repeat_share: float
    seed: int
    grid_op: str
    grid: list[int]
    matrices: list[Matrix]
    configs: dict[str, list[dict[str, Any]]]
    choices: dict[str, list[Choice]]
    #: Unset, and not in the file, where no strategy buys.
    buying: Buying | msgspec.UnsetType = msgspec.UNSET

    @property
    def id(self) -> str:
        """Id of the campaign. A plan that grows by buying keeps it."""
        return hashlib.blake2b(msgspec.json.encode(self._lasting()), digest_size=8).hexdigest()

    def _lasting(self) -> Plan:
        if isinstance(self.buying, msgspec.UnsetType):
            return self
        bare = msgspec.structs.replace(
            self.buying,
            rounds=[],
            clusters=[],
            featurizer="",
            budget=self.buying.planned_budget,
            first_budget=msgspec.UNSET,
        )
        pool = self.matrices[: self.buying.pool]
        return msgspec.structs.replace(self, buying=bare, matrices=pool, configs={}, choices={})

    def left_out(self) -> list[tuple[str, str]]:
        """Name and op of the pairs that a limit left out."""
        if not isinstance(self.buying, msgspec.UnsetType):
            return []
        return [
            (matrix.name, op)
            for op in self.ops
            for matrix, choice in zip(self.matrices, self.choices[op], strict=True)
            if not choice.configs
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Number and choice of configurations.

    There are `configs` per matrix and op: the default and the `top` configurations that serve most
    matrices of the database, then `shared` ones that are the same on every matrix, then, if
    `sampled`, a sample of the matrix's own space. `grid` matrices run every legal configuration of
    `grid_op`. Pairs of matrix and op with nnz times dense columns above `max_work` (0: no limit)
    are left out. Rounds after the first repeat `repeat_share` of a choice; without a number of
    `rounds` there are two, and one on a simulated platform, which is exact.

    Raises: UsageError for invalid numbers.
    """

    configs: int = 60
    shared: int = 0
    sampled: bool = True
    rounds: int | None = None
    repeat_share: float = 1.0
    grid: int = 0
    grid_op: str = ""
    max_work: int = 0
    top: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.rounds is not None and self.rounds < 1) or self.configs < 2:
            raise UsageError("a campaign needs at least 1 round and 2 configurations")
        if not 0 < self.repeat_share <= 1:
            raise UsageError(f"the share to repeat is above 0 and at most 1: {self.repeat_share}")


def seeded(seed: int, *words: str) -> np.random.Generator:
    """A generator that depends on the seed and these words alone."""
    return np.random.default_rng([seed, *(zlib.crc32(word.encode()) for word in words)])


def choose_configs(
    space: ConfigSpace, default: Config, count: int, *, rng: np.random.Generator
) -> list[Config]:
    """`count` legal configurations for every matrix: the default, its neighbours, and a sample that
    gives every value of a parameter the same chance."""
    chosen = dict.fromkeys([default, *space.neighbours(default)])
    _fill(chosen, count, space, rng)
    return list(chosen)[:count]


def _fill(
    chosen: dict[Config, None], count: int, space: ConfigSpace, rng: np.random.Generator
) -> None:
    """Add drawn configurations until there are `count`, or the space seems exhausted."""
    draws = islice(_draws(space, rng), 100 * count)
    while len(chosen) < count and (config := next(draws, None)) is not None:
        chosen.setdefault(config)


def _draws(space: ConfigSpace, rng: np.random.Generator) -> Iterator[Config]:
    """Legal configurations near independent draws of every parameter's value.

    Drawn uniformly, nearly all configurations would be from the corner of the space with the most
    parameters.
    """
    while True:
        wish = {p.name: p.values[int(rng.integers(len(p.values)))] for p in space.params}
        config = space.nearest(wish)
        if config is None:
            return
        yield config


def static_top(db: Lookup, platform: Platform, op: Op, count: int) -> list[Config]:
    """The fixed set that serves most patterns of the database, best first; a failure counts as the
    default. Empty if nothing was measured, or only winners."""
    evidence = run_matrix_of(db.store, op, scope_of(platform))
    if not count or evidence.winners or not evidence.rows:
        return []
    space = platform.space(op)
    legal = [at for at, config in enumerate(evidence.configs) if space.reason(config) is None]
    cover = greedy_cover(evidence.gains(failed=0.0)[:, legal], most=count)
    return [space.canonical(evidence.configs[legal[at]]) for at in cover]


def make_plan(
    platform: Platform,
    ops: Sequence[Op],
    matrices: Sequence[Matrix],
    options: PlanOptions,
    *,
    top: Mapping[str, Sequence[Config]] | None = None,
    progress: Progress = ignore_progress,
) -> Plan:
    """A plan that depends on the arguments alone; `top` is the static top by op.

    Raises: UsageError if there is nothing to measure, or the grid is of none of the ops.
    """
    names = list(dict.fromkeys(str(op) for op in ops))
    most = options.max_work or math.inf
    able = {op: [m.nnz * Op.parse(op).width <= most for m in matrices] for op in names}
    if not any(fits for per_op in able.values() for fits in per_op):
        raise UsageError("no matrix to measure", hint="check the folder and the limits")
    if options.grid and options.grid_op not in names:
        raise UsageError(
            f"the grid needs one of the planned operations, not {options.grid_op!r}",
            hint=f"planned: {', '.join(names)}",
        )
    grid = _spread(matrices, able[options.grid_op], options) if options.grid else []
    configs: dict[str, list[dict[str, Any]]] = {}
    choices: dict[str, list[Choice]] = {}
    for op in names:
        chooser = _Chooser(platform, Op.parse(op), options, (top or {}).get(op, ()))
        chooser.draw_shared([m for m, fits in zip(matrices, able[op], strict=True) if fits])
        whole = set(grid) if op == options.grid_op else set()
        choices[op] = []
        for at, matrix in enumerate(matrices):
            progress(f"choose for {op}", at, len(matrices))
            fits = able[op][at]
            choices[op].append(chooser.choice(matrix, whole=at in whole) if fits else Choice())
        configs[op] = [msgspec.json.decode(config.json) for config in chooser.table]
    return Plan(
        platform=platform.text,
        ops=names,
        rounds=options.rounds or (1 if platform.simulated else _ROUNDS),
        repeat_share=options.repeat_share,
        seed=options.seed,
        grid_op=options.grid_op if grid else "",
        grid=grid,
        matrices=list(matrices),
        configs=configs,
        choices=choices,
    )


def _spread(matrices: Sequence[Matrix], able: Sequence[bool], options: PlanOptions) -> list[int]:
    """Positions of the grid's matrices: each next one is of the family with fewest chosen ones, and
    of these the farthest in size from those chosen."""
    order = np.random.default_rng(options.seed).permutation(len(matrices))
    left = [int(at) for at in order if able[at]]
    size = {at: float(np.log1p(matrices[at].nnz)) for at in left}
    chosen: list[int] = []
    taken: dict[str, int] = {}
    gap = dict.fromkeys(left, np.inf)
    while left and len(chosen) < options.grid:
        best = min(left, key=lambda at: (taken.get(matrices[at].group, 0), -gap[at]))
        left.remove(best)
        chosen.append(best)
        taken[matrices[best].group] = taken.get(matrices[best].group, 0) + 1
        gap = {at: min(gap[at], abs(size[at] - size[best])) for at in left}
    return sorted(chosen)


class _Chooser:
    """Choices of one op; `table` collects the distinct configurations with their positions."""

    def __init__(
        self, platform: Platform, op: Op, options: PlanOptions, top: Sequence[Config]
    ) -> None:
        self.table: dict[Config, int] = {}
        self._platform, self._op, self._options, self._top = platform, op, options, top
        self._spaces: dict[tuple[tuple[str, int], ...], ConfigSpace] = {}
        self._shared: list[Config] = []

    def draw_shared(self, matrices: Sequence[Matrix]) -> None:
        """Draw the shared configurations. Beside samples they are legal on all of the matrices;
        without samples they include the default's neighbours, and a matrix runs the legal ones."""
        options, space = self._options, self._platform.space(self._op)
        count = min(options.shared, options.configs)
        rng = seeded(options.seed, str(self._op))
        if not options.sampled:
            default = self._platform.default(self._op)
            self._shared = choose_configs(space, default, count, rng=rng)
            return
        spaces = list({id(s): s for s in map(self._space, matrices)}.values())
        drawn = (
            config
            for config in islice(_draws(space, rng), 100 * count)
            if all(space.reason(config) is None for space in spaces)
        )
        self._shared = list(islice(dict.fromkeys(drawn), count))

    def choice(self, matrix: Matrix, *, whole: bool) -> Choice:
        """Raises: UsageError if the `whole` space is too large to measure."""
        space = self._space(matrix)
        default = self._platform.default(self._op, matrix.sizes)
        chosen = dict.fromkeys([default, *_legal(space, self._top)][: self._options.configs])
        pinned = len(chosen)
        for config in _legal(space, self._shared):
            if len(chosen) < self._options.configs:
                chosen.setdefault(config)
        if whole:
            self._check_grid(space, matrix)
            chosen.update(dict.fromkeys(space.enumerate()))
        elif self._options.sampled:
            # Draws do not change when other matrices are added or left out.
            rng = seeded(self._options.seed, str(self._op), matrix.name)
            _fill(chosen, self._options.configs, space, rng)
        return Choice(pinned, [self.table.setdefault(c, len(self.table)) for c in chosen])

    def _space(self, matrix: Matrix) -> ConfigSpace:
        """The space of a matrix, shared by all matrices whose sizes make no difference."""
        bound = self._platform.space(self._op, matrix.sizes)
        return self._spaces.setdefault(tuple(sorted(bound.symbols.items())), bound)

    def _check_grid(self, space: ConfigSpace, matrix: Matrix) -> None:
        size = space.size()
        if size is None or size > _MOST_GRID:
            raise UsageError(
                f"{self._op} has {'too many' if size is None else f'{size:,}'} legal "
                f"configurations on {matrix.name}; a grid may have {_MOST_GRID:,}",
                hint="plan without the grid",
            )


def _legal(space: ConfigSpace, configs: Sequence[Config]) -> list[Config]:
    return [space.canonical(c) for c in configs if space.reason(c) is None]


#: The file in a campaign's folder.
PLAN = "plan.json"
#: Larger plan files are refused before they are read.
_MOST_BYTES = 256 << 20


def write_plan(plan: Plan) -> bytes:
    """JSON with a line for each matrix, configuration and choice."""
    return _json_lines(msgspec.to_builtins(plan)) + b"\n"


def _json_lines(value: Any) -> bytes:
    if isinstance(value, dict):
        items = (msgspec.json.encode(k) + b": " + _json_lines(v) for k, v in value.items())
        return b"{\n" + b",\n".join(items) + b"\n}"
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return b"[\n" + b",\n".join(map(msgspec.json.encode, value)) + b"\n]"
    return msgspec.json.encode(value)


class _Version(msgspec.Struct):
    version: int = 0


def plan_bytes(file: Path) -> bytes:
    """Content of a plan's file. Raises: InputError if it is missing or cannot be read."""
    try:
        return OwnFolder(file.parent).read(file.name, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "no campaign there",
            where=str(file.parent),
            hint="make one with `embeddb campaign plan`",
        ) from None
    except OSError as e:
        raise InputError(f"cannot be read: {reason_of(e)}", where=str(file)) from None


def read_plan(file: Path) -> Plan:
    """Read a plan. Raises: InputError if it is missing, of another version, or inconsistent."""
    raw = plan_bytes(file)
    try:
        version = msgspec.json.decode(raw, type=_Version).version
        if version != PLAN_VERSION:
            raise InputError(
                f"a plan of version {version}, this program reads version {PLAN_VERSION}",
                where=str(file),
                hint="plan the campaign anew in another folder",
            )
        plan = msgspec.json.decode(raw, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise InputError(f"not a plan: {e}", where=str(file)) from None
    reason = _fault(plan)
    if reason:
        raise InputError(f"not a plan: {reason}", where=str(file))
    return plan


def _fault(plan: Plan) -> str:
    """An inconsistency of a plan in one line; empty without one."""
    if not 1 <= plan.rounds <= 1000 or not 0 < plan.repeat_share <= 1 or plan.seed < 0:
        return "rounds, repeat_share or seed out of range"
    try:
        # Ops become file names, so only their canonical text is allowed.
        if [str(Op.parse(op)) for op in plan.ops] != plan.ops or len({*plan.ops}) != len(plan.ops):
            return "ops are not written as spmm:128, each once"
        for configs in plan.configs.values():
            for config in configs:
                Config(config)
    except EmbeddbError as e:
        return str(e)
    for op in plan.ops:
        choices, count = plan.choices.get(op, []), len(plan.configs.get(op, []))
        if len(choices) != len(plan.matrices):
            return f"choices of {op} for {len(choices)} of {len(plan.matrices)} matrices"
        for matrix, choice in zip(plan.matrices, choices, strict=True):
            legal = all(0 <= at < count for at in choice.configs)
            if not legal or len({*choice.configs}) != len(choice.configs):
                return f"the choice of {op} on {matrix.name} names unknown configurations"
            if not 0 <= choice.pinned <= len(choice.configs):
                return f"the choice of {op} on {matrix.name} pins too many"
    return ""


def from_file(matrix: Matrix) -> Pattern:
    """Read a planned matrix from its file. Raises: MatrixError if it cannot be read."""
    return read_pattern(matrix.path, name=matrix.name, group=matrix.group)


def planned_pattern(matrix: Matrix, read: Callable[[Matrix], Pattern] = from_file) -> Pattern:
    """Read and check a planned matrix. Raises: InputError if its sizes differ; MatrixError."""
    pattern = read(matrix)
    if (*pattern.shape, pattern.nnz) != (matrix.m, matrix.n, matrix.nnz):
        raise InputError(
            f"not the matrix that was planned ({matrix.m} x {matrix.n}, {matrix.nnz})",
            where=matrix.path,
            hint="put that file back, or plan a campaign in another folder",
        )
    return pattern
