"""Options, progress and the report of a campaign."""

import argparse
import collections
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

from scripts.campaign import __doc__ as description
from scripts.campaign import commands, folders, kills, lists, readers  # noqa: F401  # they add areas
from scripts.campaign.trials import AREAS, Found, attempt, numbers

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "WANDB_MODE": "disabled",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}


def main() -> None:
    """Tries cases until the time is up, then reports; exit code 1 if there are faults."""
    chosen = _parser().parse_args()
    place = Path(chosen.folder or tempfile.mkdtemp(prefix="campaign-")).resolve()
    os.environ.update(_ENVIRONMENT, CLICKEXP_CACHE=str(place / "cache"))
    os.environ.pop("HYDRA_FULL_ERROR", None)
    # shells have programs in the background ignore Ctrl-C, and what these start, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    areas = chosen.areas or [*AREAS]
    spent = dict.fromkeys(areas, 0.0)
    found, done = [], collections.Counter()
    todo = numbers(areas, chosen.seconds, chosen.count, spent)
    if chosen.case is not None:
        todo = [(name, chosen.case) for name in areas]
    for name, number in todo:
        began = time.monotonic()
        case = attempt(name, chosen.seed, number, place, chosen.keep)
        spent[name] += time.monotonic() - began
        done[name] += 1
        if case is not None:
            found.append(case)
            _show(case, chosen.seed, place)
    for name in areas:
        faulty = sum(case.area == name for case in found)
        print(f"{name}: {done[name]} cases in {spent[name]:.0f} s, {faulty} with faults")
    print(f"folders of cases with faults: {place}" if found else "no faults")
    sys.exit(bool(found))


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("campaign", description=description, formatter_class=raw)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}")
    parser.add_argument("--seconds", type=float, default=600, help="begin no case after them")
    parser.add_argument("--count", type=int, help="cases of each area, if there is time")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other cases")
    parser.add_argument("--case", type=int, help="number of the one case to try")
    parser.add_argument("--folder", help="where the cases run; by default a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep folders of cases without faults")
    return parser


def _show(case: Found, seed: int, place: Path) -> None:
    words = ["python", "-m", "scripts.campaign", case.area, "--seed", seed, "--case", case.number]
    print(f"FAULT  {shlex.join(map(str, [*words, '--folder', place]))}")
    for line in case.story:
        print(f"    {line}")
    for fault in case.faults:
        print(f"  * {fault}", flush=True)


if __name__ == "__main__":
    main()
