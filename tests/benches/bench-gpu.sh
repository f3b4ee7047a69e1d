#!/bin/sh
# Checks and times Unicorn on this machine's GPU, beside llama.cpp where the bundle holds it. Needs nothing but a Vulkan
# driver; installs nothing. `--help` is any argument that it does not know; reports lie in ./bench-gpu afterwards.
# `--loading ARTIFACT` as the first argument measures how fast weights get there instead, as `cargo xtask loading` does.
set -eu
bundle=$(cd "$(dirname "$0")" && pwd)

# Of the libraries in the bundle, only those that this system lacks: the Vulkan loader, and what drivers link to.
used=$(mktemp -d)
trap 'rm -rf "$used"' EXIT
for library in "$bundle"/lib/*; do
  [ -e "$library" ] || continue
  name=$(basename "$library")
  ldconfig -p 2>/dev/null | grep -qF "$name " || ln -s "$library" "$used/$name"
done

# NVIDIA's containers keep the driver in a place of their own.
nvidia=/usr/local/nvidia
if [ -z "${VK_DRIVER_FILES:-}" ] && [ -e $nvidia/share/vulkan/icd.d/nvidia_icd.json ] &&
   ! ls /usr/share/vulkan/icd.d/*nvidia* /etc/vulkan/icd.d/*nvidia* >/dev/null 2>&1; then
  export VK_DRIVER_FILES=$nvidia/share/vulkan/icd.d/nvidia_icd.json
fi
LD_LIBRARY_PATH=$used${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ ! -d $nvidia ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$nvidia/lib64:$nvidia/lib
export LD_LIBRARY_PATH

if [ "${1:-}" = --loading ]; then
  shift
  "$bundle/bin/xtask" loading --runtime "$bundle/bin/unicorn-run" "$@"
  exit
fi
"$bundle/bin/unicorn-run" devices
"$bundle/bin/bench-gpu" --bundle "$bundle" "$@"
