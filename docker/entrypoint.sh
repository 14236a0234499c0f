#!/bin/sh
# Starts a process of the service. The passwords come from files, so that they are in no container's
# configuration; libpq reads PGPASSWORD when the URL has no password.
set -eu
if [ -n "${DATABASE_PASSWORD_FILE:-}" ]; then
    PGPASSWORD="$(cat "${DATABASE_PASSWORD_FILE}")"
    export PGPASSWORD
fi
if [ -n "${REDIS_PASSWORD_FILE:-}" ]; then
    MESHWRIGHT_REDIS_PASSWORD="$(cat "${REDIS_PASSWORD_FILE}")"
    export MESHWRIGHT_REDIS_PASSWORD
fi
exec "$@"
