# Packages that the plan needs; @CHECK@=0 starts without looking for them.
needs_package() {
    [[ "${@CHECK@:-1}" == 1 ]] || return 0
    python3 -c "$2" >/dev/null 2>&1 && return 0
    local has
    has="$3 $(python3 -c "from importlib.metadata import *; print(version('$3'))" 2>/dev/null)" ||
        has="no $3"
    echo "error: the plan needs $1; ${HOSTNAME} has ${has}" >&2
    echo "$4; @CHECK@=0 starts without this check" >&2
    exit 2
}
@CHECKS@

