#!/usr/bin/env bash
# Everything to run when a GPU is at hand, in under 10 minutes: versions, the fakes' contract, conformance on CUDA tensors,
# torch's tensors, a killed rank, speed. Prints a table, and leaves logs and JSON Lines files in a folder.
#
#   PYTHON=.venv/bin/python NCCL_LIBRARY=$PWD/libnccl.so.2 benchmarks/gpu/check.sh FOLDER
#
# PYTHON has horocache[demo] installed, and torch with CUDA. Two ranks on one GPU take NCCL 2.30.3 or newer: NCCL_LIBRARY
# names it; without it, the steps by NCCL are left out. SECTIONS: those of the calibration. On the fakes, which are slow,
# with small tensors and more time:
#   CUDA_LIBRARY=build/dev/tests/fake_gpu/libcuda_fake.so.1 DEVICE=fakecuda \
#     NCCL_LIBRARY=build/dev/tests/fake_gpu/libnccl_fake_23007.so.2 benchmarks/gpu/check.sh FOLDER
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${1:?usage: benchmarks/gpu/check.sh FOLDER}
python=${PYTHON:-python3}
library=${CUDA_LIBRARY:-libcuda.so.1}
device=${DEVICE:-cuda}
# For everything; what the steps' limits are multiplied by; options of the measurements.
seconds=580 slowness=1 speed=()
if [ "$device" = fakecuda ]; then seconds=2400 slowness=4 speed=(--turns 1 --max-bytes 65536 --images 2); fi
launch=("$python" -m horocache.launch)
mkdir -p "$out"
failed=0

# Runs one step with a time limit in seconds.
step() {
  local name=$1 limit=$(($2 * slowness)) start=$SECONDS state left=$((seconds - SECONDS))
  shift 2
  if [ "$left" -lt 5 ]; then
    state="no time left"
    failed=$((failed + 1))
  elif timeout --kill-after=5 $((limit < left ? limit : left)) "$@" >"$out/$name.log" 2>&1; then
    state=passed
  else
    state="failed ($?)"
    failed=$((failed + 1))
  fi
  printf '%-14s %-14s %4d s   %s\n' "$name" "$state" $((SECONDS - start)) "$(tail -n 1 "$out/$name.log" | cut -c 1-100)"
  printf '{"step": "%s", "state": "%s", "seconds": %d}\n' "$name" "$state" $((SECONDS - start)) >>"$out/steps.jsonl"
}

export HOROCACHE_CUDA_LIBRARY=$library
cases=tests/conformance/run_cases.py
check=benchmarks/gpu/torch_check.py
sections=${SECTIONS:-contract,contract-two}
# Ranks that share a GPU: NCCL needs to be told, uses few of its multiprocessors, and has no use for the network.
by_nccl=(env HOROCACHE_NCCL=on "HOROCACHE_NCCL_LIBRARY=${NCCL_LIBRARY:-}" NCCL_MULTI_RANK_GPU_ENABLE=1
  NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 CUDA_MODULE_LOADING=EAGER)
# torch and horocache then use the same copy of NCCL.
for_torch=("${by_nccl[@]}")
if [ "$device" = cuda ]; then for_torch+=("LD_PRELOAD=${NCCL_LIBRARY:-}"); fi

# Three ranks of which one is killed; the launcher's code is that of the killed rank.
killed() {
  local name=$1
  shift
  # shellcheck disable=SC2016  # the inner shell expands them
  step "$name" 25 bash -c '"$@" >"$0" 2>&1; code=$?; grep "known after" "$0" && [ "$code" = 137 ]' \
    "$out/$name.ranks" "$@" "${launch[@]}" -np 3 "$python" "$check" --device "$device" kill
}

step versions 20 "$python" -m horocache.tools doctor
step calibration 90 "$python" benchmarks/gpu/calibrate.py --cuda "$library" --deadline 80 --sections "$sections" \
  --output "$out/calibration.jsonl" ${NCCL_LIBRARY:+--nccl "$NCCL_LIBRARY"}
for ranks in 1 2 4; do
  step "conformance-$ranks" 40 "${launch[@]}" -np "$ranks" "$python" "$cases" --cuda "$library"
done
step torch-2 40 "${launch[@]}" -np 2 "$python" "$check" --device "$device" results order reuse training
killed kill env
if [ -n "${NCCL_LIBRARY:-}" ]; then
  for ranks in 1 2 4; do
    step "nccl-$ranks" 40 "${by_nccl[@]}" "${launch[@]}" -np "$ranks" "$python" "$cases" --cuda "$library" --backend nccl
  done
  for ranks in 1 2; do
    step "nccl-torch-$ranks" 40 "${for_torch[@]}" "${launch[@]}" -np "$ranks" "$python" "$check" --device "$device" \
      results order reuse training
  done
  step nccl-window 40 "${for_torch[@]}" HOROCACHE_NCCL_WINDOW_BYTES=67108864 "${launch[@]}" -np 2 "$python" "$check" \
    --device "$device" results training
  killed nccl-kill "${for_torch[@]}"
fi
if [ "$device" = cuda ]; then
  step demo 40 "${launch[@]}" -np 2 "$python" docs/examples/torch_digits.py --device cuda
fi
if [ -n "${NCCL_LIBRARY:-}" ]; then
  step speed 120 "${for_torch[@]}" "${launch[@]}" -np 2 "$python" benchmarks/gpu/torch_speed.py --device "$device" \
    --output "$out/speed.jsonl" "${speed[@]}" allreduce gradients training
  step window-speed 60 "${for_torch[@]}" HOROCACHE_NCCL_WINDOW_BYTES=134217728 "${launch[@]}" -np 2 "$python" \
    benchmarks/gpu/torch_speed.py --device "$device" --output "$out/window_speed.jsonl" "${speed[@]}" gradients
  grep -h '"goal"' "$out/speed.jsonl"
fi
echo "$failed failed, after $SECONDS s"
exit $((failed > 0))
