#!/bin/bash
# Installs what containers need where it is missing (as root), and makes the base images.
set -euo pipefail

needed=(podman runc netavark aardvark-dns iptables catatonit debootstrap)
missing=()
for package in "${needed[@]}"; do
    dpkg-query --show --showformat '${Status}' "$package" 2>/dev/null | grep -q ' installed' \
        || missing+=("$package")
done
if [ ${#missing[@]} != 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "Containers need, as root: apt-get install ${missing[*]}" >&2; exit 1; }
    echo "Installing ${missing[*]} …"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
exec "$(dirname "$0")/build.sh"
