#!/bin/bash
# The entry point of the official image in its essentials: the server runs as its own user.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
    chown -R rabbitmq:rabbitmq /var/lib/rabbitmq /var/log/rabbitmq
    exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$0" "$@"
fi
export HOME=/var/lib/rabbitmq RABBITMQ_LOGS=-
[ "$1" = rabbitmq-server ] || exec "$@"
exec /usr/lib/rabbitmq/bin/rabbitmq-server
