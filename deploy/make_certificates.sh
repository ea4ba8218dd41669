#!/bin/bash
# Certificates for compose.tls.yml, into .secrets/tls: of an authority of one's own, and, signed by it, of broker,
# database and API. What is there stays: to renew one, delete its .pem. As root, so that each key is its reader's.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077
mkdir -p .secrets/tls
cd .secrets/tls
quietly() { openssl "$@" 2>/dev/null; }

[ -s ca.pem ] || quietly req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=Switchyard" -keyout ca.key -out ca.pem
certificate() { # NAME USER: for the service of that name, and for this host; its key is of that user of its image
    [ -s "$1.pem" ] && return
    quietly req -newkey rsa:3072 -nodes -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
    quietly x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -out "$1.pem" \
        -extfile <(echo "subjectAltName=DNS:$1,DNS:localhost,IP:127.0.0.1")
    rm "$1.csr"
    chown "$2" "$1.key" 2>/dev/null || echo "$1.key must belong to the user $2: chown $2 .secrets/tls/$1.key, as root" >&2
}
certificate rabbitmq 999
certificate postgres 999
certificate api 10001
# For what is fetched from the web as well.
cat /etc/ssl/certs/ca-certificates.crt ca.pem >bundle.pem
chmod 644 ./*.pem # read in containers by other users; the directories keep others out
echo "Certificates are in .secrets/tls; clients of the API trust .secrets/tls/ca.pem."
