"""Loop nests of a kernel that is computed tile by tile: a model of the C code that
`indexer.runners.tile_code` generates from a plan."""

from __future__ import annotations

from collections.abc import Iterable

from embeddb.tensors.roofline.loops import BRANCH, CHOICE, INDEX, Access, Nest, Step
from embeddb.tensors.tiling.forms import (
    ZERO,
    Form,
    Forms,
    Part,
    Span,
    Var,
    of_var,
    whole,
    whole_span,
)
from embeddb.tensors.tiling.plan import BYTES, Plan, Stage, Write
from embeddb.tensors.tiling.values import Value, strides_of


def nests_of(plan: Plan) -> tuple[Nest, ...]:
    """Loop nests in the order of execution."""
    nests: list[Nest] = []
    for stage in plan.stages:
        if plan.values.values[stage.value].what == "sum":
            nests += [_started(plan, stage), _summed(plan, stage)]
        else:
            nests.append(_copied(plan, stage))
    return (*nests, *(_written(plan, write) for write in plan.writes))


def _started(plan: Plan, stage: Stage) -> Nest:
    """Initialisation of the buffer of a sum."""
    own = _Turn(plan)
    own.keep(stage)
    return own.nest(_long(stage), dict(zip(stage.vars, stage.spans, strict=True)), stage.depends)


def _summed(plan: Plan, stage: Stage) -> Nest:
    value, own = plan.values.values[stage.value], _Turn(plan)
    own.read(own.buffer(stage, stage.forms))
    own.keep(stage)
    terms = tuple(of_var(v) if v.extent > 1 else whole(0) for v in value.over)
    needed = frozenset[Var]()
    for operand, forms in zip(value.operands, value.access(stage.forms, terms), strict=True):
        needed |= own.at(operand, forms)
    over = tuple(v for v in value.over if v.extent > 1)
    each = BYTES.get(value.dtype, 1)
    turn = needed | own.of(stage.forms) | frozenset(over)
    own.steps.append(Step(value.opcode, each, turn, 1.0))
    loops = _sum_order(_long(stage), over, stage)
    spans = dict(zip(stage.vars, stage.spans, strict=True))
    spans |= {v: whole_span(v.extent) for v in over}
    inner = stage.inner if stage.inner in loops else None
    blocked = stage.blocked if stage.blocked in over else None
    return own.nest(loops, spans, stage.depends, frozenset(over), inner, blocked)


def _sum_order(free: tuple[Var, ...], over: tuple[Var, ...], stage: Stage) -> tuple[Var, ...]:
    """Loop order of a sum, innermost last, after the jammed rows."""
    inner = [v for v in (*free, *over) if v == stage.inner]
    rest = [v for v in free if v not in inner]
    terms = sorted((v for v in over if v not in inner), key=lambda v: v == stage.blocked)
    if inner and inner[0] in over and rest:
        return (*rest[:-1], *terms, rest[-1], *inner)
    return (*rest, *terms, *inner)


def _copied(plan: Plan, stage: Stage) -> Nest:
    own = _Turn(plan)
    own.computed(stage.value, stage.forms)
    own.keep(stage)
    return own.nest(_long(stage), dict(zip(stage.vars, stage.spans, strict=True)), stage.depends)


def _written(plan: Plan, write: Write) -> Nest:
    shape = plan.kernel.operations[plan.kernel.outputs[write.output]].shape
    own = _Turn(plan)
    own.at(write.value, write.forms)
    strides, each = strides_of(shape), BYTES.get(shape.dtype, 1)
    terms = tuple(map(_terms, write.forms))
    own.accesses.append(
        Access(f"o{write.output}", terms, each, True, 1.0, dims=shape.dims, strides=strides)
    )
    place = ZERO
    for form, stride in zip(write.forms, strides, strict=True):
        place = place + form * stride
    loops = tuple(sorted(write.vars, key=lambda v: -(place.coef(v) or 0)))
    return own.nest(loops, dict(zip(write.vars, write.spans, strict=True)), write.depends)


def _long(stage: Stage) -> tuple[Var, ...]:
    return tuple(stage.vars[d] for d in stage.order if stage.vars[d].extent > 1)


class _Turn:
    """Accesses and steps of one iteration of a nest, without duplicates."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self._values = plan, plan.values.values
        self.accesses: list[Access] = []
        self.steps: list[Step] = []
        self._known: dict[tuple[int, Forms], frozenset[Var]] = {}
        self._share = 1.0

    def nest(
        self,
        loops: tuple[Var, ...],
        spans: dict[Var, Span],
        depends: frozenset[int],
        summed: frozenset[Var] = frozenset(),
        inner: Var | None = None,
        blocked: Var | None = None,
    ) -> Nest:
        accesses, steps = tuple(self.accesses), tuple(self.steps)
        return Nest(loops, spans, depends, accesses, steps, summed, inner, blocked)

    def read(self, access: Access) -> frozenset[Var]:
        self.accesses.append(access)
        return access.variables

    def keep(self, stage: Stage) -> None:
        buffer = self.buffer(stage, stage.forms)
        self.accesses.append(
            Access(buffer.array, buffer.terms, buffer.each, True, 1.0, stage=buffer.stage)
        )

    def buffer(self, stage: Stage, forms: Forms) -> Access:
        each = BYTES.get(self._values[stage.value].dtype, 1)
        terms = tuple(map(_terms, forms))
        return Access(f"k{stage.value}", terms, each, False, self._share, stage=stage)

    def of(self, forms: Iterable[Form]) -> frozenset[Var]:
        """Variables of indices."""
        return frozenset(var for form in forms for var in form.variables)

    def at(self, place: int, forms: Forms) -> frozenset[Var]:
        """Read an element; returns the variables that it depends on."""
        stage = self.plan.staged.get(place)
        if stage is None:
            return self.computed(place, forms)
        key = place, forms
        if key not in self._known:
            self._indexed(forms)
            self._known[key] = self.read(self.buffer(stage, forms))
        return self._known[key]

    def computed(self, place: int, forms: Forms) -> frozenset[Var]:
        """Compute an element that is not buffered, or is to be buffered; returns its variables."""
        key = -1 - place, forms
        if key not in self._known:
            self._known[key] = self._computed(self._values[place], forms)
        return self._known[key]

    def _computed(self, value: Value, forms: Forms) -> frozenset[Var]:
        each = BYTES.get(value.dtype, 1)
        match value.what:
            case "given":
                self._indexed(forms)
                terms = tuple(map(_terms, forms))
                name, dims, strides = f"p{value.number}", value.dims, value.strides
                return self.read(
                    Access(name, terms, each, False, self._share, dims=dims, strides=strides)
                )
            case "number":
                return frozenset()
            case "iota":
                return self._step("convert", each, self.of((forms[value.number],)))
        indices = value.access(forms, ())
        pairs = list(zip(value.operands, indices, strict=True))
        match value.what:
            case "map":
                needed = [self.at(operand, at) for operand, at in pairs]
                return self._step(value.opcode, each, frozenset[Var]().union(*needed))
            case "pad":
                filled = self._padding(value, forms)
                needed = [self.at(operand, at) for operand, at in pairs]
                if not filled:
                    return needed[0]
                turn = frozenset[Var]().union(*needed, filled)
                return self._step(CHOICE, each, turn)
            case "join":
                opcode = BRANCH if len(pairs) > 2 else CHOICE
                return self._step(opcode, each, self._joined(value, pairs) | self.of(forms))
        return self.at(*pairs[0])

    def _padding(self, value: Value, forms: Forms) -> frozenset[Var]:
        """Variables that decide if an element is inside the operand."""
        dims = self._values[value.operands[0]].dims
        turn = frozenset[Var]()
        for d, form in enumerate(forms):
            low, high = (form + -value.low[d]).range()
            if low < 0 or high // (value.gap[d] + 1) >= dims[d] or value.gap[d]:
                turn |= form.variables
        return turn

    def _joined(self, value: Value, pairs: list[tuple[int, Forms]]) -> frozenset[Var]:
        """Read each part as often as its length."""
        before, needed = self._share, frozenset[Var]()
        for operand, at in pairs:
            part = self._values[operand].dims[value.number]
            self._share = before * part / value.dims[value.number]
            needed |= self.at(operand, at)
        self._share = before
        return needed

    def _step(self, opcode: str, each: int, turn: frozenset[Var]) -> frozenset[Var]:
        self.steps.append(Step(opcode, each, turn, self._share))
        return turn

    def _indexed(self, forms: Forms) -> None:
        for form in forms:
            for var, _ in form.terms:
                if isinstance(var, Part):
                    self.steps.append(Step(INDEX, 4, var.form.variables, self._share))


def _terms(form: Form) -> tuple[tuple[Var, int | None], ...]:
    return tuple((var, form.coef(var)) for var in sorted(form.variables, key=lambda v: v.name))
