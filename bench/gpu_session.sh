#!/usr/bin/env bash
# All that is to be measured on a GPU, in half an hour at most: bench/gpu_session.sh OUT
#
# Each part has a limit and writes one small file; a part whose file is there is not run again, so a session that was
# cut off goes on where it stopped. A part that fails or takes too long leaves NAME.failed with the end of what it said,
# and what it had written by then, and the others go on. After each part OUT/all.tar.gz holds everything that there is.
#
#   LIMIT=540          seconds in all: what does not fit in is left for the next time
#   TRAIN=RECIPE       first train this recipe, for up to TRAIN_SEC (720) seconds at a time, into OUT/NAME, which goes on
#                      where it stopped; with MINUTES=8 it trains for so long, whatever its steps, which has to leave
#                      two minutes of TRAIN_SEC for the rest. The model comes as OUT/NAME.tar.gz.aa, .ab, …
#   SMALL=1            every part on the CPU with next to nothing to do, to see that it runs
set -u
out=${1:?usage: bench/gpu_session.sh OUT}
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 1
began=$SECONDS
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}src" OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} PYTHONUNBUFFERED=1
device=cuda dtype=bfloat16 shape=recipes/shapes/26b runs=5 count=100 short=
if [ -n "${SMALL:-}" ]; then
  device=cpu dtype=float32 shape=src/redraft/assets/nano-sudoku runs=1 count=1 short="--canvases 1,2 --prefixes 64"
fi
card="$python -m redraft bench --device-card --model $shape --device $device --dtype $dtype --runs $runs $short"
# Not the settings of the project's own checks: another version of torch may warn where ours does not.
tests="$python -m pytest -o addopts= -o filterwarnings= --import-mode=importlib -q --tb=short --maxfail=8 -m gpu"
# Most of their time goes into compiling, for which there are cores.
$python -c "import xdist" 2>"/dev/null" && tests="$tests -n 4"

part() { # NAME SECONDS COMMAND…, which is to write $out/NAME
  local name=$1 limit=$2 left=$((${LIMIT:-86400} - SECONDS + began)) status=0
  shift 2
  if [ -e "$out/$name" ]; then
    echo "$name: there already"
    return
  fi
  if [ "$left" -lt 30 ]; then
    echo "$name: not begun, no time is left"
    return
  fi
  echo "$name: at most $limit s"
  # An interrupt, so that what is cut off still tells what it has found.
  timeout -s INT -k 15 "$((limit < left ? limit : left))" "$@" >"$out/$name.said" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    [ -e "$out/$name" ] || mv "$out/$name.said" "$out/$name"
    rm -f "$out/$name.said" "$out/$name.failed"
  else # a file that it has written as it went is kept
    tail -c 20000 "$out/$name.said" >"$out/$name.failed"
    rm -f "$out/$name.said"
    echo "$name: failed ($status), see $out/$name.failed"
    tail -n 3 "$out/$name.failed"
  fi
  (cd "$out" && find . -maxdepth 1 -type f ! -name '*.tar.gz*' -print0 | tar -czf all.tar.gz --null -T -)
}

needs() { # says which modules are missing, at once and in words
  $python - "$@" <<'END'
import importlib.util, sys

def is_missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except ImportError:  # what it is a part of is not there
        return True


missing = [name for name in sys.argv[1:] if is_missing(name)]
print(f"{sys.executable}: {'missing: ' + ', '.join(missing) if missing else 'nothing is missing'}")
END
}

train() { # RECIPE: the model that comes of it, in pieces
  local name
  name=$(basename "$1" .toml)
  part "$name-trained.txt" "${TRAIN_SEC:-720}" $python -m redraft tune "$1" --out "$out/$name" --skip-old-tasks \
    ${MINUTES:+--minutes "$MINUTES"}
  cp "$out/$name"/training-*.json* "$out" 2>"/dev/null"
  [ -e "$out/$name-trained.txt" ] || return
  tar -cz -C "$out" --exclude='*state*' "$name" | split -b 15m - "$out/$name.tar.gz."
}

needs torch triton numpy safetensors tokenizers jinja2 jaxtyping msgspec jsonschema_rs outlines_core pytest hypothesis \
  transformers.models.diffusion_gemma
# First whether what is to be measured is right, and in bfloat16 alone; then what no other part can stand in for.
part machine.txt 60 bash -c "nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,compute_cap --format=csv;
  $python -c 'import torch, triton; print(torch.__version__, triton.__version__, torch.cuda.is_available())'"
# The self-check, every form, graphs, and the ledger beside what is taken. 10 GB of disk, and packing takes cores.
[ "$device" = cpu ] || part rehearsal.json 240 $python bench/rehearsal.py --layers 6 --folder "$out/rehearsal" \
  --device $device --threads 8 --record "$out/rehearsal.json"
rm -rf "$out/rehearsal"
[ "$device" = cpu ] || part steps-26b.json 150 $python bench/steps.py --record "$out/steps-26b.json"
part kernels-products.txt 100 $tests tests/gpu/test_kernels.py -k "bfloat16 and products"
part kernels-experts.txt 130 $tests tests/gpu/test_kernels.py -k "(bfloat16 and experts) or many"
[ -z "${TRAIN:-}" ] || train "$TRAIN"
part device-26b-int4.json 150 $card --plan int4 --record "$out/device-26b-int4.json"
part device-26b.json 170 $card --record "$out/device-26b.json"
part kernels-small.txt 90 $tests tests/gpu/test_kernels.py -k "not experts and not products and not float32"
part step-26b.json 180 $python bench/step_beside_transformers.py --model $shape --device $device --dtype $dtype \
  --runs $runs --record "$out/step-26b.json"
part device-26b-fp8.json 130 $card --plan fp8 --record "$out/device-26b-fp8.json"
part whole.txt 100 $tests tests/gpu/test_whole.py
[ "$device" = cpu ] || part tiles.json 200 $python bench/tiles.py --record "$out/tiles.json"
part device-26b-nvfp4.json 100 $card --plan nvfp4 --record "$out/device-26b-nvfp4.json"
part device-26b-int8.json 90 $card --plan int8 --record "$out/device-26b-int8.json"
part device-26b-int4-g64-e8.json 80 $card --plan int4-g64-e8 --record "$out/device-26b-int4-g64-e8.json"
part nano.json 50 $python -m redraft eval --model nano-sudoku --device $device --task records --task sudoku-4x4 --task lists --count $count --json
[ "$device" = cpu ] || part device-26b-host.json 60 $card --plan int4 --offload experts --canvases 1,8 --prefixes 2048 \
  --record "$out/device-26b-host.json"
part kernels-float32.txt 110 $tests tests/gpu/test_kernels.py -k "float32"
ls -l "$out"
