#!/usr/bin/env bash
# All that is to be measured on a GPU, in under 25 minutes: scripts/gpu_session.sh OUT
#
# Each part has a limit and writes one small file; a part whose file is there is not run again, so a session that was
# cut off goes on where it stopped. A part that fails or takes too long leaves NAME.failed with the end of what it said.
set -u
out=${1:?usage: scripts/gpu_session.sh OUT}
python=${PYTHON:-python}
mkdir -p "$out"
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}src" OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$out/triton}
card="$python -m redraft bench --device-card --model recipes/shapes/26b --device cuda --dtype bfloat16 --runs 5"

part() { # NAME SECONDS COMMAND…, which is to write $out/NAME
  local name=$1 limit=$2
  shift 2
  if [ -e "$out/$name" ]; then
    echo "$name: there already"
    return
  fi
  echo "$name: at most $limit s"
  if timeout "$limit" "$@" >"$out/$name.said" 2>&1; then
    [ -e "$out/$name" ] || mv "$out/$name.said" "$out/$name"
    rm -f "$out/$name.said" "$out/$name.failed"
  else
    tail -c 4000 "$out/$name.said" >"$out/$name.failed"
    rm -f "$out/$name.said" "$out/$name"
    echo "$name: failed, see $out/$name.failed"
  fi
}

part machine.txt 30 nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv
part kernels.txt 420 $python -m pytest -q -m gpu tests/gpu
part device-26b-int4.json 150 $card --plan int4 --record "$out/device-26b-int4.json"
part device-26b-fp8.json 150 $card --plan fp8 --record "$out/device-26b-fp8.json"
part device-26b.json 180 $card --record "$out/device-26b.json"
part step-26b.json 180 $python scripts/step_beside_transformers.py --record "$out/step-26b.json"
part device-26b-nvfp4.json 100 $card --plan nvfp4 --record "$out/device-26b-nvfp4.json"
part device-26b-int8.json 100 $card --plan int8 --record "$out/device-26b-int8.json"
part device-26b-int4-g64-e8.json 100 $card --plan int4-g64-e8 --record "$out/device-26b-int4-g64-e8.json"
part nano.json 60 $python -m redraft eval --model nano --device cuda --task records --task sudoku-4x4 --count 100 --json
ls "$out"
