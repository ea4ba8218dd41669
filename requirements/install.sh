#!/bin/bash
# Install the pinned, hashed requirements of FILE and this project itself into ENVIRONMENT, which is made
# if there is none. Usage: requirements/install.sh ENVIRONMENT FILE
#
# uv does it, in a tenth of the processor time that pip needs; it is told the index and the certificates
# that pip is configured for. Where there is no uv for a system, or it can't reach the index, pip does.
set -euo pipefail
environment=$1 file=$2 here=$(dirname "$0")
bin=$environment/bin
python=${PYTHON:-python3}

install_by_pip() { "$bin/python" -m pip install -qq --disable-pip-version-check "$@"; }

install_by_uv() {
    if [ ! -x "$bin/uv" ]; then
        install_by_pip --only-binary :all: --require-hashes -r "$here/uv.txt" || return
    fi
    local index certificates uv=("$bin/uv" --quiet pip install --python "$bin/python")
    index=$("$bin/python" -m pip config get global.index-url 2>/dev/null) || index=
    [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    certificates=${PIP_CERT:-$("$bin/python" -m pip config get global.cert 2>/dev/null)} || certificates=
    [ -z "$certificates" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificates}
    "${uv[@]}" --require-hashes -r "$here/build.txt" -r "$file" \
        && "${uv[@]}" --no-deps --no-build-isolation -e "$here/.."
}

show_progress() { # until it is killed: a dot every two seconds
    while sleep 2; do printf . >&2; done
}

"$bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$environment"
printf 'Installing %s libraries into %s ' "$(grep -c '^[a-zA-Z]' "$file")" "$environment" >&2
show_progress &
progress=$!
trap 'kill $progress 2>/dev/null || true' EXIT
install_by_uv || {
    printf ' (not by uv, but by pip) ' >&2
    install_by_pip --require-hashes -r "$here/build.txt" -r "$file"
    install_by_pip --no-deps --no-build-isolation -e "$here/.."
}
# Compiled once here, instead of by each of the processes that `jobctl up` starts at the same time;
# by two, as it takes nearly half of the processor time of the whole installation.
"$bin/python" -c 'import lancedb, openai, pymupdf, trafilatura' &
compiling=$!
"$bin/python" -c 'import switchyard.api.app'
wait $compiling
echo " done in $SECONDS s" >&2
