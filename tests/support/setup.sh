#!/bin/bash
# Installs what the tests run against, where it is missing: RabbitMQ 3.10 and 4.3, PostgreSQL; and
# promtool, which checks the alert rules; Chromium, in which the dashboard is looked at; and the object stores, of S3's and Azure's kind, in
# directories of their own: what they need does not go together with what the project needs.
# Does nothing, and quickly, where all is there. Without root's rights it says what is missing,
# and the tests that need it are skipped. `setup.sh brokers` leaves out promtool, Chromium and the object stores.
set -euo pipefail
only=${1:-everything}

moto=5.2.5 azurite=3.37.0
cache=${SWITCHYARD_CACHE:-$HOME/.cache/switchyard}
roots=${cache}/rabbitmq-
scripts=usr/lib/rabbitmq/bin/rabbitmq-server

have_rabbitmq() { # VERSION: on the machine, or in a root of its own
    compgen -G "/usr/lib/rabbitmq/lib/rabbitmq_server-$1*" >/dev/null || [ -e "$roots$1/$scripts" ]
}
have_postgres() { compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; }

have_object_stores() {
    [ "$only" = brokers ] || { [ -x "$cache/moto-$moto/bin/moto_server" ] && [ -e "$cache/azurite-$azurite/node_modules/.bin/azurite-blob" ]; }
}

missing=()
[ -e "/$scripts" ] || missing+=(rabbitmq-server)
have_postgres || missing+=(postgresql)
if [ "$only" = everything ]; then
    command -v promtool >/dev/null || missing+=(prometheus)
    { command -v chromium && command -v chromedriver; } >/dev/null || missing+=(chromium chromium-driver fonts-dejavu-core)
    have_object_stores || command -v npm >/dev/null || missing+=(npm)
fi
{ have_rabbitmq 3.10 && have_rabbitmq 4.3; } || command -v debootstrap >/dev/null \
    || missing+=(debootstrap debian-archive-keyring)

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    [ ${#missing[@]} = 0 ] || echo "Missing, some tests will be skipped: ${missing[*]}" >&2
    have_object_stores || echo "Missing: object stores (run $0 as root to install them)" >&2
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

install_object_stores() { # each complete or absent
    local building
    mkdir -p "$cache"
    building=$(mktemp -d "$cache/stores.building.XXXXXX")
    echo "Installing moto and azurite in $cache …"
    if [ ! -d "$cache/moto-$moto" ]; then
        # Its programs name the directory that it was installed in: they are run as modules.
        quietly python3 -m venv "$building/moto"
        quietly "$building/moto/bin/pip" install --disable-pip-version-check "moto[s3,server]==$moto"
        mv -T "$building/moto" "$cache/moto-$moto"
    fi
    if [ ! -d "$cache/azurite-$azurite" ]; then
        quietly npm install --prefix "$building/azurite" --no-audit --no-fund "azurite@$azurite"
        mv -T "$building/azurite" "$cache/azurite-$azurite"
    fi
    rm -rf "$building"
}

[ ${#missing[@]} = 0 ] || { echo "Installing ${missing[*]} …"; install "${missing[@]}"; }
have_rabbitmq 3.10 || build_root 3.10 bookworm
have_rabbitmq 4.3 || build_root 4.3 forky
have_object_stores || install_object_stores
