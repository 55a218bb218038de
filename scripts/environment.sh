# Sourced by run.sh and test.sh: makes .venv with the tested versions, and activates it.
# PYTHON chooses the interpreter, VENV the folder.
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$root/.venv}"
python="${PYTHON:-$(command -v python3.11 || command -v python3 || true)}"

if ! "${python:-false}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "clickexp needs Python 3.11 or later (found: ${python:-none}). Install it, or name one: PYTHON=/path/to/python" >&2
    exit 1
fi

wanted="$(cat "$root/pyproject.toml" "$root/scripts/constraints.txt" | cksum) $("$python" --version)"
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
    echo "installing clickexp into $venv (once; a minute or two) ..."
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$root/scripts/constraints.txt" --editable "$root[test]"
    echo "$wanted" >"$venv/installed"
fi
export PATH="$venv/bin:$PATH"
