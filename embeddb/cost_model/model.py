"""The learned cost model at query time: configurations of one matrix ranked without running them.

Either an ensemble of small networks (`embeddb.cost_model.network_torch`) over the matrix's vector,
the common loop nest and the platform's own parameters, added to the platform's prior: the mean
gain of a configuration, from a ridge regression on the same inputs and, where it was measured, its
own mean. Or boosted trees on the same (`embeddb.cost_model.trees_numpy`), which may also read the
predictions of another platform's model. Or for each op a Gaussian process
(`embeddb.cost_model.gaussian`), whose gains are averaged with those of boosted trees. All need
numpy alone, the process scipy too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import EmbeddbError, InputError, ModelError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import reason_of, refusing
from embeddb.core.nn_numpy import below
from embeddb.cost_model import Problem
from embeddb.cost_model.encoders.inputs import (
    ConfigColumns,
    TreeTable,
    matrix_inputs,
    nest_inputs,
    numeric_facts,
    seen_parts,
)
from embeddb.cost_model.encoders.latent import LatentEncoder, from_tensors
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, OnMatrix
from embeddb.cost_model.network_numpy import (
    FUSIONS,
    PARTS,
    Mlp,
    calibration_problem,
    form_of,
)
from embeddb.cost_model.trees_numpy import Forest
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Floats = NDArray[np.float64]

T = TypeVar("T")
#: Number of cached sets of prepared configurations.
_REMEMBERED = 8
_MOST_MEMBERS = 64
#: Columns are counted in 16 bits.
_MOST_COLUMNS = 32_000
#: Number of the best predictions for which a process computes each spread.
_DETAILED = 192
_AGAIN = "train it again with `embeddb train costmodel`"


def space_digest(platform: Platform, op: Op | str) -> str:
    """16 hex digits that change when a configuration of this kernel means something else."""
    form = platform.kernel(op).digest_form()
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """The part of c configurations that is independent of the matrix: loop nests float32[c,65], the
    prior, and the output of `Mlp.prepared` of each member."""

    nests: NDArray[np.float32]
    prior: Floats
    members: tuple[Any, ...]


class _Scored(NamedTuple):
    """The last scores of a process: correlations of the same predictions usually follow."""

    problem: Problem
    place: dict[Config, int]
    on: OnMatrix

    def covers(self, problem: Problem, configs: Sequence[Config]) -> bool:
        return all(map(is_, problem, self.problem)) and all(c in self.place for c in configs)


def _remember(cache: dict[Any, T], key: Any, value: T) -> T:
    """Store the value, and drop the oldest ones."""
    cache[key] = value
    while len(cache) > _REMEMBERED:
        with suppress(RuntimeError, StopIteration):  # another thread changes it
            cache.pop(next(iter(cache)), None)
    return value


def platform_mismatch(card: Mapping[str, Any], kernel: str, platform: Platform, op: Op) -> str:
    """Return the reason why a model of a `kernel` does not fit a platform and an op, by its card,
    in one line; empty if it fits. A model of one instance fits no other instance, but it fits the
    platform without an instance: such a query is answered from the runs of its instances."""
    trained_on = card["platform"]
    instance = str(trained_on.get("id", ""))
    if trained_on["name"] != platform.name:
        return f"trained for the platform {trained_on['name']}, not {platform.name}"
    if "@" in instance and platform.instance and instance != platform.id:
        return f"trained on the runs of {instance}, and this is {platform.id}"
    if kernel != op.name or op.name not in platform.kernels:
        return f"trained for {kernel}, not {op.name}"
    if trained_on["space"] != space_digest(platform, op):
        return f"trained for another space of {platform.name} {op.name} than it has now"
    return ""


def rest_of(prior: Arrays, configs: Sequence[Config]) -> Floats:
    """float64[c]: the residual gains of configurations in a prior, 0 of those not measured."""
    by_id = {bytes(i): float(r) for i, r in zip(prior["ids"], prior["rest"], strict=True)}
    return np.array([by_id.get(bytes.fromhex(c.id), 0.0) for c in configs])


class CostModel:
    """A trained model: its `card` and its tensors by name; `version` is "" until it is saved.

    Tensors: `scale.center`, `scale.scale` float32[d]; `member.I.NAME` the networks' weights;
    `latent.NAME` the encoder's; for each op trained on, `prior.OP.nest` float32[53],
    `prior.OP.latent` float32[e], `prior.OP.ids` uint8[k,16] of measured configurations and
    `prior.OP.rest` float32[k], the residual of each. Or `process.OP.NAME` of the Gaussian process
    of each op and `trees.OP.NAME` of its trees.
    """

    def __init__(self, card: Mapping[str, Any], tensors: Arrays, *, where: str = "") -> None:
        """Raises: ModelError for tensors that are missing, of another shape or not finite."""
        self.card = dict(card)
        self.tensors = dict(tensors)
        self.version = ""
        self.source: CostModel | None = None
        self._remembered: dict[Any, _Prepared] = {}
        self._processes: dict[Op, GaussianProcess] = {}
        self._grown: dict[Op, Forest] = {}
        self._columns: dict[Any, ConfigColumns] = {}
        self._last: _Scored | None = None
        try:
            self._check()
        except EmbeddbError as e:
            text = e.reason if isinstance(e, InputError) else str(e)
            own = e.hint if isinstance(e, ModelError) else ""
            raise ModelError(text, where=where, hint=own or _AGAIN) from None
        except Exception as e:
            text = f"not a whole cost model: {reason_of(e)}"
            raise ModelError(text, where=where, hint=_AGAIN) from e

    # -- files -----------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """The model of a file. Raises: ModelError naming the file."""
        with refusing(ModelError, where=str(path), hint=_AGAIN):
            file = model_file.read(path, kind="costmodel")
            model = cls(file.card, file.tensors, where=str(path))
        model.version = file.version
        return model

    def save(self, path: str | Path) -> str:
        """Write the file, whole or not at all; returns the version, which is then the model's.

        Raises: ModelError if it cannot be written.
        """
        self.version = model_file.save(path, self.tensors, self.card)
        return self.version

    # -- properties -----------------------------------------------------------------------

    @property
    def predictor(self) -> str:
        """`gp`, `trees` or the name of a network's form."""
        return str(self.card["settings"]["predictor"])

    @property
    def reads_lengths(self) -> bool:
        """True if its inputs include derived quantities, which depend on row lengths."""
        return bool(self.card.get("derived") or (self.source and self.source.reads_lengths))

    @property
    def machines(self) -> tuple[str, ...]:
        """The instances it was trained on, if it predicts for every machine of a platform; else
        none."""
        return tuple(map(str, self.card.get("machines", ())))

    def imputed(self, platform: Platform) -> list[str]:
        """Names of the facts that it or its source reads and the machine does not report; they
        are imputed by means."""
        reported = numeric_facts(platform)
        of_source = [] if self.source is None else self.source.imputed(platform)
        own = [name for name, _ in self.card.get("facts", ()) if name not in reported]
        return list(dict.fromkeys([*own, *of_source]))

    @property
    def members(self) -> int:
        return int(self.card["settings"]["members"])

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops it was trained on."""
        return tuple(Op.parse(text) for text in self.card["ops"])

    def nearest_op(self, op: Op) -> Op:
        """The op of the nearest width that it was trained on."""
        return min(self.ops, key=lambda own: abs(math.log2(own.width / op.width)))

    @cached_property
    def table(self) -> TreeTable:
        """The columns that trees read."""
        return TreeTable.from_card(self.card)

    @cached_property
    def _forest(self) -> Forest:
        members = [self.below(f"member.{i}.") for i in range(self.members)]
        return Forest(members, self.table.blocks)

    @property
    def _reads(self) -> int:
        """Length of a matrix's vector."""
        if self.predictor == "trees":
            return self.table.vector
        if self._processes:
            return len(self.tensors[f"process.{self.ops[0]}.center.matrix"])
        return len(self.tensors["scale.center"])

    @cached_property
    def encoder(self) -> LatentEncoder:
        return from_tensors(self.card["settings"]["latent"], self.below("latent."))

    @property
    def instance(self) -> str:
        """The platform instance whose runs it was trained on; empty if its card does not say."""
        return str(self.card["platform"].get("id", ""))

    @property
    def guard(self) -> float:
        """Predicted log gain over the default above which its answer replaces the default."""
        return float(self.card["calibration"].get("guard", 0.0))

    @cached_property
    def form(self) -> Mlp:
        """The form of its networks."""
        return form_of(self.card["settings"])

    @property
    def plain(self) -> bool:
        """True if the first five are the five best predictions, as in the papers, and not chosen
        as a set."""
        return bool(self.card["settings"].get("plain", False))

    def below(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The tensors whose names begin with the prefix, without it."""
        return below(self.tensors, prefix)

    def mismatch(
        self, platform: Platform, op: Op, featurizer_name: str, featurizer_version: str
    ) -> str:
        """Return the reason not to use it here, in one line; empty if there is none."""
        card = self.card
        if reason := platform_mismatch(card, card["kernel"], platform, op):
            return reason
        if op.dtype not in {trained.dtype for trained in self.ops}:
            return f"trained for {', '.join(card['ops'])}, not {op.dtype}"
        if card.get("derived", "") not in ("", platform.quantities(op).digest):
            return f"trained on other derived quantities than {platform.name} {op.name} has now"
        name, version = card["featurizer"]["name"], card["featurizer"]["version"]
        if (name, version) != (featurizer_name, featurizer_version):
            return (
                f"trained on vectors of {name} {version}, "
                f"not {featurizer_name} {featurizer_version}"
            )
        return ""

    # -- scores ----------------------------------------------------------------------------

    def score(self, problem: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Log gains float64[c] of configurations over their mean (higher is faster) and their
        standard deviations float64[c]; not finite where the weights are too large. The caller
        checks `mismatch`.

        Raises: SpaceError for an illegal configuration, or if sizes are needed and not given;
        ModelError for a vector of another length.
        """
        if (shape := np.shape(problem.vector)) != (self._reads,):
            raise ModelError(
                f"the vector has shape {shape}, the model reads {(self._reads,)}",
                hint="it was made by another featurizer",
            )
        if not configs:
            return np.zeros(0), np.zeros(0)
        # A file may hold weights of any size; the caller checks the result for overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            return self._scored(problem, configs)

    def _scored(self, problem: Problem, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        fit = self.card["calibration"]
        if self._processes:
            gain, on = self._by_process(problem, tuple(configs))
            self._last = _Scored(problem, {c: at for at, c in enumerate(configs)}, on)
            gain = fit["slope"] * gain
            return gain, fit["factor"] * np.hypot(on.spread(_DETAILED), fit["floor"])
        if self.predictor == "trees":
            source_score = None if self.source is None else self.source.score(problem, configs)[0]
            columns = self._columns_of(problem, tuple(configs))
            table = self.table.of(problem, configs, source_score, columns)
            each = self._forest.score(table)
        else:
            each = self._by_networks(problem, tuple(configs))
        each = fit["slope"] * each
        each -= each.mean(axis=1, keepdims=True)
        spread = np.sqrt(each.var(axis=0) + fit["floor"] ** 2)
        return each.mean(axis=0), fit["factor"] * spread

    @property
    def gains(self) -> Callable[[Problem, Sequence[Config]], Floats] | None:
        """A function to the gains float64[c] of `score` alone, if spreads take longer."""
        return self._gains if self._processes else None

    def _gains(self, problem: Problem, configs: Sequence[Config]) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            gain, _ = self._by_process(problem, tuple(configs))
            return np.asarray(self.card["calibration"]["slope"] * gain)

    @property
    def correlation(self) -> Callable[[Problem, Sequence[Config]], Floats] | None:
        """A function to the correlations float64[c,c] of the errors of its scores, if the model
        knows them."""
        return self._correlation if self._processes else None

    def _correlation(self, problem: Problem, configs: Sequence[Config]) -> Floats:
        last = self._last
        if last is None or not last.covers(problem, configs):
            _, on = self._by_process(problem, tuple(configs))
            return on.correlation(np.arange(len(configs)))
        return last.on.correlation(np.array([last.place[config] for config in configs]))

    def _by_process(self, problem: Problem, configs: tuple[Config, ...]) -> tuple[Floats, OnMatrix]:
        """Log gains float64[c] over their mean, averaged with those of the trees, and the
        process's posterior."""
        inputs, op = self._columns_of(problem, configs).on(problem), self.nearest_op(problem.op)
        on = self._processes[op].on(inputs)
        gain = on.gain
        if op in self._grown:
            share = self.card["settings"]["trees"]
            grown = self._grown[op].score(np.hstack(inputs).astype(np.float32))[0]
            gain = (1.0 - share) * gain + share * grown
        return gain - gain.mean(), on

    def _columns_of(self, problem: Problem, configs: tuple[Config, ...]) -> ConfigColumns:
        """Configurations prepared for any matrix; the last few sets are cached."""
        platform, op = problem.platform, problem.op
        facts = tuple(sorted(platform.environment.items()))  # quantities read them
        key = (platform.id, platform.digest, platform.quantities(op).digest, facts, op, configs)
        columns = self._columns.get(key)
        if columns is None:
            own = ConfigColumns(platform, op, configs)
            columns = _remember(self._columns, key, own)
        return columns

    def _by_networks(self, problem: Problem, configs: tuple[Config, ...]) -> Floats:
        """Log gains float64[members,c], the prior included."""
        ready = self._prepared(problem, configs)
        x = matrix_inputs(np.asarray(problem.vector)[None], [problem.op], self.below("scale."))
        if "featurizer" not in self.card["settings"]["parts"]:
            x[:, :-1] = 0
        members = enumerate(ready.members)
        each = np.array([self.form.scores(self.below(f"member.{i}."), x, m) for i, m in members])
        return np.asarray(self.card["calibration"].get("trust", 1.0) * each + ready.prior)

    def _prepared(self, problem: Problem, configs: tuple[Config, ...]) -> _Prepared:
        settings, platform, op = self.card["settings"], problem.platform, problem.op
        nests = nest_inputs(platform, op, configs, problem.sizes)
        key = (platform.digest, op, configs)
        cached = self._remembered.get(key)
        if cached is not None and np.array_equal(cached.nests, nests):
            return cached
        latents = self.encoder.encode(self.form.layout(platform.kernel(op)).raw(configs))
        prior = self._prior(op, configs, nests, latents)
        seen, own = seen_parts(nests, latents, settings["parts"])
        members = [self.below(f"member.{i}.") for i in range(self.members)]
        each = tuple(self.form.prepared(weights, seen, own, settings) for weights in members)
        return _remember(self._remembered, key, _Prepared(nests, prior, each))

    def _prior(
        self,
        op: Op,
        configs: Sequence[Config],
        nests: NDArray[np.float32],
        latents: NDArray[np.float32],
    ) -> Floats:
        """Mean log gain float64[c], from the nearest width it was trained on."""
        if not self.card["settings"]["residual"]:
            return np.zeros(len(configs))
        prior = self.below(f"prior.{self.nearest_op(op)}.")
        own = nests[:, :HOMOGENEOUS_DIM] @ prior["nest"]
        return np.asarray(own + latents @ prior["latent"] + rest_of(prior, configs))

    # -- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises: ModelError, or another error for a malformed card or tensor."""
        card, settings = self.card, self.card["settings"]
        _ = (card["kernel"], card["platform"]["name"], card["platform"]["space"])
        _ = (card["featurizer"]["name"], card["featurizer"]["version"])
        if settings["fusion"] not in FUSIONS:
            raise ModelError(f"no fusion {settings['fusion']!r}")
        process = self.predictor == "gp"
        trees = self.predictor == "trees" and not settings.get("every")
        if not trees and not process:
            _ = self.form
        if not set(settings["parts"]) <= set(PARTS):
            raise ModelError(f"no parts {settings['parts']!r}")
        if wrong := calibration_problem(card["calibration"]):
            raise ModelError(wrong)
        members = settings["members"]
        if type(members) is not int or not 1 <= members <= _MOST_MEMBERS or not self.ops:
            raise ModelError("it has no members or no ops")
        for name, array in self.tensors.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ModelError(f"tensor {name!r} is not finite")
        if process:
            self._check_processes()
        elif trees:
            self._check_trees()
        else:
            self._check_networks()

    def _check_processes(self) -> None:
        """Read the processes and their trees, which checks them."""
        if "source" in self.card:
            raise ModelError("it corrects another model, which is no longer done")
        self._processes = {op: GaussianProcess(self.below(f"process.{op}.")) for op in self.ops}
        share = self.card["settings"].get("trees", 0.0)
        if type(share) is not float or not 0 <= share <= 1:
            raise ModelError("the weight of its trees is not a number from 0 to 1")
        for op in self.ops if share else ():
            widths = (len(self.tensors[f"process.{op}.center.{n}"]) for n in Inputs._fields)
            ends = np.cumsum([0, *widths]).tolist()
            blocks = [slice(a, b) for a, b in pairwise(ends)]
            self._grown[op] = Forest([self.below(f"trees.{op}.")], blocks)

    def _check_trees(self) -> None:
        """Read the trees, which checks them, and their source: a model of the same kernel and d
        inputs, whose predictions are inputs here."""
        d, names = self.card["vector"], self.card["layout"]
        if type(d) is not int or not 0 < d <= _MOST_COLUMNS or not isinstance(names, list):
            raise ModelError("its card does not say what the trees read")
        if self.table.width > _MOST_COLUMNS:
            raise ModelError(f"its trees read more than {_MOST_COLUMNS} numbers")
        _ = self._forest
        card = self.card
        if "source" not in card:
            return
        if "source" in card["source"]:
            raise ModelError("its source has a source itself")
        self.source = CostModel(card["source"], self.below("source."))
        if self.source.card["kernel"] != card["kernel"] or self.source._reads != d:
            raise ModelError("its source is a model of another kernel or featurizer")

    def _check_networks(self) -> None:
        """Check that every tensor is there and has its shape."""
        settings = self.card["settings"]
        d, e = len(self.tensors["scale.center"]), self.encoder.dim
        wanted: dict[str, tuple[int, ...]] = {"scale.center": (d,), "scale.scale": (d,)}
        for op in self.ops if settings["residual"] else ():
            k = len(self.tensors[f"prior.{op}.ids"])
            wanted |= {f"prior.{op}.nest": (HOMOGENEOUS_DIM,), f"prior.{op}.latent": (e,)}
            wanted |= {f"prior.{op}.ids": (k, 16), f"prior.{op}.rest": (k,)}
        shapes = self.form.shapes(d, e, settings)
        for i in range(self.members):
            wanted |= {f"member.{i}.{name}": s for name, s in shapes.items()}
        for name, shape in wanted.items():
            if self.tensors[name].shape != shape:
                raise ModelError(
                    f"tensor {name!r} has shape {self.tensors[name].shape}, not {shape}"
                )
