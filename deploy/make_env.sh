#!/bin/bash
# `make env`: secrets for compose.yml, once: .env, and the key that Prometheus reads the API with.
# What is there stays: passwords are in the volumes of broker and database by then.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077

secret() { od -An -N 24 -tx1 /dev/urandom | tr -d ' \n'; }

mkdir -p .secrets
[ -s .secrets/metrics-key ] || printf '%s' "$(secret)" >.secrets/metrics-key
chmod 644 .secrets/metrics-key # read in its container by another user; the directory keeps others out
touch .env
add() { # NAME VALUE, unless it is there
    grep -q "^$1=" .env || printf '%s=%s\n' "$1" "$2" >>.env
}
add RABBITMQ_PASSWORD "$(secret)"
add PUBLISHER_PASSWORD "$(secret)"
add WORKER_PASSWORD "$(secret)"
add ADMIN_PASSWORD "$(secret)"
add POSTGRES_PASSWORD "$(secret)"
add APPLICATION_PASSWORD "$(secret)"
add READER_PASSWORD "$(secret)"
add API_KEY "$(secret)"
add METRICS_KEY "$(cat .secrets/metrics-key)"
add GRAFANA_PASSWORD "$(secret)"
echo "Secrets are in .env; the API's key is API_KEY."
