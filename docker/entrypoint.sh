#!/bin/sh
# Starts a process of the service. The database password comes from a file, so that it stands in no
# container's configuration; libpq reads it from PGPASSWORD when the URL has none.
set -eu
if [ -n "${DATABASE_PASSWORD_FILE:-}" ]; then
    PGPASSWORD="$(cat "${DATABASE_PASSWORD_FILE}")"
    export PGPASSWORD
fi
exec "$@"
