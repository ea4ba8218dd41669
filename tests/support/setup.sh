#!/bin/bash
# Installs what the tests run against, where it is missing: RabbitMQ 3.10 and 4.3, PostgreSQL; and
# promtool, which checks the alert rules.
# Does nothing, and quickly, where all is there. Without root's rights it says what is missing,
# and the tests that need it are skipped.
set -euo pipefail

cache=${SWITCHYARD_CACHE:-$HOME/.cache/switchyard}
roots=${cache}/rabbitmq-
scripts=usr/lib/rabbitmq/bin/rabbitmq-server

have_rabbitmq() { # VERSION: on the machine, or in a root of its own
    compgen -G "/usr/lib/rabbitmq/lib/rabbitmq_server-$1*" >/dev/null || [ -e "$roots$1/$scripts" ]
}
have_postgres() { compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; }

missing=()
[ -e "/$scripts" ] || missing+=(rabbitmq-server)
have_postgres || missing+=(postgresql)
command -v promtool >/dev/null || missing+=(prometheus)
{ have_rabbitmq 3.10 && have_rabbitmq 4.3; } || command -v debootstrap >/dev/null \
    || missing+=(debootstrap debian-archive-keyring)

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    [ ${#missing[@]} = 0 ] || echo "Missing, some tests will be skipped: ${missing[*]}" >&2
    have_rabbitmq 4.3 || echo "Missing: RabbitMQ 4.3 (run $0 as root to build it)" >&2
    exit 0
fi

quietly() { # COMMAND…: what it prints is shown only if it fails
    local log
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
}

install() { # PACKAGE…, without starting any service
    local policy=/usr/sbin/policy-rc.d ours=
    if [ ! -e $policy ]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    quietly apt-get update
    quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
    [ -z "$ours" ] || rm -f $policy
}

build_root() { # VERSION SUITE: the RabbitMQ of that suite and all it needs, complete or absent
    local root=$roots$1 building mirror deb script=/usr/share/debootstrap/scripts
    [ -e "$script/$2" ] || ln -s sid "$script/$2"
    # The mirror that this machine uses for Debian itself, else debootstrap's own default.
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' \
        | awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }')
    mkdir -p "$cache"
    building=$(mktemp -d "$root.building.XXXXXX")
    chmod 755 "$building"
    echo "Building a root with RabbitMQ $1 in $root …"
    # Unpacked and not installed: that takes neither mounts nor chroot, which a container may lack.
    quietly debootstrap --download-only --variant=minbase --include=rabbitmq-server \
        "$2" "$building" ${mirror:+"$mirror"} || { rm -rf "$building"; return 1; }
    mkdir -p "$building"/usr/{bin,sbin,lib,lib64}
    for merged in bin sbin lib lib64; do ln -sfn usr/$merged "$building/$merged"; done
    for deb in "$building"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$building"
    done
    rm -rf "$building"/{var,debootstrap}
    mv -T "$building" "$root" 2>/dev/null || rm -rf "$building" # another build was first
}

[ ${#missing[@]} = 0 ] || { echo "Installing ${missing[*]} …"; install "${missing[@]}"; }
have_rabbitmq 3.10 || build_root 3.10 bookworm
have_rabbitmq 4.3 || build_root 4.3 forky
