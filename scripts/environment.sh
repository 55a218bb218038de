# Sourced by run.sh and test.sh: makes .venv with the tested versions, and activates it.
# PYTHON chooses the interpreter, VENV the folder; EXTRAS adds extras of pyproject.toml, such as "search slurm".
# Where nvidia-smi answers, JAX comes with CUDA.
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$root/.venv}"
case "$venv" in /*) ;; *) venv="$PWD/$venv" ;; esac
stamp="$venv/installed" # what was installed: a line of sources and Python, a line of extras
extras="${EXTRAS:-}"
if nvidia-smi -L >/dev/null 2>&1; then
    extras="$extras cuda"
    known="python3.13 python3.12 python3.11 python3" # JAX's last version for 3.11 is slow on CUDA
else
    known="python3.11 python3.12 python3.13 python3"
fi

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
minor() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

python="${PYTHON:-}"
if [ -z "$python" ] && [ -f "$stamp" ] && usable "$venv/bin/python"; then python="$venv/bin/python"; fi
for one in $known; do
    if [ -z "$python" ] && usable "$one"; then python="$one"; fi
done
if ! usable "${python:-false}"; then
    echo "clickexp needs Python 3.11 or later${python:+, not $python}. Install it, or name one: PYTHON=/path/to/python" >&2
    exit 1
fi
version="$(minor "$python")"
case "$version" in
3.11) constraints="$root/scripts/constraints.txt" ;;
*) constraints="$root/scripts/constraints-py312.txt" ;;
esac

if [ "$(minor "$venv/bin/python")" != "$version" ]; then
    echo "making $venv for Python $version"
    clear="$(test -f "$venv/pyvenv.cfg" && echo --clear || true)" # that of another Python
    "$python" -m venv $clear "$venv"
    rm -f "$stamp"
fi
sources="$(cat "$root/pyproject.toml" "$constraints" | cksum) $version"
installed="$(sed -n 2p "$stamp" 2>/dev/null || true)"
all="$(echo $installed $extras | tr ' ' '\n' | sort -u | paste -sd, -)"
if [ "$(sed -n 1p "$stamp" 2>/dev/null)" != "$sources" ] || [ "$all" != "${installed// /,}" ]; then
    echo "installing clickexp${all:+ with $all} into $venv (once; a minute or two) ..."
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$constraints" --editable "$root${all:+[$all]}"
    printf '%s\n%s\n' "$sources" "${all//,/ }" >"$stamp"
fi
export PATH="$venv/bin:$PATH"
