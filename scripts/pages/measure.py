"""Figures and tables of the documentation, from runs of the command as it is.

    python scripts/pages/measure.py            everything, in about twenty minutes on two cores
    python scripts/pages/measure.py --keep     from the runs of an earlier call, running what is missing

Writes docs/data/ (figures of every model, leaderboard, output of the first command) and docs/images/, and renews the
parts of README.md and docs/ that show files. Runs go to outputs/measured. After a change of defaults, run it and commit
what it wrote.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import embed_examples  # noqa: E402

DATA, IMAGES, RUNS = ROOT / "docs/data", ROOT / "docs/images", ROOT / "outputs/measured"
QUIET = "sweeps_dir=outputs/measured"
MODELS = (
    "cm,pbm,ubm,dcm,ccm,dbn,sdbn,trust_bias,mixture,gctr,rctr,dctr,drctr,two_towers,cacm_minus,ncm"
)
SWEEP = f"clickexp -m model={MODELS} dataset.seed=0"
USERS = "clickexp -m model=pbm,ubm,dbn,dctr,rctr seed=1,2,3 keep_values=true dataset.seed=0"
PICTURES = ("per_rank", "examination")
PARTS = {
    "comparison_leaderboard": "#legend",
    "comparison_difference": ".card:has(#forest)",
    "comparison_curves": ".card:has(#examination)",
    "comparison_cost": ".card:has(#cost)",
}
"""Pictures of the comparison page, each down to an element."""


def main() -> None:
    """Runs, collects, writes."""
    parser = argparse.ArgumentParser(description="Measures what the documentation shows.")
    parser.add_argument("--keep", action="store_true", help="take what earlier calls ran")
    if not parser.parse_args().keep:
        shutil.rmtree(RUNS, ignore_errors=True)
    DATA.mkdir(exist_ok=True)
    IMAGES.mkdir(exist_ok=True)
    call(f"{SWEEP} hydra.sweep.dir=outputs/measured/models {QUIET}")
    (DATA / "models.json").write_text(json.dumps(models(), indent=1) + "\n")
    call(f"{USERS} hydra.sweep.dir=outputs/measured/users {QUIET}")
    compared = call("clickexp-compare outputs/measured/users --baseline PBM")
    (DATA / "compare.txt").write_text(
        trimmed(compared.replace("outputs/measured", "outputs/sweeps"))
    )
    shutil.copy(RUNS / "users/tables/leaderboard.md", DATA / "leaderboard.md")
    call("clickexp-compare outputs/measured/users --baseline PBM --figures")
    for name in PICTURES:
        shutil.copy(RUNS / f"users/figures/{name}.png", IMAGES / f"{name}.png")
    printed = start()
    (DATA / "start.txt").write_text(printed)
    (DATA / "end.txt").write_text(glance(printed))
    photograph(RUNS / "start/report.html", {"run": "#figures .card >> nth=3"}, 1100)
    photograph(RUNS / "users/comparison.html", PARTS)
    embed_examples.main()


def call(command: str, width: int = 80) -> str:
    """The output of a command on a terminal of that many columns, without colours."""
    print(command, flush=True)
    env = {
        **os.environ,
        "COLUMNS": str(width),
        "NO_COLOR": "1",
        "WANDB_MODE": "disabled",
        "WANDB_SILENT": "true",
    }
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=env, check=True, text=True, stdout=subprocess.PIPE
    )
    return done.stdout


def models() -> dict:
    """Test figures and training time of each model, by its option."""
    results = {
        number: (folder, json.loads((folder / "result.json").read_text()))
        for number, folder in runs(RUNS / "models").items()
    }
    by_option = {}
    for number, option in enumerate(MODELS.split(",")):
        folder, result = results[number]
        values = {name: result["test"][name] for name in ("ll", "ppl", "cond_ppl", "ndcg@10")}
        times = {
            "epochs": result["train"]["epochs"],
            "seconds": result["train"]["training_seconds"],
        }
        by_option[option] = {"folder": str(folder.relative_to(ROOT)), **values, **times}
    _, first = next(iter(results.values()))
    device = first["environment"]["device"]
    return {
        "command": SWEEP,
        "sessions": sum(first["data"]["sessions"][part] for part in ("train", "val", "test")),
        "device": f"{os.cpu_count()} CPU cores" if device == "cpu" else device,
        "environment": {k: v for k, v in first["environment"].items() if k != "git_commit"},
        "runs": by_option,
    }


def runs(sweep: Path) -> dict[int, Path]:
    """Folders with a result by the number of their job, also of repetitions of the sweep, of which the last counts."""
    files = sorted(sweep.rglob("result.json"), key=lambda file: file.stat().st_mtime_ns)
    folders = {int(file.parent.name): file.parent for file in files}
    return dict(sorted(folders.items()))


def start() -> str:
    """What the command prints without arguments, and no path of this machine."""
    shutil.rmtree(RUNS / "start", ignore_errors=True)
    printed = call("clickexp hydra.run.dir=outputs/measured/start progress=plain")
    # without the tree of the configuration, where it comes first
    lines = printed.splitlines(keepends=True)
    first = (
        next((i for i, line in enumerate(lines) if line.startswith("simulated:")), 0)
        if lines[0] == "seed: 0\n"
        else 0
    )
    kept = (
        "".join(lines[first:])
        .replace("outputs/measured/start", "outputs/2026-11-22/20-51-07-ubm")
        .replace(str(ROOT), ".")
    )
    return trimmed(kept)


def glance(printed: str) -> str:
    """Of the output of a run: the first table of test figures, cost and conclusion, and the report."""
    lines = printed.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("clicks")), len(lines))
    table = lines[first : lines.index("", first)] if first < len(lines) else []
    return "\n".join([*table, *lines[-4:-2], *lines[-1:]]).lstrip() + "\n"


def trimmed(text: str) -> str:
    """Without blanks at the ends of lines."""
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() + "\n"


def photograph(page: Path, parts: Mapping[str, str], width: int = 1280) -> None:
    """Writes pictures of a page, where there is a browser; else earlier ones stay.

    Args:
        page: The page.
        parts: By the name of a picture a selector: it begins where the one before it ends, and ends with this element.
        width: Of the window.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium or not importlib.util.find_spec("playwright"):
        print(f"{', '.join(parts)} stay as they are: there is no browser", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        # all is drawn that is seen
        tab = browser.new_page(viewport={"width": width, "height": 3000})
        tab.goto(page.as_uri())
        tab.wait_for_timeout(1500)
        top = 0
        for name, selector in parts.items():
            shown = tab.locator(selector).bounding_box()
            if shown is None:
                raise SystemExit(f"{page}: {selector} is not shown")
            bottom = shown["y"] + shown["height"] + 8
            tab.screenshot(
                path=IMAGES / f"{name}.png",
                full_page=True,
                clip={"x": 0, "y": top, "width": width, "height": bottom - top},
            )
            top = bottom
        browser.close()


if __name__ == "__main__":
    main()
