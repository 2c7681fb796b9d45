#!/usr/bin/env bash
# Run one config on this machine, and start it again for as long as it stops with "saved, go on" (42).
# Usage: launch/local.sh CONFIG [a.b=value ...]
#   RLJAX_DEVICES=8  pretend that the CPU is so many devices: a rehearsal of a mesh.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,4p' "$0"; exit 1; }
if [ -n "${RLJAX_DEVICES:-}" ]; then
  export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES="$RLJAX_DEVICES"
fi
rljax=$(command -v rljax || echo "$(dirname "$0")/../.venv/bin/rljax")

while true; do
  code=0
  "$rljax" train "$@" || code=$?
  [ "$code" -eq 42 ] || exit "$code"
  echo "stopped and saved; starting again" >&2
done
