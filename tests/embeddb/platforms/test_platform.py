"""Platform files: the built-in ones, the tutorial's, wrong ones, and the published runs."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import run_verb

from embeddb.core.config import Config, Op
from embeddb.core.errors import PlatformError, SpaceError, UsageError
from embeddb.core.sizes import Sizes
from embeddb.platforms.check import check_platform
from embeddb.platforms.platform import builtin_platforms, load_platform, parse_platform

ROOT = Path(__file__).resolve().parents[3]
SPMM, SPMV = Op("spmm", 256), Op("spmv")

GOOD = """
name = "toy"
version = "1"
title = "A toy"

[[space]]
kernels = ["spmm"]
constraints = ["tile <= WIDTH or tile == 8"]

[space.params]
order = { type = "choice", values = ["a", "b"] }
tile = { type = "int", values = [8, 16], when = "order == 'b'" }

[space.default]
order = "a"

[space.loopnest]
K = "tile"
order = ["i1", "j1", "k1"]
"""


# --- built in ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", builtin_platforms())
def test_built_in_platforms_pass_the_contract(name: str) -> None:
    platform = load_platform(name)
    assert platform.name == platform.id == name
    assert check_platform(platform) == []


@pytest.mark.parametrize("op", ["spmm:32", "spmm:128", "spmv", "sddmm:7"])
@pytest.mark.parametrize("sizes", [Sizes(9, 100, 500), Sizes(9, 5000, 9000), Sizes(9, 9**6, 1)])
def test_a_space_enumerates_on_a_matrix_what_is_legal_there(op: str, sizes: Sizes) -> None:
    platform, asked = load_platform("cpu"), Op.parse(op)
    there, anywhere = platform.space(asked, sizes), platform.space(asked)
    legal = [config for config in anywhere.enumerate() if there.reason(config) is None]
    assert list(there.enumerate()) == legal and there.size() == len(legal) > 0
    assert list(platform.space(asked, Sizes(9, 400, 9)).enumerate()) != list(anywhere.enumerate())
    again = platform.space(asked, Sizes(9, 400, 9)).bind(sizes.symbols)
    assert list(again.enumerate()) == legal


def test_the_built_in_platforms_are_these() -> None:
    names = "autotvm cpu cuda gpu-hyb gpu-kernels gpu-sparsetir lcm-tiles morpheus-formats nest-cpu"
    assert builtin_platforms() == (
        *names.split(),
        *("spade", "spmv-formats", "tile-cpu", "tpu-graphs", "waco-cpu", "xla-cpu"),
    )


@pytest.mark.parametrize(
    ("name", "op", "size"),
    [
        ("cpu", "spmm:128", 758),
        ("cpu", "spmm:32", 470),
        ("cpu", "sddmm:128", 534),
        ("cpu", "spmv", 392),
        ("spade", "spmm:32", 256),
        ("spade", "sddmm:32", 256),
        ("gpu-sparsetir", "spmm:128", 288),
        ("gpu-kernels", "spmm:64", 10),
        ("gpu-hyb", "spmm:64", 80),
        ("spmv-formats", "spmv", 28),
        ("lcm-tiles", "spmm:256", 16),
        ("lcm-tiles", "spmv", 12),
        ("waco-cpu", "spmm:256", None),
    ],
)
def test_sizes(name: str, op: str, size: int | None) -> None:
    space = load_platform(name).space(Op.parse(op), Sizes(100_000, 100_000, 10**6))
    assert space.size() == size


def test_how_many_are_legal_is_not_told_of_a_kernel_of_no_shape(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, kernel, by in (("tile-cpu", "tile", "RANK"), ("nest-cpu", "nest", "DEPTH")):
        space = load_platform(name).kernel(kernel).space
        assert space.shaped_by == (by,) and space.bind({by: 1}).shaped_by == ()
        assert run_verb(["platform", "show", name]) == 0
        assert f"legal depends on {by} and sizes" in capsys.readouterr().out
    assert load_platform("cpu").space(SPMM).shaped_by == ()


def test_spade_counts_equal_column_panels_once() -> None:
    spade = load_platform("spade")
    assert spade.simulated
    assert spade.cost_per_sample == 1000
    assert spade.space(SPMM, Sizes(n=1024)).size() == 192
    assert spade.kernel(SPMM).heterogeneous == ("barrier", "bypass", "reorder")
    assert spade.kernel(SPMM).homogeneous == ("row_panels", "column_panels", "split", "barrier")
    unknown = {**spade.default(SPMM), "split": 0}
    reason = spade.space(SPMM).reason(spade.space(SPMM).canonical(unknown))
    assert reason == "parameter 'split': 0 is not one of 32, 256"


def test_cpu_rules() -> None:
    cpu = load_platform("cpu")
    op = Op("spmm", 32)
    space, default = cpu.space(op), cpu.default(op)
    assert str(default) == "format=csr,order=ijk,schedule=static,threads=all"
    assert cpu.portable
    assert cpu.runner == "cpu"
    assert space.reason(default.replace(schedule="dynamic")) is not None
    tiled = default.replace(order="ik1jk0", unroll=1, reorder="none")
    assert space.reason(tiled.replace(ktile=64)) is not None
    assert space.reason(tiled.replace(ktile=32)) is None
    narrow = cpu.space(Op("spmm", 1))
    assert narrow.reason(tiled.replace(ktile=8)) is None
    panels = {"order": "j1ik1j0k0", "format": "dcsr", "jtile": 512, "ktile": 8}
    assert cpu.space(op, Sizes(n=512)).reason(default.replace(**panels)) is not None
    assert cpu.space(op, Sizes(n=513)).reason(default.replace(**panels)) is None
    short = {"format": "sell16", "order": "ij", "sigma": 1, "slice": 8, "threads": "one"}
    short["gather"] = "hardware"
    assert cpu.space(Op("spmv"), Sizes(50_000, 50_000, 10**6)).size() == 536
    assert cpu.space(Op("spmv"), Sizes(n=65_536)).reason(short) is None
    assert cpu.space(Op("spmv"), Sizes(n=65_537)).reason(short) is not None


# --- the published runs --------------------------------------------------------------------

_WACO = {
    "spmm": ("SpMM", "isplit ksplit jsplit", 6, "i1f i0f k1f k0f"),
    "sddmm": ("SDDMM", "isplit jsplit ksplit", 6, "i1f i0f j1f j0f"),
    "spmv": ("SpMV", "isplit ksplit", 4, "i1f i0f k1f k0f"),
}


@pytest.mark.shared
@pytest.mark.parametrize(("kernel", "count"), [("spmm", 870), ("sddmm", 789), ("spmv", 770)])
def test_every_waco_row_is_legal(shared: Path, kernel: str, count: int) -> None:
    folder, splits, loops, formats = _WACO[kernel]
    op = Op(kernel, 1 if kernel == "spmv" else 256)
    platform = load_platform("waco-cpu")
    rows = 0
    for path in sorted((shared / "runs" / "waco" / folder / "CollectedData").iterdir()):
        matrix = shared / "runs" / "waco" / "dataset" / f"{path.stem}.csr"
        sizes = np.fromfile(matrix, "<i4", 2).tolist() if matrix.is_file() else [-1, -1]
        space = platform.space(op, Sizes(m=sizes[0], n=sizes[1]))
        for line in path.read_text().splitlines():
            words = line.split()
            numbers = dict(zip(splits.split(), map(int, words), strict=False))
            order = words[len(numbers) : len(numbers) + loops]
            rest = words[len(numbers) + loops :]
            flags = dict(zip(formats.split(), map(int, rest[:4]), strict=True))
            omp = {"paridx": rest[4], "parnum": int(rest[5]), "parchunk": int(rest[6])}
            config = Config({**numbers, "order": order, **flags, **omp})
            assert space.reason(config) is None, f"{path.name}: {line}"
            assert platform.loopnest(op, config) is not None
            rows += 1
    assert rows == count


def _columns(path: Path, *names: str) -> set[tuple[str, ...]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    rows = csv.reader(io.StringIO(text))
    head = [name.strip() for name in next(rows)]
    places = [head.index(name) for name in names]
    return {tuple(row[p] for p in places) for row in rows}


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "columns", "platform", "op", "params"),
    [
        ("ginkgo/spmv_times.csv.gz", "format", "spmv-formats", "spmv", "format"),
        ("ra-spmm/rtx3090_sweep.csv", "kernel", "gpu-kernels", "spmm:64", "kernel"),
        ("ra-spmm/rtx3090_unseen_sweep.csv", "kernel", "gpu-kernels", "spmm:64", "kernel"),
        (
            "lcm/spmm_tiles_niagara.csv.gz",
            "mTileSize nTileSize",
            "lcm-tiles",
            "spmm:256",
            "mTileSize nTileSize",
        ),
        (
            "lcm/spmv_ddt_niagara.csv.gz",
            "size_cutoff col_threshold",
            "lcm-tiles",
            "spmv",
            "size_cutoff col_threshold",
        ),
        (
            "liteform/hyb_best_2279.csv.gz",
            "best_num_partitions best_max_bucket_width",
            "gpu-hyb",
            "spmm:32",
            "num_partitions max_bucket_width",
        ),
    ],
)
def test_every_published_choice_is_legal(
    shared: Path, file: str, columns: str, platform: str, op: str, params: str
) -> None:
    space = load_platform(platform).space(Op.parse(op))
    seen = set()
    for values in _columns(shared / "runs" / file, *columns.split()):
        typed = [int(v) if v.isdigit() else v for v in values]
        config = space.canonical(dict(zip(params.split(), typed, strict=True)))
        assert space.reason(config) is None
        seen.add(config)
    everything = set(space.enumerate())
    assert seen <= everything
    if platform not in ("gpu-hyb", "gpu-kernels"):
        assert seen == everything


# --- the tutorial --------------------------------------------------------------------------


def _blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "howto" / "new-platform.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    source = (ROOT / "examples" / "my_platform.toml").read_text()
    (script,) = _blocks("python")
    assert source in _blocks("toml")
    (tmp_path / "my_platform.toml").write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_pages_list_every_platform_and_key() -> None:
    text = (ROOT / "docs" / "howto" / "new-platform.md").read_text()
    for name in builtin_platforms():
        assert f"| `{name}` |" in text
    keys = (ROOT / "docs" / "reference" / "platform-file.md").read_text()
    source = (ROOT / "embeddb" / "platforms" / "platform.py").read_text()
    source += (ROOT / "embeddb" / "platforms" / "kernel.py").read_text()
    for key in re.findall(r"(?:take|texts|table)\(\"(\w+)\"", source):
        assert f"`{key}`" in keys, key


# --- identity ------------------------------------------------------------------------------


def test_digest_changes_with_the_space_only() -> None:
    digest = parse_platform(GOOD).digest
    assert re.fullmatch(r"[0-9a-f]{32}", digest)
    same = GOOD.replace("A toy", "Another title").replace("[[space]]", "# comment\n[[space]]")
    assert parse_platform(same).digest == digest
    assert parse_platform(GOOD).at("V100").digest == digest
    for old, new in [
        ("[8, 16]", "[8, 16, 32]"),
        ("[8, 16]", "[16, 8]"),
        ("tile == 8", "tile == 16"),
        ('order = "a"', 'order = "b"\ntile = 8'),
        ("order == 'b'", "order != 'a'"),
        ('"i1", "j1", "k1"', '"j1", "i1", "k1"'),
        ('K = "tile"', 'J = "tile"'),
        ('["spmm"]', '["sddmm"]'),
    ]:
        assert old in GOOD
        assert parse_platform(GOOD.replace(old, new)).digest != digest


def test_values_say_what_they_mean() -> None:
    cpu = load_platform("cpu")
    told = cpu.meanings({"order": "ijk", "ktile": 64, "strange": 1})
    assert "row after row" in told["order"] and "registers" in told["ktile"]
    assert told.keys() == {"order", "ktile"}
    params = {param.name for op in cpu.ops for param in cpu.kernel(op).space.params}
    assert params <= cpu.meaning.keys()
    head, _, rest = cpu.text.partition("[meaning]")
    silent = parse_platform(head + rest[rest.index("[[space]]") :])
    assert silent.digest == cpu.digest and not silent.meanings({"order": "ijk"})


def test_instances() -> None:
    v100 = load_platform("spmv-formats@V100")
    assert (v100.id, v100.name, v100.instance) == ("spmv-formats@V100", "spmv-formats", "V100")
    assert v100 != load_platform("spmv-formats")
    assert v100 == load_platform("spmv-formats").at("V100")
    here = load_platform("cpu").at(environment={"cpu": "x", "threads": "2"})
    assert re.fullmatch(r"cpu@[0-9a-f]{8}", here.id)
    assert here.environment == {"cpu": "x", "threads": "2"}
    assert here == load_platform("cpu").at(environment={"threads": "2", "cpu": "x"})
    assert here != load_platform("cpu").at(environment={"cpu": "y", "threads": "2"})
    assert here.at() == load_platform("cpu")
    for label in ["a b", "a/b", "x" * 65, "-a", "a@b"]:
        with pytest.raises(PlatformError, match="cannot name an instance"):
            load_platform("cpu").at(label)


def test_loading_by_path(tmp_path: Path) -> None:
    path = tmp_path / "odd@place" / "toy.toml"
    path.parent.mkdir()
    path.write_text(GOOD)
    assert load_platform(path).text == GOOD
    assert load_platform(str(path)).id == "toy"
    assert load_platform(f"{path}@board-1").id == "toy@board-1"
    with pytest.raises(PlatformError, match="cannot be read: No such file"):
        load_platform(tmp_path / "none.toml")
    with pytest.raises(PlatformError, match="cannot be read"):
        load_platform(tmp_path)
    with pytest.raises(PlatformError, match="no platform 'cpuu'") as caught:
        load_platform("cpuu")
    assert "cpu, cuda" in caught.value.hint
    with pytest.raises(PlatformError, match="'cpu@' names no instance"):
        load_platform("cpu@")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlatformError, match="is not UTF-8"):
        load_platform(path)
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(PlatformError, match="larger than"):
        load_platform(path)


def test_a_kernel_it_does_not_run() -> None:
    with pytest.raises(UsageError, match="platform spade has no spmv") as caught:
        load_platform("spade").space(SPMV)
    assert caught.value.hint == "its kernels: spmm, sddmm"


def test_spaces_are_resolved_by_what_is_known() -> None:
    spade = load_platform("spade")
    assert spade.space(SPMM).unresolved == ("NUM_MATRIX_COLS",)
    assert spade.space(SPMM, Sizes(m=5, n=7)).unresolved == ()
    assert spade.space(SPMM, Sizes(n=7)) is spade.space(SPMM, Sizes(9, 7, 3))
    cpu = load_platform("cpu")
    assert cpu.space(Op("spmm", 32), Sizes(m=1, n=9)) is cpu.space(Op("spmm", 32), Sizes(m=2, n=9))


# --- wrong files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[space]]", "[[space]", "not valid TOML: .*line 6"),
        ('name = "toy"', "", "name: is missing"),
        ('name = "toy"', 'name = "My Toy"', "name: 'My Toy' must be lower-case"),
        ('name = "toy"', "name = 3", "name: must be a text, not 3"),
        ('version = "1"', "version = 1", "version: must be a text"),
        ('title = "A toy"', 'title = "A toy"\ncost = 3', "cost: unknown key"),
        ('title = "A toy"', 'title = "x"\ncost_per_sample = 0', "cost_per_sample: must be larger"),
        ('title = "A toy"', 'title = "x"\ncost_per_sample = nan', "must be larger than 0"),
        ('title = "A toy"', f'title = "x"\ncost_per_sample = {10**400}', "is too large a number"),
        ('version = "1"', f"version = {'1' * 5000}", "not valid TOML: a number has too many"),
        ('title = "A toy"', f'title = "x"\ntraits.x = 0x{"f" * 5000}', "traits.x: is too large"),
        ('title = "A toy"', f'title = "x"\na{".a" * 100_000} = 1', "a key has more than 32 parts"),
        ('title = "A toy"', 'title = "x"\nportable = 1', "portable: must be true or false"),
        ('title = "A toy"', 'title = "x"\ntraits = [1]', "traits: must be a table"),
        ('title = "A toy"', 'title = "x"\ntraits = { a = [1] }', "traits.a: must be a number"),
        ('title = "A toy"', 'title = "x"\nmeaning.tilt = "a"', "meaning.tilt: is no parameter"),
        ('title = "A toy"', 'title = "x"\nmeaning.tile = 3', "meaning.tile: must be a text of one"),
        ("[[space]]", "[space]", "space: must be a list"),
        ('["spmm"]', '["spgemm"]', r"space\[0\].kernels: must list some of spmm, sddmm, spmv"),
        ('["spmm"]', '["spmm", "spmm"]', "each once"),
        ('["spmm"]', "[]", "must list some of"),
        ('["spmm"]', "[1]", "must be a list of texts"),
        ('kernels = ["spmm"]\n', 'kernels = ["spmm"]\nkernel = 1\n', r"space\[0\].kernel: unknown"),
        ('type = "int"', 'type = "integer"', r"params.tile.type: 'integer' is not one of int, "),
        ('type = "int", ', "", r"space\[0\].params.tile.type: is missing"),
        ("values = [8, 16]", "values = []", "params.tile.values: there are no values"),
        ("values = [8, 16]", "values = [8, 8]", "params.tile.values: 8 is there twice"),
        ("values = [8, 16]", "values = [8, true]", "params.tile.values: must be numbers or texts"),
        ("values = [8, 16]", "values = [8, [1]]", "params.tile.values: must be numbers or texts"),
        ("values = [8, 16]", "values = [8, nan]", "params.tile.values: must be numbers"),
        ("values = [8, 16]", "values = 8", "params.tile.values: must be a list"),
        ("values = [8, 16]", f"values = {list(range(1001))}", "1001 values, at most 1000"),
        ("values = [8, 16]", "values = [8, 16], step = 2", "params.tile.step: unknown key"),
        (
            "values = [8, 16]",
            "values = [8], aliases = { 1 = 9 }",
            "params.tile.aliases: '1' stands",
        ),
        ("order == 'b'", "ordre == 'b'", "params.tile.when: there is no parameter 'ordre'"),
        ("order == 'b'", "order == 'c'", "params.tile.when: c is not a value of 'order': a, b"),
        ("tile == 8", "min('') < tile", r"constraints\[0\]: .* can never be evaluated"),
        ("tile == 8", f"tile * {'9' * 320} > 2", r"constraints\[0\]: .* no number larger than"),
        ("order == 'b'", "tile == 8", "params.tile.when: conditions go round in a circle"),
        ("order == 'b'", "WIDTH > 8", "params.tile.when: a condition cannot use 'WIDTH'"),
        ("order == 'b'", "order.b", "params.tile.when: .*'order.b' is not allowed"),
        ("tile == 8", "tyle == 8", r"constraints\[0\]: there is no parameter 'tyle'"),
        ("tile == 8", "__import__('os')", r"constraints\[0\]: .* is not allowed"),
        ('order = { type = "choice"', 'NNZ = { type = "choice"', "params.NNZ: 'NNZ' cannot be"),
        ('order = "a"', 'order = "c"', "default: is not legal: parameter 'order': c is not one of"),
        ('order = "a"', 'order = "b"', "default: is not legal: parameter 'tile' is missing"),
        ('order = "a"', 'order = "a"\nfast = 1', "default: is not legal: unknown parameter 'fast'"),
        ('order = "a"', 'order = ["a", 1]', "default.order: must be a number, a text or a list"),
        ('order = "a"', "order = nan", "default: parameter 'order' cannot have the value"),
        ('K = "tile"', 'K = "tyle"', "loopnest.K: there is no parameter 'tyle'"),
        ('K = "tile"', "K = 0", "loopnest.K: an expression is written as text"),
        ('K = "tile"', "K = true", "loopnest.K: must be a number, a text or a list, not true"),
        ('K = "tile"', 'K9 = "tile"', "loopnest.K9: unknown key"),
        ('["i1", "j1", "k1"]', '["i1", "i1"]', "loopnest.order: a loop is there twice"),
        ('["i1", "j1", "k1"]', '["i9"]', "loopnest.order: 'i9' is not a loop"),
        ('["i1", "j1", "k1"]', '"order"', "loopnest.order: 'order' is not a permutation"),
        ('["i1", "j1", "k1"]', "[1]", r"loopnest.order\[0\]: must be a table"),
        ('["i1", "j1", "k1"]', "3", "loopnest.order: must be a list of loops"),
        (
            '["i1", "j1", "k1"]',
            "[{ when = \"order == 'a'\", loops = ['i1'] }]",
            "loopnest.order: every case but the last needs a `when`",
        ),
    ],
)
def test_wrong_files_name_file_and_key(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(PlatformError, match=message) as caught:
        parse_platform(GOOD.replace(old, new), where="toy.toml")
    assert str(caught.value).startswith("toy.toml: ")
    assert "\n" not in str(caught.value)


def test_wrong_files_of_other_kinds() -> None:
    section = GOOD[GOOD.index("[[space]]") :]
    with pytest.raises(PlatformError, match=r"space\[1\].kernels: spmm already has a space"):
        parse_platform(GOOD + section)
    duplicate = GOOD.replace("[space.default]", "tile = {}\n[space.default]")
    with pytest.raises(PlatformError, match="not valid TOML"):
        parse_platform(duplicate)
    with pytest.raises(PlatformError, match="not valid TOML: too deeply nested"):
        parse_platform("a = " + "[" * 100_000)
    with pytest.raises(PlatformError, match="larger than"):
        parse_platform("#" * (2 << 20))
    with pytest.raises(PlatformError, match="space: is missing"):
        parse_platform(GOOD[: GOOD.index("[[space]]")])
    with pytest.raises(PlatformError, match="'order' is neither here nor in the loop nest"):
        parse_platform(GOOD.replace("[space.params]", 'heterogeneous = ["tile"]\n[space.params]'))
    with pytest.raises(PlatformError, match="heterogeneous: there is no parameter 'x'"):
        parse_platform(GOOD.replace("[space.params]", 'heterogeneous = ["x"]\n[space.params]'))
    with pytest.raises(PlatformError) as caught:
        parse_platform(GOOD.replace("version", "versoin"))
    assert "version: is missing" in str(caught.value)
    with pytest.raises(PlatformError) as caught:
        parse_platform(GOOD.replace("constraints", "constraint"))
    assert caught.value.hint == "did you mean 'constraints'?"


def test_the_contract_finds_what_parsing_cannot() -> None:
    assert check_platform(parse_platform(GOOD)) == []
    narrow = GOOD.replace("tile <= WIDTH or tile == 8", "tile < 16")
    (problem,) = check_platform(parse_platform(narrow))
    assert problem == "spmm: parameter 'tile': no legal configuration has the value 16"
    wide = GOOD.replace("tile <= WIDTH or tile == 8", "WIDTH >= 16 or order == 'b'")
    (problem,) = check_platform(parse_platform(wide))
    assert problem.startswith(
        "spmm: the default is not legal for spmm:1 on a 1 x 1 matrix: order=a"
    )
    zero = GOOD.replace("[8, 16]", "[0, 16]").replace(" or tile == 8", " or tile == 0")
    problems = check_platform(parse_platform(zero))
    assert problems
    assert all("has no loop nest: split K is 0" in p for p in problems)
    single = GOOD.replace('["a", "b"]', '["a"]').replace("order == 'b'", "order != 'a'")
    assert "spmm: there is only one legal configuration, so nothing to choose" in check_platform(
        parse_platform(single)
    )


def test_a_default_that_draws_miss_is_no_space_without_a_legal_configuration() -> None:
    names, end = "abcdef", "\n"
    text = f"""
name = "tight"
version = "1"
title = "Two of a million are legal"
[[space]]
kernels = ["spmm"]
constraints = ["{" and ".join(f"{name} == 1" for name in names[:5])} and f <= 2"]
[space.params]
{"".join(f"{name} = {{ type = 'int', values = {list(range(1, 11))} }}{end}" for name in names)}
[space.default]
{end.join(f"{name} = 1" for name in names)}
"""
    (problem,) = check_platform(parse_platform(text))
    assert "random draws found no legal configuration but the default for spmm:128" in problem


def test_a_default_that_breaks_its_constraint_comes_with_the_cure() -> None:
    narrow = GOOD.replace("tile <= WIDTH or tile == 8", "order == 'b' and tile <= WIDTH")
    with pytest.raises(PlatformError, match="default: is not legal: order=a: breaks") as caught:
        parse_platform(narrow)
    cured = "order == 'b' and tile <= WIDTH or order == 'a'"
    assert f'"{cured}"' in caught.value.hint
    parse_platform(GOOD.replace("tile <= WIDTH or tile == 8", cured))
    wide = GOOD.replace("tile <= WIDTH or tile == 8", "WIDTH >= 16 or order == 'b'")
    (problem,) = check_platform(parse_platform(wide))
    cure = "WIDTH >= 16 or order == 'b' or order == 'a'"
    assert problem.endswith(f'; allow it, as by "{cure}", or choose another default')


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(PlatformError, match=r"pipe\.toml: cannot be read: a named pipe"):
        load_platform(tmp_path / "pipe.toml")
    with pytest.raises(PlatformError):
        load_platform("a\0b.toml")


def test_a_platform_cannot_raise_anything_else_after_it_was_read() -> None:
    """What its expressions cannot compute does not hold, or is a SpaceError."""
    far = "tile * " + " * ".join(["NUM_MATRIX_ROWS"] * 20)
    text = GOOD.replace("tile <= WIDTH or tile == 8", f"{far} * 1.5 != tile")
    text = text.replace('K = "tile"', f'J = "NUM_MATRIX_COLS // 0 + tile"\nK = "{far}"')
    platform, most = parse_platform(text), Sizes(2**62, 2**62, 2**62)
    space = platform.space(SPMM, most)
    assert space.sample(3, rng=np.random.default_rng(0)) == [Config({"order": "a"})]
    assert platform.default(SPMM, most)["order"] == "a"
    with pytest.raises(SpaceError, match="cannot be evaluated"):
        platform.loopnest(SPMM, Config({"order": "b", "tile": 8}), most)
    sometimes = GOOD.replace('"choice", values = ["a", "b"]', '"permutation", values = ["a", "b"]')
    sometimes = sometimes.replace("order == 'b'", "position(order, 'b') == 0")
    sometimes = sometimes.replace('order = "a"', 'order = ["a", "b"]')
    sometimes = sometimes.replace("[space.params]", SOMETIMES)
    sometimes = sometimes.replace('["i1", "j1", "k1"]', '"late"\nloops = { x = "i1", y = "j1" }')
    platform = parse_platform(sometimes)
    with pytest.raises(SpaceError, match="'late' is missing: it orders the loops"):
        platform.loopnest(SPMM, platform.default(SPMM))


SOMETIMES = """[space.params]
late = { type = "permutation", values = ["x", "y"], when = "position(order, 'a') == 1" }"""


def test_a_split_that_needs_an_unknown_size_says_so() -> None:
    platform = parse_platform(GOOD.replace('K = "tile"', 'J = "NUM_MATRIX_COLS // 4"'))
    config = platform.default(SPMM)
    with pytest.raises(SpaceError, match="split J needs NUM_MATRIX_COLS"):
        platform.loopnest(SPMM, config)
    nest = platform.loopnest(SPMM, config, Sizes(n=40))
    assert nest is not None
    assert nest.splits == (1, 10, 1, 1)


@pytest.mark.parametrize("kernels", ['["tile"]', '["tile", "fused"]', '["spmv"]', '["fusion"]'])
def test_only_of_fused_kernels_there_may_be_nothing_to_choose(kernels: str) -> None:
    text = f"""
name = "mine"
version = "1"
title = "Mine"
[[space]]
kernels = {kernels}
[space.params]
[space.default]
"""
    with pytest.raises(PlatformError, match=r"params.*at least one parameter"):
        parse_platform(text)
    assert parse_platform(text.replace(kernels, '["fused"]')).default(Op("fused")) == Config({})


def test_a_byte_order_mark_is_no_part_of_a_platform(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    marked = load_platform(path)
    assert marked.digest == parse_platform(GOOD).digest
    assert parse_platform(marked.text).digest == marked.digest
