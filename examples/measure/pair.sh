#!/usr/bin/env bash
# All measurements of README on two GPUs of one machine, the most valuable first: each part with a time of its own, a file of its own, and no part after it lost with it.
#
#     examples/measure/pair.sh prepare [FOLDER]        where z3 and nvcc are: compiles what the parts need into FOLDER (.carry/pair), for TIDEC_CUDA_ARCH (9.0)
#     examples/measure/pair.sh OUT [PART...]           where the GPUs are: OUT/PART.json each, and OUT/pair.log with all that was printed; exit 1 if a part failed
#     examples/measure/pair.sh host OUT [PART...]      the same commands on processes of this machine, small: nothing that it writes is a measurement; twice the seconds
#
# A part that lacks what it takes ends with 3, which is no failure. Parts, in the order in which they run, with their most seconds; all of them where none is named (1290 seconds). What they are told is in the function of each.
PARTS=(
  "ready 90"              # tidec_rt, and what lends storages, compiled for this Python; every GPU is there
  "bench 75"              # both collectives beside stock, every bit compared: results/pair.json
  "staged 50"             # reduce-scatters whose shard is staged whole, in 3 and in 6 chunks
  "interference 75"       # a kernel beside repeated collectives
  "sm_time 75"            # multiprocessors and memory of both collectives
  "sm_probe 60"           # which multiprocessors both collectives take, by waves of CTAs that want all
  "steps 400"             # whole training steps
  "steps_trace 60"        # one training step of each side, by torch.profiler
  "sweep 120"             # P = 1, 9, 16, 30, 256 by 1 to 256 MiB of a shard
  "rails 45"              # 2x1 over ncclPutSignal, where PAIR_NCCL names a libnccl.so.2 of 2.31 or later (or FOLDER/libnccl.so.2[.xz] is one)
  "kernels 50"            # kernels of runtime/cuda alone
  "tests 190"             # pytest -m gpus2
)
# Other variables that are read: PAIR_FOLDER (.carry/pair, of the checkout), PYTHON (python3).
set -u
from=$PWD
cd "$(dirname "$0")/../.." || exit 2
PYTHON=${PYTHON:-python3}
FOLDER=${PAIR_FOLDER:-.carry/pair}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 CUDA_DEVICE_MAX_CONNECTIONS=32
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export TIDEC_CUDA_ARCH=${TIDEC_CUDA_ARCH:-9.0}

if [ "${1:-}" = prepare ]; then
  folder=${2:-$FOLDER}
  if [ -n "${2:-}" ]; then folder=$(cd "$from" && realpath -m "$2"); fi
  mkdir -p "$folder" && "$PYTHON" examples/measure/bundles.py "$folder" || exit 1
  rm -rf "$folder/kernels"
  mkdir "$folder/kernels" && "$PYTHON" examples/measure/kernels.py --built "$folder/kernels" --only-build || exit 1
  rm -rf "$folder/waves"
  mkdir "$folder/waves" && exec "$PYTHON" examples/measure/waves.py "$folder/waves"
fi

target=nccl
if [ "${1:-}" = host ]; then target=host; shift; fi
out=${1:?pair.sh OUT [PART...], or pair.sh prepare [FOLDER]}
shift
out=$(cd "$from" && realpath -m "$out")
mkdir -p "$out" || exit 2
# Not in OUT, and there for the next call on this machine.
export TIDEC_CACHE_DIR=${TIDEC_CACHE_DIR:-${TMPDIR:-/tmp}/tidec-pair-$UID}
mkdir -p -m 700 "$TIDEC_CACHE_DIR"
measure="$PYTHON examples/measure"
tidec="$PYTHON -m tidec"

ready() {
  if [ "$target" = host ] && [ ! -d "$FOLDER/tiny" ]; then "$PYTHON" examples/measure/bundles.py "$FOLDER" tiny --target host || return 1; fi
  "$PYTHON" - "$target" <<'EOF'
import sys, torch
from tidec.build.rt import build_rt
from tidec.cache.folder import private_folder
from tidec.run.fsdp import HOOKS
from tidec.run.library import kept_cache, may_build
from tidec.run.loan import load_swap
folder = private_folder(kept_cache()[0].folder) / "rt"
print(build_rt(folder), "storages are lent by", "torch" if HOOKS.fit().has_loan else load_swap(folder, may_build=may_build))
print("torch", torch.__version__, "CUDA", torch.version.cuda, [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])
sys.exit(0 if sys.argv[1] == "host" or torch.cuda.device_count() >= 2 else "fewer than two GPUs")
EOF
}
if [ "$target" = nccl ]; then
  bench() { $tidec bench "$FOLDER/pair" --target nccl --ctas 16,8 --rounds 8 -o "$out/bench.json" --force; }
  staged() { for n in 3 6; do $tidec bench "$FOLDER/staged$n" --target nccl --ctas 16,8 --rounds 8 -o "$out/staged$n.json" --force || return 1; done; }
  interference() { $measure/interference.py "$FOLDER/pair" --group equal30-32MiB --ctas 16,8,4 --rounds 8 --limit 70 -o "$out/interference.json"; }
  sm_time() { $measure/sm_time.py "$FOLDER/pair" --groups equal30-32MiB,equal30-8MiB,equal30-128MiB,block,unequal30-32MiB --ctas 16,8 --limit 70 -o "$out/sm_time.json"; }
  sm_probe() { $measure/sm_probe.py "$FOLDER/pair" --built "$FOLDER/waves" --group equal30-32MiB --ctas 16,8 --rounds 8 --limit 55 -o "$out/sm_probe.json"; }
  steps() { $measure/steps.py --bundles "$FOLDER" --steps 8 --limit 90 -o "$out/steps.json"; }
  steps_trace() { $measure/steps.py --bundles "$FOLDER" --points 1b:8192 --limit 55 --trace "$out/steps_trace.json.gz"; }
  sweep() { $tidec bench "$FOLDER/sweep" --target nccl --rounds 4 --calls 6 -o "$out/sweep.json" --force; }
  rails() {
    local nccl=${PAIR_NCCL:-$FOLDER/libnccl.so.2} own=$TIDEC_CACHE_DIR.nccl
    if [ ! -f "$nccl" ] && [ -f "$nccl.xz" ]; then
      mkdir -p "$own" && "$PYTHON" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$nccl.xz" "$own/libnccl.so.2"
      nccl=$own/libnccl.so.2
    fi
    if [ ! -f "$nccl" ]; then echo "no $nccl: PAIR_NCCL names no libnccl.so.2 of 2.31 or later"; return 3; fi
    LD_PRELOAD=$(realpath "$nccl") $tidec bench "$FOLDER/rails" --target nccl --ctas 16 --rounds 4 --deadline 20 -o "$out/rails.json" --force
  }
  kernels() { $measure/kernels.py --built "$FOLDER/kernels" --out "$out/kernels.json"; }
  tests() { TRAIN_PLANS=$(realpath "$FOLDER/small") "$PYTHON" -m pytest -q -m gpus2 -p no:cacheprovider $files; }
else
  bench() { $tidec bench "$FOLDER/tiny" --rounds 2 --calls 2 -o "$out/bench.json" --force; }
  staged() { echo "nothing on the host"; }
  interference() { $measure/interference.py "$FOLDER/tiny" --target host --rounds 1 --limit 70 -o "$out/interference.json"; }
  sm_time() { $measure/sm_time.py "$FOLDER/tiny" --target host --limit 70 -o "$out/sm_time.json"; }
  sm_probe() { $measure/sm_probe.py "$FOLDER/tiny" --target host --rounds 1 --limit 55 -o "$out/sm_probe.json"; }
  steps() { $measure/steps.py --bundles "$FOLDER" --target host --points tiny:64:exact,tiny:64:checkpoint --steps 3 --limit 90 -o "$out/steps.json"; }
  steps_trace() { $measure/steps.py --bundles "$FOLDER" --target host --points tiny:64 --limit 55 --trace "$out/steps_trace.json.gz"; }
  sweep() { $tidec bench "$FOLDER/tiny" --rounds 2 --calls 2 -o "$out/sweep.json" --force; }
  rails() { echo "nothing on the host"; }
  kernels() { $measure/kernels.py --help > /dev/null; }
  tests() { "$PYTHON" -m pytest -q -m gpus2 -p no:cacheprovider --collect-only $files; }
fi
export -f ready bench staged interference sm_time sm_probe steps steps_trace sweep rails kernels tests
files="tests/run/test_cuda_targets.py tests/run/test_train_example.py tests/litmus/test_orders.py"
export PYTHON FOLDER target out measure tidec files

failed=()
for line in "${PARTS[@]}"; do
  read -r part seconds <<< "$line"
  if [ $# -gt 0 ] && [ "$part" != ready ] && [[ " $* " != *" $part "* ]]; then continue; fi
  if [ "$target" = host ]; then seconds=$((2 * seconds)); fi
  begin=$SECONDS
  echo "== $part, at most $seconds s" | tee -a "$out/pair.log"
  timeout -k 5 "$seconds" bash -c "$part" 2>&1 | tee -a "$out/pair.log"
  code=${PIPESTATUS[0]}
  echo "== $part: exit $code after $((SECONDS - begin)) s" | tee -a "$out/pair.log"
  if [ "$code" != 0 ] && [ "$code" != 3 ]; then failed+=("$part"); fi
  if [ "$part" = ready ] && [ "$code" != 0 ]; then break; fi
done
if [ "${#failed[@]}" -gt 0 ]; then echo "== failed: ${failed[*]}" | tee -a "$out/pair.log"; exit 1; fi
