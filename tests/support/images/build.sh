#!/bin/bash
# Makes the base images that Dockerfile and compose.yml name, from Debian's packages, where none
# can be pulled: a root by debootstrap, the entry point of the official image in its essentials,
# and `podman import` under the very name. Needs root. Does nothing for an image that is there.
#
#   tests/support/images/build.sh [NAME…]      python postgres rabbitmq prometheus; all if none
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
export CONTAINERS_CONF=$here/containers.conf
python=docker.io/library/python:3.11-slim-bookworm
postgres=docker.io/library/postgres:17
rabbitmq=docker.io/library/rabbitmq:4.3-management
prometheus=docker.io/prom/prometheus:v2.53.3

quietly() { # COMMAND…: what it prints is shown only if it fails
    local log
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
}

mirror() { # the one that this machine uses for Debian itself, else debootstrap's own default
    apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Created-By: Packages' \
        | awk '$1 == "Debian" && $2 !~ /security/ { print $2; exit }'
}

root_of() { # DIRECTORY SUITE PACKAGE,…: a small Debian with these packages
    local script=/usr/share/debootstrap/scripts from
    [ -e "$script/$2" ] || ln -s sid "$script/$2"
    from=$(mirror)
    chmod 755 "$1"
    # No service starts in there, and no documentation is kept.
    mkdir -p "$1/usr/sbin"
    quietly debootstrap --variant=minbase --include="$3" "$2" "$1" ${from:+"$from"}
    rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/usr/share/{doc,man,locale}/*
}

make_image() { # NAME SUITE PACKAGE,… CHANGE…: the changes are Dockerfile instructions
    local image=$1 suite=$2 packages=$3 name root changes=()
    shift 3
    podman image exists "$image" && return
    name=${image##*/}
    name=${name%%:*}
    echo "Making $image from Debian $suite …"
    root=$(mktemp -d)
    root_of "$root" "$suite" "$packages"
    prepare_"$name" "$root"
    for change in "$@"; do changes+=(--change "$change"); done
    tar -C "$root" --numeric-owner --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* -c . \
        | quietly_from_stdin podman import "${changes[@]}" - "$image"
    rm -rf "$root"
}

quietly_from_stdin() {
    local log
    log=$(mktemp)
    "$@" >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
}

prepare_python() { # as there: `python` and pip are found
    ln -sf python3 "$1/usr/bin/python"
    # The official image's pip is its own; Debian's refuses to install beside the system's packages.
    rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED
}
prepare_postgres() { install -m 755 "$here/postgres.sh" "$1/usr/local/bin/docker-entrypoint.sh"; }
prepare_rabbitmq() {
    install -m 755 "$here/rabbitmq.sh" "$1/usr/local/bin/docker-entrypoint.sh"
    mkdir -p "$1/etc/rabbitmq/conf.d"
    rm -f "$1/etc/rabbitmq/rabbitmq-env.conf"
    echo '[rabbitmq_management,rabbitmq_prometheus].' >"$1/etc/rabbitmq/enabled_plugins"
    rm -rf "$1/var/lib/rabbitmq"/{mnesia,.erlang.cookie}
    chown -R --reference="$1/var/lib/rabbitmq" "$1/etc/rabbitmq"
}
prepare_prometheus() {
    mkdir -p "$1/prometheus"
    chown 65534:65534 "$1/prometheus"
}

make_python() {
    make_image "$python" bookworm python3,python3-venv,python3-pip,ca-certificates 'CMD ["python3"]'
}
make_postgres() {
    make_image "$postgres" trixie postgresql \
        'ENV PGDATA=/var/lib/postgresql/data' 'ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/bin:/usr/bin:/bin' \
        'ENTRYPOINT ["docker-entrypoint.sh"]' 'CMD ["postgres"]' 'EXPOSE 5432' 'STOPSIGNAL SIGINT'
}
make_rabbitmq() {
    make_image "$rabbitmq" forky rabbitmq-server,procps \
        'ENTRYPOINT ["docker-entrypoint.sh"]' 'CMD ["rabbitmq-server"]' 'EXPOSE 5672'
}
make_prometheus() {
    make_image "$prometheus" trixie prometheus \
        'USER 65534' 'WORKDIR /prometheus' 'ENTRYPOINT ["/bin/prometheus"]' 'EXPOSE 9090'
}

[ $# -gt 0 ] || set -- python postgres rabbitmq prometheus
for each; do make_"$each"; done
