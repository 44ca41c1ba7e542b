"""Tables of docs/results, generated from benchmarks/results.

python tools/results_tables.py           # list pages whose tables differ from the files
python tools/results_tables.py --write   # rewrite them

A page holds `<!-- table: NAME -->`, the table, and `<!-- end -->`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, pstdev, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
OPS = ("spmm:32", "spmm:128", "spmm:512", "sddmm:128", "spmv")
#: Machines that the files name by a digest.
MACHINES = {
    "cpu@0e3785dc": "Intel Ice Lake",
    "cpu@70882216": "AMD Zen 5",
    "cpu@bfb97e83": "AMD Zen 3",
    "cpu@cc58252c": "AMD Zen 4",
    "nest-cpu@0ed533a0": "Intel Skylake",
    "nest-cpu@c42aa373": "AMD Zen 4",
}

#: A header row and the rows below it.
Table = list[list[str]]
_TABLES: dict[str, tuple[str, Callable[[Any], Table]]] = {}


def table(name: str, file: str) -> Callable[[Callable[[Any], Table]], Callable[[Any], Table]]:
    """Register a function from the content of a result file to a table."""

    def register(rows: Callable[[Any], Table]) -> Callable[[Any], Table]:
        _TABLES[name] = (file, rows)
        return rows

    return register


def share(row: dict[str, Any]) -> str:
    """Share of the optimum at 1 / at 5."""
    return f"{row['of_optimum@1']:.3f} / {row['of_optimum@5']:.3f}"


def pivot(rows: Iterable[dict[str, Any]], methods: dict[str, str], ops: Iterable[str]) -> Table:
    """A line per op, a column per method, each cell the share at 1 / at 5."""
    by_key = {(row["op"], row["method"]): row for row in rows}
    lines = [["operation", "matrices", *methods.values()]]
    for op in ops:
        cells = [share(by_key[op, method]) for method in methods]
        lines.append([op, str(by_key[op, next(iter(methods))]["matrices"]), *cells])
    return lines


@table("held-out", "eval_cpu")
def _held_out(data: Any) -> Table:
    methods = {
        "default": "default",
        "static-best": "static best",
        "static-top-k": "static top 5",
        "knn-stats": "plain neighbours",
        "embeddb": "embeddb, neighbours",
    }
    return pivot(data["rows"], methods, OPS)


@table("cost-model", "learned_cpu")
def _cost_model(data: Any) -> Table:
    methods = {
        "embeddb": "neighbours",
        "boosted": "boosted trees",
        "costmodel": "cost model",
        "measured-again": "measured again",
    }
    return pivot(data["rows"], methods, OPS)


@table("devices", "eval_shared")
def _devices(data: Any) -> Table:
    methods = {"static-best": "static best", "knn-stats": "plain neighbours", "embeddb": "embeddb"}
    by_key = {(r["platform"], r["op"], r["method"]): r for r in data["rows"]}
    lines = [["platform", "operation", "matrices", *methods.values()]]
    for platform, op in sorted({key[:2] for key in by_key}):
        cells = [share(by_key[platform, op, method]) for method in methods]
        lines.append([platform, op, str(by_key[platform, op, "embeddb"]["matrices"]), *cells])
    return lines


@table("libraries", "libraries_cpu")
def _libraries(data: Any) -> Table:
    names = {"scipy-csr": "scipy", "torch-csr": "torch", "numba-csr": "numba"}
    names |= {"mkl-csr-optimized": "MKL, optimised", "taco-rows": "TACO, rows"}
    lines = [["operation", *names.values()]]
    for op in OPS:
        cells = [data["ops"][op].get(name) for name in names]
        lines.append([op, *(f"{c['over_first_five']:.1f}×" if c else "–" for c in cells)])
    return lines


@table("live-process", "calibrate_process")
def _live_process(data: Any) -> Table:
    names = {
        "zero-shot": "nothing measured here",
        "three sizes, without the process": "`calibrate`, three sizes, without the process",
        "three sizes": "three sizes",
        "four sizes": "four sizes",
        "fixed, own runs": "best fixed, runs of the four",
        "stock trees, own runs": "stock trees, runs of the four",
        "52 matrices": "52 matrices",
        "fastest of one round": "fastest of one round",
    }
    lines = [["operation", "families", *names.values()]]
    for which, ops in data["families"].items():
        for op, rows in ops.items():
            shares = (f"{rows[n]['of_best@1']:.3f} / {rows[n]['of_best@5']:.3f}" for n in names)
            lines.append([op, f"{rows['zero-shot']['matrices']} {which}", *shares])
    return lines


@table("live", "across_zen5")
@table("live-xeon", "across_emerald")
@table("live-zen3", "across_zen3")
def _live(data: Any) -> Table:
    titles = ["at 1 / at 5", "gain: obtained / predicted", "within the interval"]
    lines = [["operation", "answers by", *titles]]
    names = {
        "zero-shot": "other machines, nothing measured here",
        "calibrated": "and five minutes of `calibrate`",
        "calibrated, not learned": "the same before the model learned",
        "all": "and 52 matrices of this machine",
        "all, not learned": "the same before the model learned",
        "all, sell16": "and `sell16` among the configurations",
        "another day": "and 43 of these, measured on another day",
        "vote": "neighbours alone, nothing measured here",
        "static best of zero-shot": "best fixed schedule of the other machines",
        "static best of calibrated": "best fixed schedule after `calibrate`",
        "fixed, own runs": "best fixed schedules of the 52 matrices here",
        "stock trees, own runs": "stock trees of the 52 matrices here",
        "fastest of one round": "fastest of one round, judged by the others",
    }
    for op in ("spmm:32", "spmm:128", "spmv"):
        for key, name in names.items():
            if key not in data[op]:
                continue
            row = data[op][key]
            predicted = f"{row['promised']:.2f}×" if "promised" in row else "–"
            covered = f"{100 * row['covered']:.0f} %" if "covered" in row else "–"
            at = f"{row['of_best@1']:.3f} / {row['of_best@5']:.3f}"
            lines.append([op, name, at, f"{row['got']:.2f}× / {predicted}", covered])
    return lines


@table("every-machine", "machines")
def _every_machine(data: Any) -> Table:
    names = {
        "answer, {}": "answer",
        "vote, {}": "vote alone",
        "model, {}": "model alone",
        "without the process, {}": "without the process",
        "before learning, {}": "before learning",
        "process, {} alone": "local process alone",
        "stock trees, {} alone": "stock trees, local",
        "best fixed of {}": "best fixed, local",
        "best fixed of others": "best fixed, others",
    }
    counts = (0, 1, 2, 5, 10, 20, 52)
    lines = [["operation", "local matrices", *names.values(), "predicted gain off by"]]
    for op, by_machine in data["ops"].items():
        for rows in (*(f"{n} local" for n in counts), "trained here, too"):
            machines = [m for m in by_machine.values() if f"answer, {rows}" in m]
            if machines:
                every = [[m.get(name.format(rows)) for m in machines] for name in names]
                off = [abs(math.log(answer[2])) for answer in every[0]]
                shares = map(_mean_share, every)
                error = f"{math.expm1(sum(off) / len(off)):.0%}, at most {math.expm1(max(off)):.0%}"
                lines.append([op, _local(rows, len(machines)), *shares, error])
    return lines


def _local(rows: str, machines: int) -> str:
    text = rows.removesuffix(" local")
    return f"{text} ({machines} {'machine' if machines == 1 else 'machines'})"


def _mean_share(each: Sequence[Any]) -> str:
    """Mean shares over machines; nothing where one lacks them."""
    if any(pair is None for pair in each):
        return "–"
    one, five = (sum(pair[at] for pair in each) / len(each) for at in (0, 1))
    return f"{one:.3f} / {five:.3f}"


@table("handles", "handle_grid")
def _handles(data: Any) -> Table:
    lines = [["type, columns", "calls", "over scipy", "over torch", "over MKL", "slower by 5 %"]]
    for kind, calls in data["summary"].items():
        for count in ("10 calls", "100 calls", "1000 calls"):
            row = calls[count]
            gains = [f"{row[f'over {name}']:.2f}×" for name in ("scipy", "torch", "mkl")]
            slower = f"{100 * row['slower by 5 %']:.0f} %"
            lines.append([kind, count.removesuffix(" calls"), *gains, slower])
    return lines


@table("handles-spmv", "handle_spmv")
@table("handles-gather", "handle_gather")
def _handles_spmv(data: Any) -> Table:
    """Means of two runs, before and after."""
    columns = ("over scipy", "over torch", "slower by 5 %")
    lines = [["matrices", "type", "calls", *(f"{name}, before / after" for name in columns)]]
    for matrices, versions in data["matrices"].items():
        for kind, calls in versions["after"]["runs"][0].items():
            for count in calls:
                cells = []
                for name in columns:
                    both = [
                        fmean(run[kind][count][name] for run in versions[version]["runs"])
                        for version in ("before", "after")
                    ]
                    unit = "{:.0f} %" if "slower" in name else "{:.2f}×"
                    scale = 100 / calls[count]["matrices"] if "slower" in name else 1
                    cells.append(" / ".join(unit.format(scale * value) for value in both))
                lines.append([matrices, kind.partition(" ")[0], count, *cells])
    return lines


@table("programs", "programs")
def _programs(data: Any) -> Table:
    lines = [["program, input", "baseline", "speedup"]]
    for name, row in data["programs"].items():
        for library in ("torch", "scipy"):
            if library in row:
                lines.append([name, library, f"{row[library]['over_ours']:.2f}×"])
    return lines


@table("rules", "rule")
def _rules(data: Any) -> Table:
    names = ["rule of 12", "rule of 4", "default", "best single configuration"]
    names.append("answers of the database")
    lines = [["operation", *names]]
    for rule in data["figures"]["rules"]:
        lines.append([rule["op"], *(f"{rule['methods'][n]['of_optimum@1']:.3f}" for n in names)])
    return lines


@table("spade-statistics", "transfer_spade")
def _spade_statistics(data: Any) -> Table:
    methods = [
        "static, 5 x 100",
        "COGNATE's settings, no transfer",
        "COGNATE's settings",
        "COGNATE's settings, zero-shot",
        "no transfer, trees, 5 x 100",
        "no transfer, trees, 20 x 25",
        "no transfer, trees, all",
    ]
    return by_method(data["rows"], methods)


@table("spade-whole", "whole_models")
def _spade_whole(data: Any) -> Table:
    return by_method(data["rows"], sorted({r["method"] for r in data["rows"] if r["seeds"] == 3}))


def by_method(rows: Iterable[dict[str, Any]], methods: Iterable[str]) -> Table:
    """A line per method, a column per operation (share at 1 / at 5)."""
    by_key = {(row["method"], row["op"]): row for row in rows}
    ops = sorted({op for _, op in by_key}, reverse=True)
    lines = [["method", *ops]]
    for method in methods:
        cells = [by_key.get((method, op)) for op in ops]
        lines.append([method, *(share(cell) if cell else "–" for cell in cells)])
    return lines


@table("devices-transfer", "transfer_devices")
def _devices_transfer(data: Any) -> Table:
    names = ["no transfer, 10 matrices", "trees, 10 matrices", "zero-shot", "ours, 10 matrices"]
    names.append("trees, 10 matrices and a source")
    by_key = {(row["platforms"], row["method"]): row for row in data["rows"]}
    lines = [["source → target", *names]]
    for platforms in sorted({pair for pair, _ in by_key}):
        cells = [f"{by_key[platforms, name]['of_optimum@1']:.3f}" for name in names]
        lines.append([platforms.replace("spmv-formats@", "").replace("->", "→"), *cells])
    return lines


@table("devices-across", "across_devices")
def _devices_across(data: Any) -> Table:
    methods = ("embeddb", "static-best-here", "neighbours-here")
    lines = [["devices", "own matrices", "embeddb", "best fixed of these", "neighbours of these"]]
    keys = sorted({(row["kind"], row["local"]) for row in data["rows"] if row["local"] >= 0})
    for kind, local in keys:
        rows = [row for row in data["rows"] if (row["kind"], row["local"]) == (kind, local)]
        cells = [[row for row in rows if row["method"] == method] for method in methods]
        lines.append([kind, str(local), *(_geometric(own) if own else "–" for own in cells)])
    return lines


def _geometric(rows: Sequence[Mapping[str, float]]) -> str:
    """Means of the shares at 1 and at 5."""
    means = (geometric_mean(row[f"of_optimum@{k}"] for row in rows) for k in (1, 5))
    return " / ".join(f"{mean:.3f}" for mean in means)


@table("buying-h200", "buying")
def _buying_h200(data: Any) -> Table:
    names = ("improvement", "random", "spread", "ea25", "mab25", "binned", "kmeans")
    lines = [["operation, samples", "draws", *names]]
    cells = ((name, by_name) for name, by_name in data.items() if name.endswith(" samples"))
    for cell, by_name in sorted(cells, key=_op_and_samples):
        shares = {name: [one["whole"] for one in by_name[name].values()] for name in by_name}
        if len(shares["random"]) < 2:
            continue
        row = [_mean_and_error(shares[name]) if name in shares else "–" for name in names]
        lines.append([cell, str(len(shares["improvement"])), *row])
    return lines


def _op_and_samples(item: tuple[str, Any]) -> tuple[str, int]:
    op, samples = item[0].split(", ")
    return op, int(samples.split()[0])


@table("adopt-expected", "buying")
def _adopt_expected(data: Any) -> Table:
    head = ["samples", "cells", "true share", "expected", "share of the best sample"]
    lines = [[*head, "error at 1: expected", "best sample"]]
    for budget in (50, 100, 250, 500, 1000):
        names = [name for name in data if name.endswith(f", {budget} samples")]
        cells = [cell for name in names for cell in data[name]["improvement"].values()]
        shares = ([cell[key] for cell in cells] for key in ("whole", "expected", "judged"))
        means = [" / ".join(f"{fmean(of):.3f}" for of in zip(*one, strict=True)) for one in shares]
        errors = [
            100 * fmean((cell[key][0] - cell["whole"][0]) ** 2 for cell in cells) ** 0.5
            for key in ("expected", "judged")
        ]
        lines.append([str(budget), str(len(cells)), *means, *(f"{error:.1f}" for error in errors)])
    return lines


@table("tree-settings", "tree_settings")
def _tree_settings(data: Any) -> Table:
    places = {
        "cuda@h200": "NVIDIA H200, an earlier campaign",
        "cuda@418a3fe9": "NVIDIA H200, the starter",
        "cpu": "CPUs, a machine left out",
        **MACHINES,
    }
    cells: dict[tuple[str, str, str], list[Any]] = {}
    for name, draws in data.items():
        if name != "machine":
            where, samples = name.split(", ", 1)
            platform, op = where.split()
            out = "machines left out" if samples.startswith("without") else samples
            cells.setdefault((places[platform], op, out), []).extend(draws)
    lines = [["runs", "operation", "learned from", "held out", "one machine", "every machine"]]
    for (place, op, samples), draws in cells.items():
        shares = (
            " / ".join(f"{fmean(one):.3f}" for one in zip(*(d[how] for d in draws), strict=True))
            for how in ("one machine", "every machine")
        )
        lines.append([place, op, samples, f"{len(draws)} times", *shares])
    return lines


def _mean_and_error(shares: Sequence[Sequence[float]]) -> str:
    first, five = zip(*shares, strict=True)
    error = pstdev(first) / max(len(first) - 1, 1) ** 0.5
    return f"{fmean(first):.3f} ± {error:.3f} / {fmean(five):.3f}"


@table("buying", "selection_training")
def _buying(data: Any) -> Table:
    by_key = {(row["op"], row["strategy"], row["budget"]): row for row in data["rows"]}
    ops = ("spmm:128", "sddmm:128")
    lines = [["strategy", *(f"{op}, {budget} samples" for op in ops for budget in (100, 500))]]
    for strategy in dict.fromkeys(row["strategy"] for row in data["rows"]):
        cells = [by_key.get((op, strategy, budget)) for op in ops for budget in (100, 500)]
        lines.append([strategy, *(f"{c['of_optimum@1']['mean']:.3f}" if c else "–" for c in cells)])
    return lines


def nests(data: Any) -> Table:
    """Gain over the canonical nest by number of tries, and the worst first answer."""
    lines = [["neighbours, matching", "1 try", "5 tries", "10 tries", "worst first"]]
    for name, tries in data["summary"].items():
        gains = [f"{tries[k]['gain']:.2f}×" for k in ("1", "5", "10")]
        lines.append([name, *gains, f"{tries['1']['worst']:.2f}×"])
    return lines


table("nests-zen4", "nests_zen4")(nests)
table("nests-xeon", "nests")(nests)


@table("nests-machine", "nest_machines")
def _nests_machine(data: Any) -> Table:
    lines = [["machine left out", "method", "at 1 / at 5", "slower than default"]]
    for row in data["databases"]["starter"]:
        if row["local"] <= 0 and row["method"] != "oracle":
            slower = f"{100 * row['slower']:.0f} %"
            lines.append([MACHINES[row["instance"]], row["method"], share(row), slower])
    return lines


@table("tiles", "tiles")
def _tiles(data: Any) -> Table:
    lines = [["method", "held out", "APE, mean", "APE, median", "tau", "first tile", "best of ten"]]
    for split, methods in data["splits"].items():
        for name, row in methods.items():
            gains = [f"{row['figure_4'][k]:.2f}×" for k in ("1", "10")]
            ape = [f"{row['ape']:.1f} ± {row['ape_error']:.1f} %", f"{row['ape_median']:.1f} %"]
            lines.append([name, split, *ape, f"{row['tau']:.2f}", *gains])
    return lines


def fused(data: Any) -> Table:
    """Error of predicted seconds of fused kernels of 50 µs or more."""
    lines = [["method", "held out", "MAPE, mean", "MAPE, median", "tau"]]
    for split, methods in data["splits"].items():
        for name, row in methods.items():
            mape = f"{row['mape']:.1f} ± {row['mape_error']:.1f} %"
            tau = f"{row['tau']:.2f}" if "tau" in row else "–"
            lines.append([name, split, mape, f"{row['mape_median']:.1f} %", tau])
    return lines


table("fused-xeon", "fused_xeon_30k")(fused)
table("fused-zen4", "fused_zen4_handed")(fused)


@table("fusion", "fusion_tuning_zen4")
def _fusion(data: Any) -> Table:
    programs = [p["program"] for p in data["programs"]]
    lines = [["start: budget", *programs, "geometric mean"]]
    for name, mean in data["geometric_mean"].items():
        gains = [f"{p['speedup'][name]['median']:.2f}×" for p in data["programs"]]
        lines.append([name, *gains, f"{mean:.2f}×"])
    return lines


def _draws(cells: Any, method: str, what: str) -> str:
    """Mean of the draws at 1 and at 5, and the standard deviation at 1."""
    shares = [cell[method][what] for cell in cells if method in cell]
    if not shares:
        return "–"
    at_1, at_5 = ([share[k] for share in shares] for k in (0, 1))
    return f"{fmean(at_1):.3f} ± {pstdev(at_1):.3f} / {fmean(at_5):.3f}"


def few_samples(what: str) -> Callable[[Any], Table]:
    """Of each operation and number of samples, every method."""

    def rows(data: Any) -> Table:
        cells = {name: draws for name, draws in data.items() if name != "machine"}
        methods = [m for m, judged in next(iter(cells.values()))[0].items() if what in judged]
        order = sorted(cells, key=lambda name: (name.partition(",")[0], _count(name)))
        lines = [["operation, samples", *methods]]
        lines += [[name, *(_draws(cells[name], m, what) for m in methods)] for name in order]
        return lines

    return rows


def _count(name: str) -> int:
    text = name.partition(", ")[2].split()[0]
    return int(text) if text.isdigit() else 1 << 30


table("few-samples", "few_samples")(few_samples("common"))
table("few-samples-whole", "few_samples")(few_samples("whole"))


@table("sources", "sources")
def _sources(data: Any) -> Table:
    shown = [name for name in data["above"] if _count(name) == 100]
    lines = [["source: part", *shown, "ahead", "behind"]]
    for part, card in data["cards"].items():
        values = [data["above"][name].get(part) for name in shown]
        cells = ["{:+.1f} ± {:.1f} / {:+.1f} ± {:.1f}".format(*v) if v else "–" for v in values]
        most = 2 * sum(part in parts for parts in data["above"].values())
        lines.append([part, *cells, *(f"{len(card[k])} of {most}" for k in ("ahead", "behind"))])
    return lines


@table("scale", "scale")
def _scale(data: Any) -> Table:
    lines = [
        ["runs", "patterns", "query, median", "query, 99 %", "query as a command", "all indexes"]
    ]
    for row in data["rows"]:
        query = [f"{1000 * row[key]:.0f} ms" for key in ("query_p50_s", "query_p99_s")]
        cold = f"{row['cold_s']:.2f} s"
        index = f"{row['index_s']:.0f} s, {row['index_own_mb']:.0f} MB"
        lines.append([f"{row['runs']:,}", f"{row['patterns']:,}", *query, cold, index])
    return lines


@table("serving", "serving")
def _serving(data: Any) -> Table:
    lines = [["database, workers", "same page", "264 pages", "queries"]]
    for name, case in data["cases"].items():
        lines.append([name, *(f"{case[k]['per_s']:,}/s" for k in ("same", "pages", "questions"))])
    return lines


@table("featurizers", "featurizers")
def _featurizers(data: Any) -> Table:
    ops = [answer["op"] for answer in data["rows"][0]["answers"]]
    lines = [["featurizer", "input and training", *ops]]
    for row in data["rows"]:
        cells = [share(answer["methods"]["embeddb"]) for answer in row["answers"]]
        lines.append([row["featurizer"], row["weights"] or "–", *cells])
    return lines


@table("embedding", "embedding")
def _embedding(data: Any) -> Table:
    learned = {
        "neighbours by both @1": "by both (`tower`)",
        "neighbours by tower @1": "by learned vectors alone",
        "inner product @1": "inner product",
    }
    plain = ("inner product @5", "recall @10", "recall @50")
    below = [text for name in learned.values() for text in (f"{name} @1", "points above stats")]
    lines = [["platform, operation", "neighbours by stats @1", *below, *plain]]
    for platform in (name for name in data if "each" in data[name]):
        for op, row in data[platform]["operations"].items():
            draws = [draw[op] for draw in data[platform]["each"]]
            stats = [draw["neighbours by stats @1"] for draw in draws]
            cells = [f"{MACHINES.get(platform, 'NVIDIA H200')}, {op}", f"{fmean(stats):.3f}"]
            for name in learned:
                above = [100 * (draw[name] - own) for draw, own in zip(draws, stats, strict=True)]
                cells += [f"{row[name][0]:.3f}", points(above)]
            lines.append([*cells, *(f"{row[name][0]:.3f}" for name in plain)])
    return lines


def points(values: Sequence[float]) -> str:
    """Mean of the draws with its standard error."""
    return f"{fmean(values):+.1f} ± {stdev(values) / len(values) ** 0.5:.1f}"


@table("counters", "dynamics")
def _counters(data: Any) -> Table:
    lines = [["operation", "featurizer", "at 1 / at 5", "log share at 1 above stats"]]
    for row in data["rows"]:
        for name, answer in row["answers"].items():
            above = f"{answer['above_stats@1']:+.3f} ± {answer['above_stats_error@1']:.3f}"
            lines.append([row["op"], name, share(answer), "–" if name == "stats" else above])
    return lines


@table("tuning", "tuning_replay")
def _tuning(data: Any) -> Table:
    lines = [["method", *(f"{row['op']}: share (runs)" for row in data["rows"])]]
    for method in data["rows"][0]["methods"]:
        if "60 s" in method or "600 s" in method:
            continue
        cells = [row["methods"][method] for row in data["rows"]]
        lines.append([method, *(f"{c['of_optimum']:.3f} ({c['runs']:.0f})" for c in cells)])
    return lines


@table("gnn", "gnn")
def _gnn(data: Any) -> Table:
    lines = [["network", "method", "speedup over the default", "least", "most"]]
    for network, methods in data["geometric_mean"].items():
        for name, row in methods.items():
            if isinstance(row, dict) and name != "default":
                gains = [f"{row[key]:.2f}×" for key in ("whole", "min", "max")]
                lines.append([network, name, *gains])
    return lines


def about(data: Any) -> str:
    """Machine and commit of a result file, as far as it has them."""
    places = (data, data.get("figures", {}), data.get("cuda", {}))
    facts = next((p[key] for p in places for key in ("about", "machine") if p.get(key)), places[-1])
    facts = facts[0] if isinstance(facts, list) else facts
    texts = [str(facts.get("cpu", "")), _cores(facts)]
    texts.append(f"commit {str(facts['commit'])[:10]}" if "commit" in facts else "")
    return ", ".join(text for text in texts if text)


def _cores(facts: dict[str, Any]) -> str:
    count = facts.get("cores", 0)
    return f"{count} core{'s' * (count != 1)}" if count else ""


def drawn(name: str) -> str:
    """The Markdown of a table with its source."""
    file, rows = _TABLES[name]
    data = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    head, *body = rows(data)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body)]
    source = f"[{file}.json](../../benchmarks/results/{file}.json)"
    facts = about(data)
    return "\n".join([*lines, "", f"Source: {source}{'; ' if facts else ''}{facts}."])


def filled(text: str) -> str:
    """A page with its tables made anew."""
    mark = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
    return mark.sub(lambda m: f"{m[1]}\n{drawn(m[2])}\n\n{m[3]}", text)


def stale() -> list[Path]:
    """Pages whose tables differ from the result files."""
    pages = sorted(PAGES.glob("*.md"))
    return [p for p in pages if filled(p.read_text(encoding="utf-8")) != p.read_text("utf-8")]


if __name__ == "__main__":
    for page in stale():
        if "--write" in sys.argv:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page.relative_to(ROOT))
