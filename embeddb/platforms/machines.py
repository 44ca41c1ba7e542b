"""Facts of machines: their names for people, and a distance between two machines.

A fact is a text in the environment of a platform's instance: threads, compiler and flags from the
runner, or a number from a probe. Instances of older databases lack most of them; only facts that
both machines have are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from embeddb.core.sizes import positive

Facts = Mapping[str, str]

#: Distance per doubling of a number, by fact. Vector width and threads decide which schedule wins;
#: a bandwidth changes the time of all schedules more than their order.
_DOUBLINGS = {
    "vector_bytes": 1.0,
    "threads": 1.0,
    "multiprocessors": 0.25,
    "copy_gb_s": 0.1,
    "l2_bytes": 0.25,
    "l3_bytes": 0.1,
    "stream_l1_gb_s": 0.1,
    "stream_l2_gb_s": 0.1,
    "stream_l3_gb_s": 0.1,
    "stream_memory_gb_s": 0.1,
    "multiply_add_gflop_s": 0.1,
    "gather_l2_m_s": 0.1,
    "gather_memory_m_s": 0.1,
    "wake_us": 0.1,
}
#: Distance between different texts, by fact. In published runs, gains on a GPU and a CPU, or with
#: one thread and many, differ by a variance of 0.12 to 0.2, those of one backend by 0.05.
_OTHERS = {"backend": 5.0, "cpu": 0.25, "gpu": 0.25, "compiler": 0.25, "kernels": 0.25}
#: Programs that run a script: their location and version are no facts of a simulator.
_INTERPRETER = re.compile(
    r"(python|pypy|perl|ruby|node|julia|java|lua|luajit|Rscript|tclsh|bash|dash|zsh|ksh|sh|env)"
    r"w?[\d.]*(\.exe)?"
)
#: Distance of machines without a common fact.
_UNKNOWN = 1.0
#: Facts in words and their units, in the order of display.
_WORDS = {
    "cpu": ("processor", ""),
    "gpu": ("GPU", ""),
    "capability": ("compute capability", ""),
    "driver": ("CUDA version of the driver", ""),
    "toolkit": ("CUDA toolkit", ""),
    "threads": ("threads", ""),
    "processors": ("processors of the machine", ""),
    "compiler": ("compiler", ""),
    "flags": ("compiler's flags", ""),
    "kernels": ("generation of the kernels", ""),
    "wait_policy": ("threads wait", ""),
    "proc_bind": ("threads bound to processors", ""),
    "vector_bytes": ("vector registers", "bytes"),
    "l1_bytes": ("first level data cache", "bytes"),
    "l2_bytes": ("second level cache", "bytes"),
    "l3_bytes": ("third level cache", "bytes"),
    "stream_l1_gb_s": ("streams 24 kB a thread", "GB/s"),
    "stream_l2_gb_s": ("streams 384 kB a thread", "GB/s"),
    "stream_l3_gb_s": ("streams 6 MB a thread", "GB/s"),
    "stream_memory_gb_s": ("streams 96 MB a thread", "GB/s"),
    "multiply_add_gflop_s": ("multiplies and adds, one thread", "GFLOP/s"),
    "gather_l2_m_s": ("gathers from 256 kB, one thread", "million/s"),
    "gather_memory_m_s": ("gathers from 64 MB, one thread", "million/s"),
    "wake_us": ("wakes its threads", "microseconds"),
    "multiprocessors": ("multiprocessors", ""),
    "memory_bytes": ("memory", "bytes"),
    "copy_gb_s": ("copies 1 GiB, reads and writes", "GB/s"),
    "launch_us": ("launches a kernel", "microseconds"),
    "graph_launch_us": ("launches a kernel in a graph", "microseconds"),
}
#: Server generations of family 6 by model.
_INTEL = {85: "Skylake-SP", 106: "Ice Lake-SP", 143: "Sapphire Rapids", 207: "Emerald Rapids"}
_LEVELS = {"x86-64": 16, "x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}


def fact_names() -> tuple[str, ...]:
    """The facts in the distance of machines, by falling weight."""
    both = {**_DOUBLINGS, **_OTHERS}
    return tuple(sorted(both, key=lambda name: -both[name]))


def is_interpreter(program: str) -> bool:
    """True if a program of this file name runs scripts that are its arguments."""
    return _INTERPRETER.fullmatch(program) is not None


def same_build(a: Facts, b: Facts) -> bool:
    """True if two environments of a command differ in the digests of interpreters at most, which
    older versions counted as part of the program."""
    own = _without_interpreters(a)
    return "program" in a and own == _without_interpreters(b)


def _without_interpreters(facts: Facts) -> dict[str, str]:
    files = facts.get("program", "").split()
    own = [file for file in files if not is_interpreter(file.partition(":")[0])]
    return {**facts, "program": " ".join(own or files)}


def same_machine(one: str, other: str, facts: Mapping[str, Facts]) -> bool:
    """True if two platform instances have the same processor, perhaps with different compilers or
    numbers of threads."""
    mine, theirs = (facts.get(name, {}).get("cpu", "") for name in (one, other))
    return one == other or (mine != "" and mine == theirs)


def machine_words(facts: Facts) -> str:
    """Processor, compiler, threads and -march of an instance, those in its environment; name and
    toolkit of a GPU."""
    if facts.get("gpu"):
        return ", ".join(_gpu(facts))
    parts = [facts.get("cpu", ""), facts.get("compiler", ""), _threads(facts)]
    march = [f for f in facts.get("flags", "").split() if f.startswith("-march=")]
    return ", ".join(filter(None, parts + march))


def display_name(platform_id: str, facts: Facts) -> str:
    """A platform instance for people: `cpu: AMD Zen 5, 2 threads, gcc 12`, `cuda: NVIDIA H200,
    CUDA 13.0`; its id where its environment names no processor. Two instances may share a name."""
    if facts.get("gpu"):
        return f"{platform_id.partition('@')[0]}: {', '.join(_gpu(facts))}"
    if not facts.get("cpu"):
        return platform_id
    parts = [_processor(facts["cpu"]), _threads(facts), _compiler(facts.get("compiler", ""))]
    if (march := _march(facts)) != "native":
        parts.append(march)
    return f"{platform_id.partition('@')[0]}: {', '.join(filter(None, parts))}"


def _threads(facts: Facts) -> str:
    threads = facts.get("threads", "")
    return threads and f"{threads} {'thread' if threads == '1' else 'threads'}"


def _march(facts: Facts) -> str:
    """The instruction set of the flags, or ""."""
    march = re.search(r"-march=(\S+)", facts.get("flags", ""))
    return march[1] if march else ""


def _gpu(facts: Facts) -> list[str]:
    toolkit = facts.get("toolkit")
    return [facts["gpu"], *([f"CUDA {toolkit}"] if toolkit else [])]


def _processor(text: str) -> str:
    """Maker and generation by family and model, if known, else the name without decorations."""
    name, _, numbers = text.partition(" (")
    identity = re.match(r"(\d+)/(\d+)/", numbers)
    if identity is not None:
        family, model = int(identity[1]), int(identity[2])
        if text.startswith("AMD") and (zen := _zen(family, model)):
            return f"AMD Zen {zen}"
        if text.startswith("Intel") and family == 6 and model in _INTEL:
            return f"Intel {_INTEL[model]}"
        text = name
    return re.sub(r"\((R|TM)\)| Processor| CPU| @ .*", "", text).strip() or text


def _zen(family: int, model: int) -> int:
    """Generation of a Zen processor; 0 for another one."""
    if family == 25:
        return 4 if 16 <= model < 32 or 96 <= model < 128 or model >= 160 else 3
    return {23: 1 if model < 48 else 2, 26: 5}.get(family, 0)


def _compiler(text: str) -> str:
    """`gcc 12`, `clang 14`; the text itself if it contains no version."""
    version = re.search(r"(\d+)\.\d+(?:\.\d+)?\s*$", text) or re.search(r"(\d+)\.\d+", text)
    name = next((name for name in ("clang", "gcc") if name in text.lower()), "")
    return f"{name} {version[1]}" if name and version else text


def described(facts: Facts) -> list[tuple[str, str]]:
    """An environment for people: each fact in words, and its value with its unit. Unknown facts
    follow under their own names."""
    named = [
        (words, _with_unit(facts[n], unit)) for n, (words, unit) in _WORDS.items() if n in facts
    ]
    return named + [(name, text) for name, text in facts.items() if name not in _WORDS]


def _with_unit(text: str, unit: str) -> str:
    value = positive(text)
    if not unit or value is None:
        return text
    for scale, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if unit == "bytes" and value >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:g} {unit}"


def unlike(one: Facts, other: Facts) -> float:
    """Distance of two machines, symmetric: 0 if their common facts agree, 1 if they have none in
    common; twice the vector width or number of threads adds 1."""
    one, other = _comparable(one), _comparable(other)
    shared = one.keys() & other.keys()
    far = sum(
        weight * abs(math.log2(first / second))
        for name, weight in _DOUBLINGS.items()
        if name in shared
        and (first := positive(one[name])) is not None
        and (second := positive(other[name])) is not None
    )
    far += sum(w for name, w in _OTHERS.items() if name in shared and one[name] != other[name])
    return far if shared & {*_DOUBLINGS, *_OTHERS} else _UNKNOWN


def _comparable(facts: Facts) -> dict[str, str]:
    """The facts with the vector width of the flags, and the compiler without its version."""
    comparable = dict(facts)
    if (march := _march(facts)) in _LEVELS:
        comparable["vector_bytes"] = str(_LEVELS[march])
    if "compiler" in facts:
        comparable["compiler"] = "clang" if "clang" in facts["compiler"] else facts["compiler"][:3]
    return comparable
