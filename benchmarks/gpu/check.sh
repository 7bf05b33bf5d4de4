#!/usr/bin/env bash
# Everything to run when a GPU is at hand, in under 10 minutes: versions, calibration, conformance on CUDA tensors, torch's
# tensors, a killed rank, speed. Prints a table, and leaves logs and JSON Lines files in a folder.
#
#   PYTHON=.venv/bin/python benchmarks/gpu/check.sh FOLDER
#
# PYTHON has horocache[demo] installed, and torch with CUDA. On the fake driver:
#   CUDA_LIBRARY=build/dev/tests/fake_gpu/libcuda_fake.so.1 DEVICE=fakecuda benchmarks/gpu/check.sh FOLDER
# NCCL_LIBRARY names NCCL for the steps nccl-N and the calibration, SECTIONS some sections of the latter. Two ranks on one
# GPU take NCCL 2.30.3 or newer.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${1:?usage: benchmarks/gpu/check.sh FOLDER}
python=${PYTHON:-python3}
library=${CUDA_LIBRARY:-libcuda.so.1}
device=${DEVICE:-cuda}
launch=("$python" -m horocache.launch)
mkdir -p "$out"
failed=0

# Runs one step with a time limit in seconds.
step() {
  local name=$1 limit=$2 start=$SECONDS state
  shift 2
  if timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1; then
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
step versions 30 "$python" -m horocache.tools doctor
for ranks in 1 2 4; do
  step "conformance-$ranks" 60 "${launch[@]}" -np "$ranks" "$python" "$cases" --cuda "$library"
done
if [ -n "${NCCL_LIBRARY:-}" ]; then
  by_nccl=(env HOROCACHE_NCCL=on "HOROCACHE_NCCL_LIBRARY=$NCCL_LIBRARY" NCCL_MULTI_RANK_GPU_ENABLE=1)
  for ranks in 1 2 4; do
    step "nccl-$ranks" 60 "${by_nccl[@]}" "${launch[@]}" -np "$ranks" "$python" "$cases" --cuda "$library" --backend nccl
  done
fi
for ranks in 1 2 4; do
  step "torch-$ranks" 60 "${launch[@]}" -np "$ranks" "$python" "$check" --device "$device" results order reuse training
done
if [ "$device" = cuda ]; then
  step demo 60 "${launch[@]}" -np 2 "$python" docs/examples/torch_digits.py --device cuda
fi
# The launcher's code is that of the killed rank.
step kill 40 bash -c '"$@" >"$0/kill.ranks" 2>&1; code=$?; grep "known after" "$0/kill.ranks" && [ "$code" = 137 ]' \
  "$out" "${launch[@]}" -np 3 "$python" "$check" --device "$device" kill
# Beside NCCL and torch.distributed, which then use the same copy of NCCL.
if [ -n "${NCCL_LIBRARY:-}" ]; then
  step speed 90 "${by_nccl[@]}" "LD_PRELOAD=$NCCL_LIBRARY" "${launch[@]}" -np 2 "$python" \
    benchmarks/gpu/torch_speed.py --device "$device" --output "$out/speed.jsonl" allreduce gradients training
fi
# Last: its sections may spoil a device.
step calibration 320 "$python" benchmarks/gpu/calibrate.py --cuda "$library" --deadline 300 \
  --output "$out/calibration.jsonl" ${NCCL_LIBRARY:+--nccl "$NCCL_LIBRARY"} ${SECTIONS:+--sections "$SECTIONS"}
echo "$failed failed"
exit $((failed > 0))
