#!/bin/bash
# Builds, checks and times on a machine with a GPU, nvcc and PyTorch, in this folder. usage: OUT=folder run.sh [SECONDS [FIRST [LIST]]]
# Needs mats/ (pack.py) and order.txt beside it; keeps everything under $OUT. FIRST: number of the plan's first matrix.
# LIST: a file of configurations (again.csv) that is timed instead of the whole plan.
set -u
cd "$(dirname "$0")"
T0=$(date +%s); LIMIT=${1:-450}; FIRST=${2:-0}; LIST=${3:-}; W=${W:-$(mktemp -d)}
left() { echo $(($LIMIT - $(date +%s) + T0)); }
say() { echo "[$(($(date +%s) - T0)) s] $*"; }
mkdir -p $W/k $W/mats "$OUT/run" "$OUT/check"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,temperature.gpu,power.draw --format=csv
SITE=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
for d in "$SITE"/nvidia/*/lib /usr/local/cuda/lib64 /usr/local/cuda/lib; do [ -d "$d" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$d; done
export LD_LIBRARY_PATH
python3 pack.py unpack mats $W/mats > $W/unpack.log 2>&1 & UNPACK=$!
ARCH=sm_$(python3 -c 'import ctypes as c
l = c.CDLL("libcuda.so.1"); l.cuInit(0); v = c.c_int(); r = ""
for a in (75, 76): l.cuDeviceGetAttribute(c.byref(v), a, 0); r += str(v.value)
print(r)')
PARTS=$((3 * $(nproc))); python3 space.py kernels $W/k $PARTS $LIST
compile() { printf '#include "%s/kernels.cu"\n#include "kernels%s.inc"\n' "$PWD" $1 > $W/k/k$1.cu; nvcc -arch=$ARCH -cubin -o $W/k/kernels$1.cubin $W/k/k$1.cu || echo "part $1 does not compile"; }
export -f compile; export W ARCH
seq 0 $((PARTS - 1)) | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
say "$(wc -l < $W/k/names.txt) kernels for $ARCH"
[ -x ./driver ] && timeout 60 ./driver $W/k facts "$OUT" 20
if [ ! -s "$OUT/facts.txt" ]; then
  say "the driver that was carried does not run: building it here"
  INC=$(for d in "$SITE"/nvidia/*/include /usr/local/cuda/include; do [ -d "$d" ] && echo "-I$d"; done)
  CUSPARSE=$(ls "$SITE"/nvidia/*/lib/libcusparse.so.1* /usr/local/cuda/lib64/libcusparse.so.1* 2>/dev/null | head -1); CUDA=$(ldconfig -p | grep -o '/.*libcuda.so.1$' | head -1)
  g++ -std=c++17 -O2 $INC -DWITH_CUSPARSE driver.cpp -o driver "${CUDA:--lcuda}" $CUSPARSE -Wl,--unresolved-symbols=ignore-in-shared-libs -lpthread
  ./driver $W/k facts "$OUT" 20
fi
cat "$OUT/facts.txt"; say facts
python3 space.py plan $W $W/mats order.txt $LIST & PLAN=$!
python3 space.py check $OUT/check
drive() { # PLAN FOLDER SECONDS FIRST: goes on after a kernel that faults
  local first=$4 until=$(($(date +%s) + $3)) rc
  for _ in 1 2 3 4 5 6; do
    local s=$((until - $(date +%s))); [ $s -gt 3 ] || return
    timeout $((s + 20)) ./driver $W/k $1 $2 $s $first; rc=$?
    [ $rc -eq 3 ] || { [ $rc -eq 0 ] || say "driver ended with $rc"; return; }
    first=$(cat $2/at.txt); cp $2/bad.txt "$OUT/bad.txt"; say "again from matrix $first"
  done
}
drive $OUT/check/check.txt "$OUT/check" 60 0
[ -f "$OUT/check/bad.txt" ] && sort -u "$OUT/check/bad.txt" > "$OUT/run/bad.txt"
say "checked: $(cut -d, -f5 "$OUT/check/rows.csv" | sort | uniq -c | tr '\n' ' ')"
wait $UNPACK; cat $W/unpack.log
[ -n "$LIST" ] || timeout 100 python3 facts.py $W/k $W/mats "$OUT/facts.json"; say "facts.py"
wait $PLAN; cp $W/configs.csv "$OUT/"
drive $W/plan.txt "$OUT/run" $(($(left) - 12)) $FIRST
say "timed: $(wc -l < "$OUT/run/rows.csv") rows"
xz -T0 -4 "$OUT/run/rows.csv"; xz -T0 -4 "$OUT/check/rows.csv"; rm -f "$OUT/check/check.txt" "$OUT/check/configs.csv" "$OUT/check/at.txt" "$OUT/run/at.txt"
cat "$OUT/run/bad.txt" "$OUT/bad.txt" 2>/dev/null | sort -u > "$OUT/bad_all.txt"; rm -f "$OUT/bad.txt" "$OUT/run/bad.txt" "$OUT/check/bad.txt"
find "$OUT" -type f | xargs ls -la; say done
