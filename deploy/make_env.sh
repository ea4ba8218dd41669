#!/bin/bash
# `make env` makes the secrets of compose.yml: .env, and the API key of Prometheus.
# It keeps existing ones, because broker and database have stored them in their volumes.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077

secret() { od -An -N 24 -tx1 /dev/urandom | tr -d ' \n'; }

mkdir -p .secrets
[ -s .secrets/metrics-key ] || printf '%s' "$(secret)" >.secrets/metrics-key
chmod 644 .secrets/metrics-key # Prometheus runs as another user; the directory is closed to all others
touch .env
add() { # NAME VALUE; does nothing if NAME has a value already
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
